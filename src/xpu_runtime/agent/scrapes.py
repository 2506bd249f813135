"""HTTP for those who scrape or look: a few pages, for a few clients at a time, each of which has its place
for seconds.

A loop over non-blocking sockets. Of a request only its first line and its Host are looked at, nothing of it
is kept, and the connection ends with the answer. What is made by somebody else, who may take long
(collector.py), is made once for all that wait for it. What is in it is not known here.
"""

from __future__ import annotations

import functools
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Union

from xpu_runtime.agent.collector import Collector
from xpu_runtime.agent.history import SAMPLE, History
from xpu_runtime.value import Value

#: Seconds that a client has for its request, for taking the answer, and for ending the connection.
_REQUEST_S, _ANSWER_S, _END_S = 5.0, 10.0, 2.0
#: Of each listening socket: those of a port that everybody on the machine reaches take none of the others'.
_MOST_CLIENTS = 8
_LONGEST_HEAD = 8192
#: An answer serves all who ask within so many seconds.
_FRESH_S = 1.0
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_TEXT = "text/plain; charset=utf-8"


class FromCollector(Value):
    """What the collector makes when it is asked `question`."""

    question: bytes
    content_type: str
    #: What is done with that, and answered of it; None: it is answered as it is.
    taken: Callable[[bytes], bytes] | None = None
    #: What is answered where the collector makes nothing, of the reason; None: that, with status 503.
    missing: Callable[[str], bytes] | None = None


#: By its path, what there is: made by the collector, or a whole answer that is at hand.
Pages = Mapping[str, Union[FromCollector, Callable[[], bytes]]]


class Listener(Value):
    """A socket that listens, non-blocking."""

    socket: socket.socket
    #: The names in a request's Host that are answered; None: all. A page on the web can have a browser on
    #: this machine ask for names of its own that lead here (DNS rebinding), and would read the answer.
    hosts: tuple[str, ...] | None = None


def local_hosts(address: str) -> tuple[str, ...]:
    """Those of a listener that only this machine reaches."""
    return (*_LOCAL, f"[{address}]" if ":" in address else address)


class _Client:
    """One connection."""

    def __init__(self, connection: socket.socket, listener: Listener) -> None:
        self.connection = connection
        self.listener = listener
        self.until = time.monotonic() + _REQUEST_S
        self.received = b""
        #: The path of what it waits for; "": of nothing.
        self.waits = ""
        self.head_only = False
        #: What is still to be written; None: no answer yet.
        self.answer: memoryview | None = None


class Server:
    """Serves `pages`, as long as it makes steps, and has `collector` make samples for `history`."""

    def __init__(self, collector: Collector, pages: Pages, history: History | None = None) -> None:
        self._collector = collector
        self._pages = pages
        self._history = history or History(timed=False)
        self._clients: set[_Client] = set()
        #: The path of what the collector makes now; "": a sample; None: nothing.
        self._asked: str | None = None
        #: By path: when it was made, and the answer.
        self._fresh: dict[str, tuple[float, bytes]] = {}
        self._selector = selectors.DefaultSelector()

    def step(self, seconds: float | None) -> None:
        """Does what there is to do, waiting `seconds` for it at most; None: until there is something."""
        due = [client.until for client in self._clients]
        sample = self._history.due if self._asked is None else None
        due += [
            each for each in (self._collector.until, self._collector.idle_until, sample) if each is not None
        ]
        if due:
            left = max(0.0, min(due) - time.monotonic())
            seconds = left if seconds is None else min(seconds, left)
        for key, _ in self._selector.select(seconds):
            act: Callable[[], None] = key.data
            act()
        now = time.monotonic()
        for client in [each for each in self._clients if now >= each.until]:
            self._drop(client)
        if self._collector.until is not None and now >= self._collector.until:
            self._collected()
        if self._collector.idle_until is not None and now >= self._collector.idle_until:
            self._selector.unregister(self._collector.fileno() or 0)
            self._collector.close()
        self._ask()

    # Connections

    def listen(self, listener: Listener) -> None:
        """Serves those who come there, too."""
        act = functools.partial(self._accept, listener)
        self._selector.register(listener.socket, selectors.EVENT_READ, act)

    def _accept(self, listener: Listener) -> None:
        try:
            connection, _ = listener.socket.accept()
        except OSError:
            return
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = _Client(connection, listener)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._read, client))
        if self._of(listener) >= _MOST_CLIENTS:
            self._selector.unregister(listener.socket)

    def _of(self, listener: Listener) -> int:
        return sum(client.listener is listener for client in self._clients)

    def _drop(self, client: _Client) -> None:
        if client not in self._clients:
            return
        was_full = self._of(client.listener) >= _MOST_CLIENTS
        self._clients.remove(client)
        self._selector.unregister(client.connection)
        client.connection.close()
        if was_full:
            self.listen(client.listener)

    def _read(self, client: _Client) -> None:
        if client not in self._clients:
            return
        try:
            piece = client.connection.recv(_LONGEST_HEAD)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._drop(client)
        elif client.answer is None and not client.waits:  # whatever follows the request is of no interest
            client.received += piece
            if len(client.received) > _LONGEST_HEAD:
                self._answer(client, _plain("431 Request Header Fields Too Large", "too long"))
            elif b"\r\n\r\n" in client.received:
                self._requested(client)

    def _requested(self, client: _Client) -> None:
        refusal, path, client.head_only = parse_request(client.received, client.listener.hosts, self._pages)
        if refusal:
            self._answer(client, refusal)
            return
        page = self._pages[path]
        if not isinstance(page, FromCollector):
            self._answer(client, page())
            return
        made_at, content = self._fresh.get(path, (-_FRESH_S, b""))
        if time.monotonic() - made_at < _FRESH_S:
            self._answer(client, content)
            return
        client.waits = path
        # Something else may be made first.
        client.until = time.monotonic() + 2 * self._collector.longest_s + _REQUEST_S
        self._ask()

    def _ask(self) -> None:
        """Has the collector make what is waited for, one after the other, and a sample where one is due."""
        if self._asked is not None:
            return
        waiting = sorted((client for client in self._clients if client.waits), key=lambda each: each.until)
        page = self._pages[waiting[0].waits] if waiting else None
        if isinstance(page, FromCollector):
            self._asked, question = waiting[0].waits, page.question
        elif self._history.due is not None and time.monotonic() >= self._history.due:
            self._asked, question = "", SAMPLE
        else:
            return
        before = self._collector.fileno()
        if before is not None:  # it may be replaced, by one of the same number
            self._selector.unregister(before)
        descriptor = self._collector.ask(question)
        if descriptor is None:
            self._collected()
        else:
            self._selector.register(descriptor, selectors.EVENT_READ, self._collected)

    def _collected(self) -> None:
        """The collector has answered, or has failed to."""
        descriptor = self._collector.fileno()
        answer = self._collector.answer()
        if answer is None:
            return  # a part of it
        if descriptor is not None and self._collector.fileno() is None:  # it has been given up
            self._selector.unregister(descriptor)
        asked, self._asked = self._asked, None
        if asked is None:
            return
        content, error = answer
        waiting = [each for each in self._clients if each.waits]
        if asked:
            result = self._result(asked, content, error)
            self._fresh[asked] = (time.monotonic(), result)
            for client in [each for each in waiting if each.waits == asked]:
                self._answer(client, result)
        elif error:
            self._history.missed()
        else:
            self._history.taken(content)
        if error and self._collector.fileno() is None:  # who waits for something else would wait as long
            for path in {each.waits for each in waiting if each.waits}:
                result = self._result(path, b"", error)
                self._fresh[path] = (time.monotonic(), result)
                for client in [each for each in waiting if each.waits == path]:
                    self._answer(client, result)

    def _result(self, path: str, content: bytes, error: str) -> bytes:
        page = self._pages[path]
        if error and isinstance(page, FromCollector) and page.missing is not None:
            return response("200 OK", page.content_type, page.missing(error))
        if error or not isinstance(page, FromCollector):
            return _plain("503 Service Unavailable", error)
        return response("200 OK", page.content_type, page.taken(content) if page.taken else content)

    def _answer(self, client: _Client, content: bytes) -> None:
        client.waits = ""
        client.until = time.monotonic() + _ANSWER_S
        if client.head_only:
            content = content[: content.index(b"\r\n\r\n") + 4]
        client.answer = memoryview(content)
        self._write(client)

    def _write(self, client: _Client) -> None:
        """In one piece where it fits: head and body in two cost 40 ms (Nagle's algorithm, delayed ACKs)."""
        if client not in self._clients or client.answer is None:
            return
        try:
            client.answer = client.answer[client.connection.send(client.answer) :]
            if not client.answer:
                # Closed with something unread, it would be reset, and the answer lost: until the client ends.
                client.connection.shutdown(socket.SHUT_WR)
                client.until = time.monotonic() + _END_S
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        if client.answer:
            self._selector.modify(
                client.connection, selectors.EVENT_WRITE, functools.partial(self._write, client)
            )
        else:
            self._selector.modify(
                client.connection, selectors.EVENT_READ, functools.partial(self._read, client)
            )


def parse_request(
    head: bytes, hosts: tuple[str, ...] | None, pages: Iterable[str]
) -> tuple[bytes, str, bool]:
    """The answer to a request that gets none of `pages`, b"" for one that does; which; whether only its head
    is wanted."""
    line, *fields = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return _plain("400 Bad Request", "not HTTP/1"), "", False
    method, target, _ = words
    named = [value.strip() for name, _, value in (field.partition(":") for field in fields) if _is_host(name)]
    if hosts is not None and (len(named) != 1 or without_port(named[0]).lower() not in hosts):
        return _plain("403 Forbidden", "ask for localhost"), "", False
    path = target.partition("?")[0]
    if path not in pages:
        return _plain("404 Not Found", f"there is only {', '.join(pages)}"), "", method == "HEAD"
    if method not in ("GET", "HEAD"):
        return _plain("405 Method Not Allowed", "GET or HEAD", "Allow: GET, HEAD\r\n"), "", False
    return b"", path, method == "HEAD"


def _is_host(name: str) -> bool:
    return name.lower() == "host"


def without_port(host: str) -> str:
    """`[::1]:9402` is `[::1]`."""
    end = host.find("]")
    return host[: end + 1] if end >= 0 else host.partition(":")[0]


def _plain(status: str, words: str, field: str = "") -> bytes:
    return response(status, _TEXT, words.encode() + b"\n", field)


def response(status: str, content_type: str, body: bytes, field: str = "") -> bytes:
    """A whole answer; `field` is a field of the head besides, with its end of line."""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{field}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
        "Cross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
