"""Forwards requests unchanged to the replica that leads.

kube-scheduler knows one address, behind which any replica may answer, and keeps its connections: a connection
to a replica that does not lead would stay there. The leader is known by its Lease, and trusted by its
certificate: that of all replicas, or one of the same issuer if the file has that too.
"""

from __future__ import annotations

import http.client
import ssl
import time
from urllib.parse import urlsplit

#: The header of a request that another replica passes on.
PASSED_ON = "X-Xpu-Passed-On"
#: Seconds for a connection, and for an answer: a bind of the leader may take 8.
_CONNECT_S, _ANSWER_S = 2.0, 12.0
#: The length of an answer to a filter of all nodes.
_LONGEST_ANSWER = 64 << 20
#: ssl.VERIFY_X509_PARTIAL_CHAIN, which Python has a name for from 3.10 on (OpenSSL's
#: X509_V_FLAG_PARTIAL_CHAIN).
_PARTIAL_CHAIN = 0x80000


class LeaderUnreachable(Exception):
    """Why the leader has not answered."""


class Forwarder:
    def __init__(self, files: tuple[str, str] | None) -> None:
        """`files`: this replica's certificate and key; None: plain HTTP."""
        self._files = files

    def ask(self, url: str, path: str, body: bytes) -> bytes:
        """The leader's answer; LeaderUnreachable."""
        parts = urlsplit(url)
        try:
            connection = self._connection(parts.scheme, parts.hostname or "", parts.port or 0)
        except (OSError, ValueError) as error:
            raise LeaderUnreachable(str(error)) from error
        until = time.monotonic() + _ANSWER_S
        try:
            connection.connect()
            connection.sock.settimeout(max(until - time.monotonic(), 0.1))
            connection.request("POST", path, body, {"Content-Type": "application/json", PASSED_ON: "1"})
            response = connection.getresponse()
            content = response.read(_LONGEST_ANSWER)
            if response.status != 200:
                raise LeaderUnreachable(f"it answers with status {response.status}")
            return content
        except (OSError, http.client.HTTPException) as error:
            raise LeaderUnreachable(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def _connection(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        if self._files is None and scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
        if self._files is None or scheme != "https":
            raise ValueError(
                f"the leader is at {scheme}://{host}:{port}, and this replica has other settings"
            )
        # Read each time: the certificate is renewed in its files.
        context = ssl.create_default_context(cafile=self._files[0])
        context.check_hostname = False  # it has the Service's name, and is reached by its pod's address
        context.verify_flags |= ssl.VerifyFlags(_PARTIAL_CHAIN)
        context.load_cert_chain(*self._files, password="")
        return http.client.HTTPSConnection(host, port, timeout=_CONNECT_S, context=context)
