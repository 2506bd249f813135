"""HTTP/1.1 for metrics, pages and the scheduler's questions: one server, with a time limit for each client.

A loop over non-blocking sockets. A socket's timeout holds for each recv only: a client that sends a byte now
and then would keep its connection, and its place, for ever. Here a connection is closed when its time is
over. When all places of a listener are taken, the connection that has kept its place waiting longest is
closed, so that a probe is always answered; when all of them wait for us, new connections wait in the kernel.
http.server's own reading takes 6 MB of headers from anyone; here a head has a few kilobytes, and a body is
read only where the listener says so. Nothing here knows the pages that are served.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from xpu_runtime.http_message import Answer, Request, head_of, parse_head, text
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

#: Seconds that a client has for taking the answer, for TLS' handshake, and for ending the connection.
_ANSWER_S, _HANDSHAKE_S, _END_S = 10.0, 5.0, 2.0
#: Bytes of a request's head, of one piece that is read, and of a client's further data after the answer.
_LONGEST_HEAD, _PIECE, _MOST_AFTER = 8192, 1 << 16, 1 << 16
#: Beyond a backlog of some, a connection takes a second.
_BACKLOG = 128
#: Seconds until it accepts again, after the system had no descriptor for a connection.
_AGAIN_S = 1.0
_HEAD_END = b"\r\n\r\n"

#: Takes the answer to one request, at once or later, in any thread.
Reply = Callable[[Answer], None]


class Tls(Protocol):
    """A certificate and the TLS context of its sockets."""

    def wrapped(self, connection: socket.socket) -> ssl.SSLSocket:
        """The connection with TLS, before its handshake; OSError or ValueError if it is gone again."""

    def awaited(self, error: Exception) -> int:
        """Which of selectors' events a socket that raised `error` waits for; 0: none, it is broken."""


class Listener(Value):
    """A socket, bound already, and for whom it is."""

    socket: socket.socket
    #: Called in the server's thread, which must not wait.
    answer: Callable[[Request, Reply], None]
    #: Connections at once; with TLS, so many more whose handshake is under way.
    connections: int = 32
    handshakes: int = 128
    #: Seconds for the whole of a request.
    request_s: float = 5.0
    #: Seconds that a connection may be idle; 0: it ends with its answer.
    idle_s: float = 0.0
    #: Bytes of a request's body; 0: there are GET and HEAD alone, and no body is read.
    longest_body: int = 0
    #: Added to the answer to a longer one.
    advice: str = ""
    tls: Tls | None = None


class _Client:
    def __init__(self, connection: socket.socket, listener: Listener) -> None:
        self.connection, self.listener = connection, listener
        #: Its handshake is under way.
        self.secure: ssl.SSLSocket | None = None
        self.received = bytearray()
        #: The request whose body is still to come, and how long that is.
        self.head: Request | None = None
        self.length = 0
        #: The request that is being answered.
        self.request: Request | None = None
        self.keeps = False
        self.answer = memoryview(b"")
        self.after = 0
        self.wait(listener.request_s)

    def wait(self, seconds: float) -> None:
        """Waits for the client from now on, at most this long."""
        self.since = time.monotonic()
        #: When it is closed; None: its other end waits for us.
        self.until: float | None = self.since + seconds

    def next_request(self) -> Request | Answer | None:
        """A request that is there, the answer to one that gets no other; None: it is not all there yet."""
        if self.head is None:
            end = self.received.find(_HEAD_END, 0, _LONGEST_HEAD + len(_HEAD_END))
            if end < 0:
                return text(431, "too long") if len(self.received) > _LONGEST_HEAD else None
            head = self.received[:end].decode("latin-1")
            del self.received[: end + len(_HEAD_END)]
            parsed = parse_head(head, self.listener.longest_body, self.listener.advice)
            if isinstance(parsed, Answer):
                return parsed
            self.head, self.length = parsed
        if len(self.received) < self.length:
            return None
        body = bytes(self.received[: self.length])
        del self.received[: self.length]
        request, self.head = self.head.replace(body=body), None
        return request


class Server:
    """Serves as long as it makes steps, in one thread; `stop` and replies are for all threads."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._clients: dict[_Client, None] = {}
        self._selector = selectors.DefaultSelector()
        #: Clients whose answer is made.
        self._answered: deque[_Client] = deque()
        self._waking, self._woken = socket.socketpair()
        self._waking.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._take_replies)
        #: When it listens again at the latest; None: there were descriptors.
        self._again_at: float | None = None
        #: Deadline of the answers that are being made; None: the server is not stopping.
        self._stop_at: float | None = None
        self._ended = threading.Event()

    def listen(self, listener: Listener) -> None:
        """Also serves connections to this socket."""
        listener.socket.setblocking(False)
        listener.socket.listen(_BACKLOG)
        self._listeners.append(listener)
        self._listen()

    @property
    def ports(self) -> list[int]:
        return [int(each.socket.getsockname()[1]) for each in self._listeners]

    def fileno(self) -> int:
        """Readable when there is something to do."""
        return self._selector.fileno()

    @property
    def until(self) -> float | None:
        """When there is something to do at the latest (time.monotonic); None: when somebody comes."""
        times = (self._again_at, *(each.until for each in self._clients))
        return min((each for each in times if each is not None), default=None)

    def step(self, seconds: float | None) -> None:
        """One round of the loop. It waits at most `seconds` for something to do (None: without a limit)."""
        if (until := self.until) is not None:
            left = max(0.0, until - time.monotonic())
            seconds = left if seconds is None else min(seconds, left)
        for key, _ in self._selector.select(seconds):
            act: Callable[[], None] = key.data
            act()
        now = time.monotonic()
        for client in [each for each in self._clients if each.until is not None and now >= each.until]:
            self._drop(client)
        if self._again_at is not None and now >= self._again_at:
            self._again_at = None
            self._listen()

    def run(self) -> None:
        """Makes steps until `stop`."""
        try:
            while self._stop_at is None:
                self.step(None)
            for listener in self._listeners:
                with contextlib.suppress(KeyError):  # it does not listen now
                    self._selector.unregister(listener.socket)
                listener.socket.close()
            while (left := self._stop_at - time.monotonic()) > 0 and any(
                each.until is None or each.answer for each in self._clients
            ):
                self.step(left)
            for client in list(self._clients):
                self._drop(client)
            self._selector.close()
        finally:
            self._ended.set()

    def stop(self, seconds: float = 0.0) -> None:
        """Ends `run`: takes no more connections, and waits `seconds` at most for answers that are being
        made."""
        self._stop_at = time.monotonic() + seconds
        self._wake()
        self._ended.wait(seconds + _END_S)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake, or has ended
            self._waking.send(b"x")

    # Connections

    def _listen(self) -> None:
        """At each listener that does not, as it was full or had no free descriptor."""
        for listener in self._listeners if self._stop_at is None else ():
            with contextlib.suppress(KeyError):  # it does
                act = functools.partial(self._accept, listener)
                self._selector.register(listener.socket, selectors.EVENT_READ, act)

    def _accept(self, listener: Listener) -> None:
        if not self._has_place(listener, secure=listener.tls is not None):
            self._selector.unregister(listener.socket)
            return
        try:
            connection, _ = listener.socket.accept()
        except (BlockingIOError, ConnectionError):
            return  # it is gone again
        except OSError:  # there is no free descriptor: the connection stays in the kernel
            self._selector.unregister(listener.socket)
            self._again_at = time.monotonic() + _AGAIN_S
            return
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = _Client(connection, listener)
        self._clients[client] = None
        if listener.tls is None:
            self._next(client)
            return
        client.wait(_HANDSHAKE_S)
        try:
            client.connection = client.secure = listener.tls.wrapped(connection)
        except (OSError, ValueError):
            self._drop(client)
            return
        self._shake(client)

    def _has_place(self, listener: Listener, *, secure: bool) -> bool:
        """Whether there is a place, for a handshake (`secure`) or for a connection after it; makes one if
        possible."""
        taken = [each for each in self._clients if each.listener is listener and bool(each.secure) is secure]
        if len(taken) >= (listener.handshakes if secure else listener.connections):
            waiting = [each for each in taken if each.until is not None]
            if not waiting:
                return False
            self._drop(min(waiting, key=lambda each: each.since))
        return True

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            del self._clients[client]
            with contextlib.suppress(KeyError):
                self._selector.unregister(client.connection)
            client.connection.close()
            self._listen()

    def _when(self, client: _Client, event: int, act: Callable[[_Client], None]) -> None:
        data = functools.partial(act, client)
        try:
            self._selector.modify(client.connection, event, data)
        except KeyError:
            self._selector.register(client.connection, event, data)

    def _failed(self, client: _Client, error: Exception, event: int, act: Callable[[_Client], None]) -> None:
        """An operation that would block is repeated when the socket is ready; a broken connection is
        dropped."""
        if client.listener.tls is not None:
            event = client.listener.tls.awaited(error)
        elif not isinstance(error, BlockingIOError):
            event = 0
        if event:
            self._when(client, event, act)
        else:
            self._drop(client)

    def _shake(self, client: _Client) -> None:
        if client not in self._clients or client.secure is None:
            return
        try:
            client.secure.do_handshake()
        except (OSError, ValueError) as error:  # for example a client without TLS, or without a certificate
            self._failed(client, error, selectors.EVENT_READ, self._shake)
            return
        if not self._has_place(client.listener, secure=False):
            self._drop(client)
            return
        client.secure = None
        self._next(client)

    def _next(self, client: _Client) -> None:
        """Waits for a request, which may be there already."""
        listener = client.listener
        client.wait(listener.request_s if client.received else listener.idle_s or listener.request_s)
        self._read(client)

    def _read(self, client: _Client) -> None:
        if client not in self._clients:
            return
        try:
            while (request := client.next_request()) is None:
                piece = client.connection.recv(_PIECE)
                if not piece:
                    self._drop(client)
                    return
                if not client.received and client.head is None:  # it begins
                    client.wait(client.listener.request_s)
                client.received += piece
        except OSError as error:
            self._failed(client, error, selectors.EVENT_READ, self._read)
            return
        if isinstance(request, Answer):
            self._answer(client, request)
            client.wait(_ANSWER_S)
            self._write(client)
            return
        client.request, client.until = request, None
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.connection)
        client.listener.answer(request, functools.partial(self._reply, client))

    def _reply(self, client: _Client, answer: Answer) -> None:
        self._answer(client, answer)
        # Here, and not only in the server's thread, which may have to wait for others' Python.
        with contextlib.suppress(OSError, ValueError):  # the server sends the rest, and handles its errors
            client.answer = client.answer[client.connection.send(client.answer) :]
        self._answered.append(client)
        self._wake()

    def _take_replies(self) -> None:
        self._woken.recv(_PIECE)
        while self._answered:
            client = self._answered.popleft()
            client.wait(_ANSWER_S)
            self._write(client)
        self._listen()

    def _answer(self, client: _Client, answer: Answer) -> None:
        """In one piece: head and body in two cost 40 ms (Nagle's algorithm, delayed ACKs)."""
        request, client.request = client.request, None
        client.keeps = bool(request and request.keeps and client.listener.idle_s and self._stop_at is None)
        content = b"" if request and request.method == "HEAD" else answer.content
        client.answer = memoryview(head_of(answer, keeps=client.keeps) + content)

    def _write(self, client: _Client) -> None:
        if client not in self._clients:
            return
        try:
            while client.answer:
                client.answer = client.answer[client.connection.send(client.answer) :]
            if not client.keeps:
                # Past SSLSocket's own method, which would go on without TLS.
                socket.socket.shutdown(client.connection, socket.SHUT_WR)
        except OSError as error:
            self._failed(client, error, selectors.EVENT_WRITE, self._write)
            return
        if client.keeps:
            self._next(client)
        else:
            # Closed with something unread, it would be reset, and the answer lost: until the client ends.
            client.wait(_END_S)
            self._end(client)

    def _end(self, client: _Client) -> None:
        if client not in self._clients:
            return
        try:
            while (piece := client.connection.recv(_PIECE)) and client.after < _MOST_AFTER:
                client.after += len(piece)
        except OSError as error:
            self._failed(client, error, selectors.EVENT_READ, self._end)
            return
        self._drop(client)


def threaded(make: Callable[[Request], Answer], most: int = 32) -> Callable[[Request, Reply], None]:
    """An `answer` for a listener whose answers take time: each is made in one of at most `most` threads."""
    # Threads are kept: starting one costs 0.2 ms. The import is heavy, and only for listeners with slow
    # answers.
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(most)

    def made(request: Request, reply: Reply) -> None:
        answer = text(500, "it failed: see the log")
        try:
            answer = make(request)
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            reply(answer)

    def answer(request: Request, reply: Reply) -> None:
        with contextlib.suppress(RuntimeError):  # the system has no more threads: an existing one takes it
            pool.submit(made, request, reply)

    return answer
