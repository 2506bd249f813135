"""The extender's certificate, which may be renewed while it serves."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import time

from xpu_runtime.errors import ConfigError

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
            self._context = self._load()
        except (OSError, ssl.SSLError) as error:
            where = ", ".join(filter(None, (*self.files, client_ca)))
            why = error.strerror or error
            raise ConfigError(f"TLS: {where}: {why}", "give a certificate and its key") from None

    def wrapped(self, connection: socket.socket) -> ssl.SSLSocket:
        """As http_server.Tls has it, with the files' present content."""
        if time.monotonic() - self._looked_at >= _CERTIFICATE_S:
            # The old one serves until all files are of the new one.
            with contextlib.suppress(OSError, ssl.SSLError):
                self._context = self._load()
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def awaited(self, error: Exception) -> int:
        """As http_server.Tls has it."""
        if isinstance(error, ssl.SSLWantReadError):
            return selectors.EVENT_READ
        return selectors.EVENT_WRITE if isinstance(error, ssl.SSLWantWriteError) else 0

    def _load(self) -> ssl.SSLContext:
        """A new one where a file has changed: of one that is there an authority cannot be taken back."""
        self._looked_at = time.monotonic()
        stats = map(os.stat, filter(None, (*self.files, self._client_ca)))
        stamp = [(found.st_mtime_ns, found.st_ino) for found in stats]
        if stamp == self._stamp:
            return self._context
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self.files, password="")
        if self._client_ca:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        self._stamp = stamp
        return context
