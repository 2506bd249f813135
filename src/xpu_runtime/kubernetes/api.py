"""A client of the Kubernetes API: requests and watches of JSON objects, each with a deadline.

By the standard library. We need a small part of the API, the same since version 1, and memory decides: of the
device plugin's 40 MB gRPC takes 30 and this client 3; lightkube 1.0 would take 22 and the official client
(kubernetes 37) 35. Objects are plain data, so that a watcher of ten thousand pods keeps only the needed part
of each (`keep`). Independent of the objects' meaning.

"Kubernetes API Concepts" on kubernetes.io: efficient detection of changes, retrieving large results sets in
chunks, resource versions.
"""

from __future__ import annotations

import http.client
import json
import random
import select
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Generic, TypeVar

from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.kubernetes.access import Access
from xpu_runtime.value import Value
from xpu_runtime.version import VERSION

T = TypeVar("T")

_JSON = "application/json"
#: How the API must interpret a patch (RFC 7386).
_MERGE = "application/merge-patch+json"

#: Seconds for a connection, and for an answer.
CONNECT_S, ANSWER_S = 5.0, 15.0
#: Seconds for a request that is already late: a limit of 0 would mean none.
_LEAST_S = 0.1
#: Seconds of a watch, after which the server ends it; with a part by chance, so that nodes that were started
#: at once do not come back at once.
_WATCH_S = 300
#: Objects in a page of a list.
_PAGE = 500
_LONGEST_ANSWER = 256 << 20
_LONGEST_EVENT = 8 << 20
#: Seconds that a connection may lie idle: servers and proxies close one after a minute or more.
_IDLE_S = 30.0
#: Seconds between two tries to follow.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
#: After this many seconds the Linux kernel gives up a connection whose other end is gone (tcp(7)).
_DEAD_S = 30
_GONE = 410


class ApiError(XpuError):
    """A request to the API server that failed.

    `status` is HTTP's, 0 where there was no answer; `reason` is that of the API's Status object ("NotFound",
    "Conflict"); `retry_after` is in seconds.
    """

    def __init__(self, what: str, status: int = 0, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(what)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class Change(Value, Generic[T]):
    """A change by `Api.follow`: `kind` is "listed" (`objects` are all objects), "changed" (`objects` has the
    new or changed one) or "deleted"."""

    kind: str
    objects: tuple[T, ...]


class Api:
    """One API server. Methods can be called by several threads at a time."""

    def __init__(self, access: Access, user_agent: str = "xpu", *, metadata_only: bool = False) -> None:
        """`metadata_only`: lists and watches bring names, labels and annotations alone."""
        self.access = access
        self._metadata_only = metadata_only
        self._agent = f"{user_agent}/{VERSION}"
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._lock = threading.Lock()

    # Single objects

    def get(self, path: str, seconds: float = ANSWER_S, **query: Any) -> Any:
        """The object at `path`, such as /api/v1/nodes/NAME; ApiError."""
        return self._ask("GET", path, query, None, seconds)

    def post(self, path: str, body: Mapping[str, Any], seconds: float = ANSWER_S, **query: Any) -> Any:
        """Creates an object; ApiError. Where the connection breaks, it may have been created all the same."""
        return self._ask("POST", path, query, body, seconds)

    def put(self, path: str, body: Mapping[str, Any], seconds: float = ANSWER_S, **query: Any) -> Any:
        """Replaces an object; ApiError, with status 409 where `body` is of another resourceVersion."""
        return self._ask("PUT", path, query, body, seconds)

    def patch(self, path: str, body: Mapping[str, Any], seconds: float = ANSWER_S, **query: Any) -> Any:
        """Changes an object: a field of null is removed, one that is not there is kept; ApiError."""
        return self._ask("PATCH", path, query, body, seconds)

    def delete(self, path: str, seconds: float = ANSWER_S, **query: Any) -> Any:
        """Removes an object; ApiError."""
        return self._ask("DELETE", path, query, None, seconds)

    # Many objects

    def list(
        self,
        path: str,
        keep: Callable[[dict[str, Any]], T | None],
        page: int = _PAGE,
        seconds: float = ANSWER_S,
        **query: Any,
    ) -> tuple[list[T], str]:
        """The results of `keep` for each object, without None, and the version of the whole list; ApiError.

        It is read in pages, each of which may take `seconds`; after status 410 it is begun anew.
        """
        while True:
            found: list[T] = []
            more: dict[str, Any] = {}
            try:
                while True:
                    asked = {"limit": page, **query, **more}
                    accept = self._accept("PartialObjectMetadataList")
                    answer = self._ask("GET", path, asked, None, seconds, accept)
                    found += [kept for each in answer.get("items") or () if (kept := keep(each)) is not None]
                    metadata = answer.get("metadata") or {}
                    if not metadata.get("continue"):
                        return found, str(metadata.get("resourceVersion") or "")
                    more = {"continue": metadata["continue"]}
            except ApiError as error:
                if error.status != _GONE or not more:
                    raise

    def watch(
        self,
        path: str,
        version: str,
        seconds: int = _WATCH_S,
        begun: Callable[[], None] = lambda: None,
        **query: Any,
    ) -> Generator[dict[str, Any], None, None]:
        """The events after `version`, as the API reports them (type and object), until the server ends the
        watch, after `seconds`; `begun` is called when the watch has begun. ApiError; with status 410 if the
        server no longer knows that version."""
        query = {
            **query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        headers = self._headers("GET", self._accept("PartialObjectMetadata"))
        connection = self._connect(seconds + ANSWER_S)
        try:
            # The first event may be far away: the answer begins at once.
            connection.request("GET", _url(self.access, path, query), headers=headers)
            response = connection.getresponse()
            _check(response, response.read(_LONGEST_EVENT) if response.status >= 400 else b"")
            begun()
            while line := response.readline(_LONGEST_EVENT + 1):
                if len(line) > _LONGEST_EVENT:
                    raise ApiError(f"an event of {path} is longer than {_LONGEST_EVENT >> 20} MiB")
                event = json.loads(line)
                if event.get("type") == "ERROR":
                    raise _of_status(event.get("object") or {}, 0)
                yield event
        except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
            raise ApiError(f"the watch of {path} broke off: {_text(error)}") from error
        finally:
            connection.close()

    def follow(
        self,
        path: str,
        keep: Callable[[dict[str, Any]], T | None],
        stop: threading.Event,
        problem: Callable[[str], None],
        longest_pause_s: float = _LONGEST_PAUSE_S,
        **query: Any,
    ) -> Iterator[Change[T]]:
        """All objects, and then each change, until `stop` is set, through all outages of the server.

        A watch that ends is continued; if the server does not know that version any more, all is listed
        again. `problem` is called with one line on a failure, and with "" when the watch is well again.
        Objects for which `keep` returns None are left out of lists and changes. Two tries are
        `longest_pause_s` seconds apart at most.
        """
        version, pause = "", _FIRST_PAUSE_S

        def begun() -> None:
            nonlocal pause
            # Here, not at the first event, which may be far away: the next failure is a new one.
            pause = _FIRST_PAUSE_S
            problem("")

        while not stop.is_set():
            try:
                if not version:
                    objects, version = self.list(path, keep, **query)
                    yield Change("listed", tuple(objects))
                seconds = _WATCH_S + random.randrange(60)  # noqa: S311
                for event in self.watch(path, version, seconds, begun, **query):
                    thing = event.get("object") or {}
                    version = str((thing.get("metadata") or {}).get("resourceVersion") or version)
                    kept = None if event.get("type") == "BOOKMARK" else keep(thing)
                    if kept is not None:
                        yield Change("deleted" if event.get("type") == "DELETED" else "changed", (kept,))
                    if stop.is_set():
                        return
                # Ended by the server, in order or because it goes down: not at once again.
                stop.wait(random.uniform(0, _FIRST_PAUSE_S))  # noqa: S311
            except XpuError as error:
                if isinstance(error, ApiError) and error.status == _GONE:
                    version = ""
                else:
                    problem(str(error))
                asked = error.retry_after if isinstance(error, ApiError) else 0.0
                stop.wait(max(min(asked, longest_pause_s), pause * random.uniform(0.5, 1)))  # noqa: S311
                pause = min(2 * pause, longest_pause_s)

    # HTTP

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Mapping[str, Any] | None,
        seconds: float,
        accept: str = _JSON,
    ) -> Any:
        """The object in the answer, after `seconds` at the latest, unless a server lets it trickle (the limit
        is looked at between reads); ApiError."""
        until = time.monotonic() + seconds
        url = _url(self.access, path, query)
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        idle, anew = True, False
        for _ in range(3):
            headers = self._headers(method, accept, anew)
            connection, was_idle = self._take(until, idle)
            try:
                # The rest of the time after connecting; a used connection still has the last request's limit.
                connection.sock.settimeout(max(until - time.monotonic(), _LEAST_S))
                connection.request(method, url, data, headers)
                response = connection.getresponse()
                content = _read_all(response, connection, until)
                self._give(connection, response)
                _check(response, content)
                return json.loads(content) if content else {}
            except ApiError as error:
                if error.status != http.client.UNAUTHORIZED or anew:
                    raise
                anew = True
            except (OSError, ValueError, http.client.HTTPException) as error:
                connection.close()
                # The server may close an idle connection at the moment at which it is used again.
                if not was_idle or method == "POST" or time.monotonic() >= until:
                    raise ApiError(f"{method} {self._where(path)}: {_text(error)}") from error
                idle = False
        raise ApiError(f"{method} {self._where(path)}: no answer")

    def _accept(self, kind: str) -> str:
        """Servers that cannot give objects as `kind` (metav1) give them whole."""
        return f"{_JSON};as={kind};g=meta.k8s.io;v=v1,{_JSON}" if self._metadata_only else _JSON

    def _headers(self, method: str, accept: str, anew: bool = False) -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": self._agent}
        try:
            token = self.access.token(anew=anew)
        except ConfigError as error:
            raise ApiError(str(error)) from error
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if method in ("POST", "PUT", "PATCH"):
            headers["Content-Type"] = _MERGE if method == "PATCH" else _JSON
        return headers

    def _where(self, path: str) -> str:
        return f"{self.access.host}:{self.access.port}{path}"

    def _take(self, until: float, idle: bool) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        now = time.monotonic()
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()
                if idle and now - since < _IDLE_S and not _has_ended(connection):
                    return connection, True
                connection.close()
        return self._connect(max(until - now, _LEAST_S)), False

    def _give(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        """Keeps a connection for the next request, where the server does."""
        if response.will_close or not response.isclosed():
            connection.close()
            return
        with self._lock:
            self._idle.append((time.monotonic(), connection))

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        """Connected, within `seconds`, which a single read may take as well. ApiError."""
        connection = _Connection(self.access, min(seconds, CONNECT_S))
        try:
            connection.connect()
            connection.sock.settimeout(seconds)
        except (OSError, ValueError) as error:
            connection.close()
            raise ApiError(f"{self._where('')} cannot be reached: {_text(error)}") from error
        return connection


class _Connection(http.client.HTTPConnection):
    """With TLS where the server has it, and another name for its certificate where the kubeconfig says so."""

    def __init__(self, access: Access, seconds: float) -> None:
        super().__init__(access.host, access.port, timeout=seconds)
        self._access = access
        self._until = time.monotonic() + seconds

    def connect(self) -> None:
        super().connect()
        # A watch is silent for minutes: without this, one whose server is gone would last till its end.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _DEAD_S // 3)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _DEAD_S // 6)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_S * 1000)
        if self._access.context is not None:
            # The limit is for both, connection and handshake.
            self.sock.settimeout(max(self._until - time.monotonic(), _LEAST_S))
            self.sock = self._access.context.wrap_socket(self.sock, server_hostname=self._access.server_name)


def _check(response: http.client.HTTPResponse, content: bytes) -> None:
    """ApiError where the answer is one."""
    if response.status < 400:
        return
    try:
        status = json.loads(content)
    except ValueError:
        status = {}
    after = response.headers.get("Retry-After", "")
    wait = float(after) if after.isdigit() else 0.0
    raise _of_status(status if isinstance(status, dict) else {}, response.status, wait)


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed it, or sent unexpected data."""
    return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])


def _read_all(
    response: http.client.HTTPResponse, connection: http.client.HTTPConnection, until: float
) -> bytes:
    """TimeoutError if it is not complete at `until`; ValueError if it is too long."""
    pieces: list[bytes] = []
    size = 0
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer took too long")
        if connection.sock is not None:  # closed already where the answer ends the connection
            connection.sock.settimeout(left)
        piece = response.read(1 << 18)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        if size > _LONGEST_ANSWER:
            raise ValueError(f"the answer is longer than {_LONGEST_ANSWER >> 20} MiB")


def _of_status(status: Mapping[str, Any], code: int, retry_after: float = 0.0) -> ApiError:
    code = int(status.get("code") or code)
    reason = str(status.get("reason") or "")
    details = status.get("details") or {}
    after = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    text = f"the API server refuses: {status.get('message') or reason or 'no reason given'} ({code})"
    return ApiError(text, code, reason, float(after or retry_after))


def _url(access: Access, path: str, query: Mapping[str, Any]) -> str:
    words = {name: str(value) for name, value in query.items() if value is not None}
    return f"{access.prefix}{path}" + (f"?{urllib.parse.urlencode(words)}" if words else "")


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    if isinstance(error, OSError) and error.errno and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
