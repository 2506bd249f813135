"""No client can take a port from its users: probes, Prometheus and kube-scheduler."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from support.kubernetes_objects import node, pod
from unit.kubernetes.replica import PATIENCE_S, ControlPlane, Replica, certificate, trusting
from xpu_runtime import http_server
from xpu_runtime.http_server import Listener
from xpu_runtime.kubernetes.device_plugin import metrics
from xpu_runtime.kubernetes.device_plugin.metrics import Metrics, Snapshot
from xpu_runtime.kubernetes.extender import service

#: More than there are places for.
MANY = 300
HOST = "127.0.0.1"


def connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), PATIENCE_S)


@contextlib.contextmanager
def silent(port: int) -> Iterator[list[socket.socket]]:
    """Connections over which nothing is said."""
    with contextlib.ExitStack() as kept:
        yield [kept.enter_context(connected(port)) for _ in range(MANY)]


def is_ended(connection: socket.socket) -> bool:
    """Whether the other side closes it while a byte comes now and then."""
    connection.settimeout(0.05)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            connection.sendall(b"x")
            if not connection.recv(1):
                return True
        except socket.timeout:
            continue
        except OSError:
            return True
    return False


def page(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    asking = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    asking.request(method, path)
    answer = asking.getresponse()
    assert answer.getheader("Connection") == "close"
    found = answer.status, answer.read()
    asking.close()
    return found


@pytest.fixture
def extender(api: ControlPlane) -> Replica:
    """One without certificates."""
    api.create(node("n1"))
    return api.replica()


@contextlib.contextmanager
def plugin(problem: str = "") -> Iterator[int]:
    """The port of the device plugin's pages, while it has this problem."""
    server = metrics.server(f"{HOST}:0", Metrics(Snapshot), lambda: problem)
    threading.Thread(target=server.run, daemon=True).start()
    yield server.ports[0]
    server.stop()


@pytest.fixture(params=["device plugin", "extender"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Where such a one has its pages."""
    if request.param == "extender":
        yield request.getfixturevalue("extender").status_port
        return
    with plugin() as found:
        yield found


def test_a_plugin_with_a_problem_is_not_healthy() -> None:
    with plugin("it hangs") as port:
        assert page(port, "/healthz") == (503, b"it hangs\n")


def test_a_probe_is_answered_whoever_else_has_connections_there(port: int) -> None:
    with silent(port):
        for _ in range(5):
            assert page(port, "/healthz") == (200, b"ok\n")
        with silent(port):  # they come again
            assert page(port, "/healthz?verbose") == (200, b"ok\n")


def test_a_page_is_asked_for_by_get_and_of_anything_else_no_body_is_read(port: int) -> None:
    with connected(port) as asking:
        asking.sendall(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864\r\n\r\n")
        received = b""
        while part := asking.recv(4096):
            received += part
    assert received.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert page(port, "/healthz", "HEAD") == (200, b"")
    assert page(port, "/metrics")[0] == 200
    assert page(port, "/other")[0] == 404


def test_of_headers_without_an_end_little_is_read(port: int) -> None:
    with connected(port) as asking:
        asking.sendall(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(90):
                asking.sendall(b"X: " + b"x" * 60_000 + b"\r\n")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and handshakes have a moment."""
    monkeypatch.setattr(Listener, "request_s", 2.0)
    monkeypatch.setattr(service, "_REQUEST_S", 2.0)
    monkeypatch.setattr(http_server, "_HANDSHAKE_S", 2.0)


def test_a_request_that_comes_byte_by_byte_is_ended(impatient: None, port: int) -> None:
    with connected(port) as slow:
        assert is_ended(slow)


def test_a_client_without_a_certificate_takes_no_place_from_kube_scheduler(api: ControlPlane) -> None:
    api.create(node("n1"))
    one = api.replica(certificate=certificate(), client=trusting())
    kept = http.client.HTTPSConnection(HOST, one.port, timeout=PATIENCE_S, context=one.client)
    kept.connect()
    before = kept.sock
    with silent(one.port):
        for _ in range(15):
            assert one.fits(pod("p", mem=1)) == ["n1"]
        with silent(one.port):
            assert one.fits(pod("p", mem=1)) == ["n1"]
        kept.request("GET", "/")
        assert kept.getresponse().status == 404
    assert kept.sock is before  # it was not closed meanwhile
    kept.close()


def test_a_handshake_that_comes_byte_by_byte_is_ended(impatient: None, api: ControlPlane) -> None:
    with connected(api.replica(certificate=certificate()).port) as slow:
        slow.sendall(b"\x16\x03\x01\x02\x00\x01")  # a ClientHello begins
        assert is_ended(slow)


def test_without_certificates_a_silent_client_makes_way(extender: Replica) -> None:
    with silent(extender.port):
        assert extender.fits(pod("p", mem=1)) == ["n1"]


def test_a_verb_that_comes_byte_by_byte_is_ended(impatient: None, extender: Replica) -> None:
    with connected(extender.port) as slow:
        slow.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
        assert is_ended(slow)
