"""The connections of a server, so many at most and each with an end, whoever is at their other end.

A timeout of a socket is one of each recv: who sends a byte now and then keeps a connection, and so a place,
for as long as he likes. Here a connection is closed when its time is over, and where all places are taken the
one that has kept its place waiting longest makes way for a new one. What is said over it is not known here.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import Any

from xpu_runtime.errors import ConfigError

#: Seconds after which a server that is to stop looks whether it is, and whether connections are late.
_POLL_S = 0.25
#: Seconds that a new connection waits for the thread of the one that made way.
_END_S = 1.0


class Places:
    """Places for connections, each of which is served by a thread of its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._freed = threading.Condition()
        self._taken = 0
        #: Those that wait for their other end, and until when (monotonic seconds): who waits longest first.
        self._waiting: dict[socket.socket, float] = {}

    def enter(self, connection: socket.socket, seconds: float) -> bool:
        """Takes a place, and waits from now on; False: there is none."""
        with self._freed:
            if self._taken >= self._most and self._waiting:
                self._end(next(iter(self._waiting)))
                self._freed.wait_for(lambda: self._taken < self._most, _END_S)
            if self._taken >= self._most:
                return False
            self._taken += 1
            self._waiting[connection] = time.monotonic() + seconds
            return True

    def wait(self, connection: socket.socket, seconds: float) -> None:
        """From now on it waits for its other end, so long at most."""
        with self._freed:
            self._waiting.pop(connection, None)
            self._waiting[connection] = time.monotonic() + seconds

    def work(self, connection: socket.socket) -> None:
        """Its other end waits for us: it is closed for nobody."""
        with self._freed:
            self._waiting.pop(connection, None)

    def leave(self, connection: socket.socket) -> None:
        """Gives its place back. Before it is closed: its descriptor may be another's at once."""
        with self._freed:
            self._waiting.pop(connection, None)
            self._taken -= 1
            self._freed.notify_all()

    def end_late(self) -> None:
        """Ends those whose time is over."""
        now = time.monotonic()
        with self._freed:
            for connection in [each for each, until in self._waiting.items() if until <= now]:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """Its thread finds it closed by its other end. Not by SSLSocket's own method, which takes away what
        that thread is just using."""
        del self._waiting[connection]
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


class Listener(ThreadingMixIn, TCPServer):
    """Listens at once; serves from `start` until it is shut down, one thread a connection."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[BaseRequestHandler], places: Places, seconds: float
    ) -> None:
        """`places`: of new connections, which wait for so many seconds. ConfigError where that address cannot
        be had."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places, self._seconds = places, seconds
        try:
            super().__init__(address, handler)
        except OSError as error:
            raise ConfigError(f"{address[0]}:{address[1]}: {error.strerror or error}") from None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Begins to serve."""
        serve = functools.partial(self.serve_forever, poll_interval=_POLL_S)
        threading.Thread(target=serve, name=f"port {self.port}", daemon=True).start()

    def service_actions(self) -> None:
        """After each poll and each new connection."""
        self._places.end_late()

    def process_request(self, request: Any, client_address: Any) -> None:
        """A new connection gets a place and a thread; one for which there is no place is closed."""
        if not self._places.enter(request, self._seconds):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._places.leave(request)
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        """A connection's whole life, in its thread."""
        try:
            super().finish_request(request, client_address)
        finally:
            self._places.leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off is no event."""
