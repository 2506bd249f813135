"""Pages for probes and Prometheus, without TLS: GET alone, and one answer a connection.

Any pod may reach them, so a client costs nothing but a place for some seconds: of what it sends a few
kilobytes of the head are read and no body, and of many that say nothing the oldest makes way, so that a probe
is always answered. http.server's own reading takes 6 MB of headers from anyone. What the pages say is not
known here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from http import HTTPStatus
from socketserver import BaseRequestHandler

from xpu_runtime.kubernetes.connections import Listener, Places

TEXT = "text/plain; charset=utf-8"
#: What a path has: (status, type, content).
Page = Callable[[str], "tuple[int, str, bytes]"]

#: Seconds for a request and for taking the answer, together.
_REQUEST_S = 5.0
_MOST_CONNECTIONS = 32
#: Bytes of a request's head.
_LONGEST_HEAD = 8192


class Pages(Listener):
    """Serves pages; `stop` ends that."""

    def __init__(self, address: tuple[str, int], page: Page) -> None:
        """ConfigError where that address cannot be had."""
        self.page = page
        super().__init__(address, _Handler, Places(_MOST_CONNECTIONS), _REQUEST_S)

    def stop(self) -> None:
        """Takes no more connections."""
        self.shutdown()
        self.server_close()


class _Handler(BaseRequestHandler):
    server: Pages
    request: socket.socket

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _LONGEST_HEAD:
            received = self.request.recv(_LONGEST_HEAD - len(head))
            if not received:
                return
            head += received
        status, content_type, content = self._answer(head)
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(content)}",
            *(("Allow: GET",) if status == HTTPStatus.METHOD_NOT_ALLOWED else ()),
            "Connection: close",
        )
        self.request.sendall("\r\n".join((*lines, "\r\n")).encode() + content)

    def _answer(self, head: bytes) -> tuple[int, str, bytes]:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return HTTPStatus.BAD_REQUEST, TEXT, b"this is no request of HTTP/1.1\n"
        if words[0] != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"pages are asked for by GET\n"
        return self.server.page(words[1].partition("?")[0])
