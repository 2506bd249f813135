"""HTTP and HTTPS for the extender's verbs: bytes in, bytes out, each with an end.

By the standard library's server, one thread a connection: kube-scheduler has a few, and keeps them. Any pod
can open connections that never show a certificate: these have places of their own, for some seconds. Two of
the library's defaults are traps: it sends head and body apart without TCP_NODELAY, which costs 40 ms an
answer (Nagle's algorithm and delayed ACKs), and has a backlog of 5, beyond which a connection takes a second.
What is asked is not known here.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.connections import Listener, Places

#: What answers a request: (path, body, whether another replica has passed it on) -> (status, type, body).
Answer = Callable[[str, bytes, bool], "tuple[int, str, bytes]"]

#: The header of a request that another replica passes on.
PASSED_ON = "X-Xpu-Passed-On"
#: Seconds for TLS' handshake, for the whole of a request, and for taking the answer.
_HANDSHAKE_S, _REQUEST_S, _ANSWER_S = 5.0, 10.0, 10.0
#: Seconds that a connection may lie idle. Go's client gives one up after 90: it must not use one at the
#: moment at which it is closed here, as it does not repeat a POST.
_IDLE_S = 150.0
#: Connections with a handshake under way, and all others.
_MOST_STRANGERS, _MOST_CONNECTIONS = 128, 256
#: Of a request. 10,000 names are half a megabyte, 2.6 at their longest; whole nodes, which are sent without
#: nodeCacheCapable, have 10 to 40 kB each. Read, nodes take 5 times their size, and the worst JSON 26 times:
#: with what the cluster takes (120 MiB) that is to stay below the manifests' limit (512 MiB).
_LONGEST_BODY = 8 << 20
_TOO_LONG = b"a body of at most 8 MiB with Content-Length; is kube-scheduler told nodeCacheCapable: true?\n"
#: Seconds between two looks at whether the certificate is a new one.
_CERTIFICATE_S = 10.0


class Certificate:
    """A server's certificate and key, and its clients' authority, in files, which may be replaced while it
    runs."""

    def __init__(self, certificate: str, key: str, client_ca: str | None) -> None:
        """`client_ca`: clients must show a certificate of this authority. ConfigError where one cannot be
        used."""
        self.files = certificate, key
        self._client_ca = client_ca
        self._stamp: object = None
        self._looked_at = 0.0
        try:
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            where = ", ".join(filter(None, (*self.files, client_ca)))
            why = error.strerror or error
            raise ConfigError(f"TLS: {where}: {why}", "give a certificate and its key") from None

    def renewed(self) -> ssl.SSLContext:
        """A context with what the files have now."""
        if time.monotonic() - self._looked_at >= _CERTIFICATE_S:
            # The old one serves until all files are of the new one.
            with contextlib.suppress(OSError, ssl.SSLError):
                self.context = self._load()
        return self.context

    def _load(self) -> ssl.SSLContext:
        """A new one where a file has changed: of one that is there an authority cannot be taken back."""
        self._looked_at = time.monotonic()
        stats = map(os.stat, filter(None, (*self.files, self._client_ca)))
        stamp = [(found.st_mtime_ns, found.st_ino) for found in stats]
        if stamp == self._stamp:
            return self.context
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.files, password="")
        if self._client_ca:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        self._stamp = stamp
        return context


class Server(Listener):
    """Serves the verbs; `stop` ends that."""

    def __init__(
        self,
        address: tuple[str, int],
        answer: Answer,
        log: Callable[[str], None],
        certificate: Certificate | None = None,
    ) -> None:
        """ConfigError where that address cannot be had."""
        self.answer = answer
        self.log = log
        self.is_stopping = False
        self.connections = Places(_MOST_CONNECTIONS)
        self._strangers = Places(_MOST_STRANGERS)
        self._certificate = certificate
        self._busy = 0
        self._changed = threading.Condition()
        if certificate is None:
            super().__init__(address, _Handler, self.connections, _IDLE_S)
        else:
            super().__init__(address, _Handler, self._strangers, _HANDSHAKE_S)

    def stop(self, seconds: float) -> None:
        """Takes no more connections, and waits for what is being answered, `seconds` at most."""
        self.is_stopping = True
        self.shutdown()
        self.server_close()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, seconds)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While a request is being answered."""
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def service_actions(self) -> None:
        """After each poll and each new connection."""
        self._strangers.end_late()
        self.connections.end_late()

    def get_request(self) -> tuple[Any, Any]:
        """A new connection; nothing is read of it yet."""
        request, address = super().get_request()
        if self._certificate is None:
            return request, address
        try:
            context = self._certificate.renewed()
            return context.wrap_socket(request, server_side=True, do_handshake_on_connect=False), address
        except (OSError, ValueError) as error:  # it is gone again
            request.close()
            raise OSError(str(error)) from None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake is made in the connection's own thread, where it holds up nobody else."""
        if self._certificate is None:
            super().finish_request(request, client_address)
            return
        try:
            request.do_handshake()
            is_taken = self.connections.enter(request, _IDLE_S)
        except (OSError, ValueError):
            return  # who speaks no TLS, or shows no certificate
        finally:
            self._strangers.leave(request)
        if is_taken:
            try:
                _Handler(request, client_address, self)
            finally:
                self.connections.leave(request)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "xpu", ""
    disable_nagle_algorithm = True
    #: Head and body in one piece.
    wbufsize = -1

    def handle_one_request(self) -> None:
        """Waits for a request and answers it; the connection stays."""
        self.server.connections.wait(self.connection, _IDLE_S)
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Reads the head, of which the first line is there."""
        self.server.connections.wait(self.connection, _REQUEST_S)
        return super().parse_request()

    def do_GET(self) -> None:
        """Nothing is to be had by that; it is said what is."""
        self._answer(b"")

    def do_POST(self) -> None:
        """The verbs."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 12) or int(length) > _LONGEST_BODY:
            self.close_connection = True
            status = 413 if length else 411
            self._send(status, "text/plain; charset=utf-8", _TOO_LONG)
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            return
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.server.connections.work(self.connection)
        with self.server.busy():
            self._send(*self.server.answer(self.path.partition("?")[0], body, PASSED_ON in self.headers))

    def _send(self, status: int, content_type: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection or self.server.is_stopping:
            self.send_header("Connection", "close")
        self.end_headers()
        self.server.connections.wait(self.connection, _ANSWER_S)
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are counted (metrics.py), not logged."""
