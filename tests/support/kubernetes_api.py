"""An API server for tests: lists, watches and patches over real HTTP, on objects in memory.

Versions, pages, watches and 410 follow the page "Kubernetes API Concepts". The server does not know the
meaning of objects, except that a Binding gives a pod its node. tests/kubernetes has a real kube-apiserver;
with this one a test can make an answer fail.
"""

from __future__ import annotations

import copy
import http.server
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from support.stand_in_kubelet import Kubelet

Object = dict[str, Any]


def kubeconfig(path: Path, cluster: Object, user: Object | None = None, namespace: str = "default") -> Path:
    """Writes a kubeconfig of one context, and returns its path."""
    context = {"cluster": "k", "user": "u", "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "c", "context": context}],
        "current-context": "c",
    }
    path.write_text(json.dumps(document))
    return path


class ApiServer:
    """Objects by their path. `url` is the same after `down` and `up`."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.changed = threading.Condition()
        self.version = 100
        #: (version, path, object before and after it) of each change that is still known.
        self.log: list[tuple[int, str, Object | None, Object | None]] = []
        self.oldest = 0
        #: Every request: method and URL.
        self.requests: list[tuple[str, str]] = []
        #: Called with method and path before each request; if it returns (status, body), that is the answer.
        self.fault: Callable[[str, str], tuple[int, Object] | None] = lambda *_: None
        #: The token that requests need; "": none.
        self.token = ""
        self._server: _Server | None = None
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, path: Path, namespace: str = "default") -> Path:
        return kubeconfig(path, {"server": self.url}, {"token": self.token or "any"}, namespace)

    def up(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Closes the port and all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.cut()
            self._server = None

    # Changes that tests make

    def put(self, path: str, thing: Object) -> Object:
        with self.changed:
            before = self.objects.get(path)
            self.version += 1
            metadata = {
                "name": path.rpartition("/")[2],
                "uid": f"uid-{self.version}",
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                **((before or {}).get("metadata") or {}),
                **(thing.get("metadata") or {}),
                "resourceVersion": str(self.version),
            }
            words = path.split("/")
            if "namespaces" in words:
                metadata["namespace"] = words[words.index("namespaces") + 1]
            self.objects[path] = copy.deepcopy({**thing, "metadata": metadata})
            self.log.append((self.version, path, before, self.objects[path]))
            self.changed.notify_all()
            return self.objects[path]

    def delete(self, path: str) -> Object:
        with self.changed:
            self.version += 1
            gone = self.objects.pop(path)
            self.log.append((self.version, path, gone, None))
            self.changed.notify_all()
            return gone

    def forget(self) -> None:
        """Forgets earlier changes, so that they cannot be watched any more (etcd's compaction)."""
        with self.changed:
            self.oldest = self.version
            self.log = []
            self.changed.notify_all()

    def under(self, collection: str) -> list[Object]:
        """The objects of a collection, or of a collection in all namespaces."""
        with self.changed:
            return [each for path, each in sorted(self.objects.items()) if _is_in(path, collection)]

    # Requests of clients

    def bind(self, path: str, binding: Object) -> tuple[int, Object]:
        """The answer to a Binding of the pod."""
        with self.changed:
            pod = self.objects.get(path)
            if pod is None:
                return _refused(404, "NotFound")
            uid = binding["metadata"].get("uid")
            if pod["spec"].get("nodeName") or uid not in (None, pod["metadata"]["uid"]):
                return _refused(409, "Conflict")
            annotations = binding["metadata"].get("annotations") or {}
            bound = {
                "spec": {"nodeName": binding["target"]["name"]},
                "metadata": {"annotations": annotations},
            }
            self.put(path, _merged(pod, bound))
            return 201, {"kind": "Status", "status": "Success"}

    def events(self, path: str, query: dict[str, str]) -> Iterator[Object]:
        """What a watch of the collection is told, until its time or the server ends."""
        told = int(query["resourceVersion"])
        until = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        selector = query.get("fieldSelector", "")
        server = self._server
        while time.monotonic() < until and self._server is server:
            with self.changed:
                if told < self.oldest:
                    _, status = _refused(410, "Expired")
                    yield {"type": "ERROR", "object": status}
                    return
                new = [each for each in self.log if each[0] > told]
                if not new:
                    self.changed.wait(0.1)
                    continue
            for version, where, before, after in new:
                told = version
                if _is_in(where, path):
                    yield from _event(version, _selected(before, selector), _selected(after, selector))


def _refused(code: int, reason: str, message: str = "") -> tuple[int, Object]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message or reason}


def _event(version: int, before: Object | None, after: Object | None) -> Iterator[Object]:
    """A change for those that see the object only before it, or only after it, or both."""
    if after is not None:
        yield {"type": "ADDED" if before is None else "MODIFIED", "object": after}
    elif before is not None:
        metadata = {**before["metadata"], "resourceVersion": str(version)}
        yield {"type": "DELETED", "object": {**before, "metadata": metadata}}


def _is_in(path: str, collection: str) -> bool:
    folder = path.rpartition("/")[0]
    head, _, plural = collection.rpartition("/")
    return folder == collection or (
        folder.startswith(f"{head}/namespaces/") and folder.endswith(f"/{plural}")
    )


def _selected(thing: Object | None, selector: str) -> Object | None:
    """The object, if the selector of fields selects it."""
    for term in filter(None, selector.split(",")):
        name, _, wanted = term.partition("=")
        value: Any = thing
        for word in name.removesuffix("!").split("."):
            value = (value or {}).get(word)
        if ((value or "") == wanted) is name.endswith("!"):
            return None
    return thing


def _merged(before: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    #: The queue of connections that are not yet accepted; the usual five overflow on a busy machine.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], api: ApiServer) -> None:
        self.api = api
        self.connections: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def cut(self) -> None:
        for each in list(self.connections):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _send(self, status: int, body: Object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _handle(self) -> None:
        api = self.server.api
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        api.requests.append((self.command, self.path))
        if api.token and self.headers.get("Authorization") != f"Bearer {api.token}":
            return self._send(*_refused(401, "Unauthorized"))
        fault = api.fault(self.command, url.path)
        if fault is not None:
            return self._send(*fault)
        if self.command == "GET" and query.get("watch"):
            return self._watch(url.path, query)
        if self.command == "POST" and url.path.endswith("/binding"):
            return self._send(*api.bind(url.path.rpartition("/")[0], body))
        with api.changed:
            answer = self._answer(url.path, query, body)
        return self._send(*answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def _answer(self, path: str, query: dict[str, str], body: Object) -> tuple[int, Object]:
        api = self.server.api
        now = api.objects.get(path)
        if self.command == "POST":
            path = f"{path}/{body['metadata']['name']}"
            return _refused(409, "AlreadyExists") if path in api.objects else (201, api.put(path, body))
        if now is None:
            if self.command == "GET" and path.rpartition("/")[2] in ("pods", "nodes", "events", "leases"):
                return self._list(path, query)
            return _refused(404, "NotFound", f"{path} not found")
        if self.command == "PUT":
            wanted = (body.get("metadata") or {}).get("resourceVersion")
            if wanted not in (None, now["metadata"]["resourceVersion"]):
                return _refused(409, "Conflict")
            now = api.put(path, body)
        elif self.command == "PATCH":
            now = api.put(path, _merged(now, body))
        elif self.command == "DELETE":
            now = api.delete(path)
        return 200, now

    def _list(self, path: str, query: dict[str, str]) -> tuple[int, Object]:
        api = self.server.api
        version = api.version
        first = 0
        if token := query.get("continue"):
            version, first = map(int, token.split(":"))
            if version < api.oldest:
                return _refused(410, "Expired", "the continue token is too old")
        found = [each for each in api.under(path) if _selected(each, query.get("fieldSelector", ""))]
        last = first + int(query.get("limit") or len(found) or 1)
        metadata: Object = {"resourceVersion": str(version)}
        if last < len(found):
            metadata["continue"] = f"{version}:{last}"
        return 200, {"kind": "List", "metadata": metadata, "items": found[first:last]}

    def _watch(self, path: str, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self.server.api.events(path, query):
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def api_server() -> Iterator[ApiServer]:
    server = ApiServer()
    try:
        yield server
    finally:
        server.down()


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    """A running kubelet of the tests' own."""
    from support import stand_in_kubelet  # imports gRPC, which no other test has in its process

    with stand_in_kubelet.running() as found:
        yield found


@pytest.fixture(name="api_server")
def _api_server() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server
