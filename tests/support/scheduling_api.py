"""The part of a Kubernetes API server that scheduling needs, in memory: nodes, pods, bindings and leases.

Tests use it for errors between a client and its server at a given moment, which a real server does not make
on demand; benchmarks use it for more nodes than a machine has. Its behaviour follows the API's documents:
pages of lists, watches from a version on, preconditions. tests/kubernetes has a real server.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from xpu_runtime.kubernetes.access import Access
from xpu_runtime.kubernetes.api import Api

Json = dict[str, Any]


class Refused(Exception):
    """An answer of the API with `status`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Objects:
    """All objects of one kind by their names, and their changes in the order of versions."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.by_name: dict[str, Json] = {}
        self.history: list[tuple[int, str, Json]] = []
        #: Versions up to this one are forgotten.
        self.forgotten = 0


class ApiServer:
    """Serves on a port of the loopback device, from `start` to `stop`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 0
        self.kinds = {kind: Objects(kind) for kind in ("nodes", "pods", "leases")}
        #: Called before and after a binding is carried out; may raise Refused, or wait.
        self.before_binding: Callable[[str], None] = lambda name: None
        self.after_binding: Callable[[str], None] = lambda name: None
        #: (method, path) of each request, except watches and lists.
        self.asked: list[tuple[str, str]] = []
        self.is_ending = False
        server = self
        self.set("leases", "xpu-extender", {})  # as the manifests make it

        class Handler(_Handler):
            api = server

        self._http = _Server(("127.0.0.1", 0), Handler)
        self.port = self._http.server_address[1]

    def start(self) -> None:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.is_ending = True
        with self.changed:
            self.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()

    def client(self) -> Api:
        return Api(Access(f"http://127.0.0.1:{self.port}"))

    # Changes that tests make

    def set(self, kind: str, name: str, thing: Json) -> Json:
        """Creates or replaces an object."""
        with self.changed:
            objects = self.kinds[kind]
            self.version += 1
            event = "MODIFIED" if name in objects.by_name else "ADDED"
            before = objects.by_name.get(name, {}).get("metadata", {})
            metadata = {"uid": before.get("uid") or str(uuid.uuid4()), **thing.get("metadata", {})}
            metadata.update(name=name, resourceVersion=str(self.version))
            kept = {**copy.deepcopy(thing), "metadata": metadata}
            objects.by_name[name] = kept
            objects.history.append((self.version, event, kept))
            self.changed.notify_all()
            return kept

    def delete(self, kind: str, name: str) -> None:
        with self.changed:
            objects = self.kinds[kind]
            self.version += 1
            gone = objects.by_name.pop(name)
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            objects.history.append((self.version, "DELETED", gone))
            self.changed.notify_all()

    def forget(self) -> None:
        """Watches from earlier versions get 410 from now on, and running watches end."""
        with self.changed:
            for objects in self.kinds.values():
                objects.forgotten = self.version + 1
                objects.history.clear()
            self.version += 1
            self.changed.notify_all()

    def pod(self, name: str) -> Json:
        with self.changed:
            return self.kinds["pods"].by_name[name]

    # Requests of clients

    def bind(self, name: str, binding: Json) -> Json:
        self.before_binding(name)
        with self.changed:
            pod = self.kinds["pods"].by_name.get(name)
            if pod is None:
                raise Refused(404, f'pods "{name}" not found')
            wanted = binding["metadata"].get("uid")
            if wanted and wanted != pod["metadata"]["uid"]:
                raise Refused(409, f"Precondition failed: UID in precondition: {wanted}")
            if pod["spec"].get("nodeName"):
                raise Refused(409, f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"')
            bound = copy.deepcopy(pod)
            bound["spec"]["nodeName"] = binding["target"]["name"]
            annotations = bound["metadata"].setdefault("annotations", {})
            annotations.update(binding["metadata"].get("annotations") or {})
            self.set("pods", name, bound)
        self.after_binding(name)
        return {"kind": "Status", "status": "Success"}

    def put(self, kind: str, name: str, thing: Json) -> Json:
        with self.changed:
            known = self.kinds[kind].by_name.get(name)
            if known is None:
                raise Refused(404, f'{kind} "{name}" not found')
            version = thing["metadata"].get("resourceVersion")
            if version not in (None, known["metadata"]["resourceVersion"]):
                raise Refused(409, "the object has been modified")
            return self.set(kind, name, thing)

    def page(self, kind: str, query: dict[str, str]) -> Json:
        with self.changed:
            names = sorted(self.kinds[kind].by_name)
            begin = int(query.get("continue", 0))
            end = begin + int(query.get("limit", len(names) or 1))
            items = [self.kinds[kind].by_name[name] for name in names[begin:end]]
            metadata = {"resourceVersion": str(self.version)}
            if end < len(names):
                metadata["continue"] = str(end)
            return {"metadata": metadata, "items": [item for item in items if _is_selected(item, query)]}

    def events(self, kind: str, query: dict[str, str]) -> Iterator[Json]:
        version = int(query["resourceVersion"])
        until = time.monotonic() + float(query.get("timeoutSeconds", 60))
        objects = self.kinds[kind]
        while not self.is_ending:
            with self.changed:
                if version < objects.forgotten:
                    yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
                    return
                found = [each for each in objects.history if each[0] > version]
                if not found and not self.changed.wait(max(until - time.monotonic(), 0)):
                    return
            for number, event, thing in found:
                version = number
                selected = _is_selected(thing, query)
                yield {"type": event if selected else "DELETED", "object": thing}


def _is_selected(thing: Json, query: dict[str, str]) -> bool:
    if "status.phase!=Succeeded" not in query.get("fieldSelector", ""):
        return True
    return thing.get("status", {}).get("phase") not in ("Succeeded", "Failed")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    #: With the usual 5, a connection of fifty at once waits for a second.
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        try:
            if query.get("watch"):
                self._watch(parts.path.rsplit("/", 1)[1], query)
                return
            self._send(200, self._answer(parts.path, query, body))
        except Refused as error:
            status = {"kind": "Status", "code": error.status, "message": str(error)}
            self._send(error.status, status)
        except ConnectionAbortedError:  # a test ends the connection without an answer
            self.close_connection = True

    do_GET = do_POST = do_PUT = _handle

    def _answer(self, path: str, query: dict[str, str], body: Json) -> Json:
        words = path.strip("/").split("/")
        if words[-1] in self.api.kinds and self.command == "GET":
            return self.api.page(words[-1], query)
        self.api.asked.append((self.command, path))
        if words[-1] == "binding":
            return self.api.bind(words[-2], body)
        if self.command == "POST":
            if words[-1] == "leases":
                raise Refused(403, "nobody may make one")
            return self.api.set(words[-1], body["metadata"]["name"], body)
        kind, name = words[-2:]
        if self.command == "PUT":
            return self.api.put(kind, name, body)
        with self.api.changed:
            if name not in self.api.kinds[kind].by_name:
                raise Refused(404, f'{kind} "{name}" not found')
            return self.api.kinds[kind].by_name[name]

    def _watch(self, kind: str, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            for event in self.api.events(kind, query):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _send(self, status: int, value: Json) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass
