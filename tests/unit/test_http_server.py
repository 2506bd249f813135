"""The HTTP server with any clients: valid requests, the keeping of places, and its end."""

from __future__ import annotations

import os
import resource
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support import REPOSITORY
from xpu_runtime import http_server
from xpu_runtime.http_message import Answer, Request, text
from xpu_runtime.http_server import Listener, Reply, Server, threaded
from xpu_runtime.kubernetes.extender.certificate import Certificate
from xpu_runtime.linux import address

#: More than the kernel's buffers of a connection take.
LARGE = b"x" * (32 << 20)

Serve = Callable[..., int]


def told(request: Request, reply: Reply) -> None:
    """The request."""
    reply(Answer(200, "text/plain", f"{request.method} {request.path} ".encode() + request.body))


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(answer: Callable[[Request, Reply], None] = told, **bounds: Any) -> int:
        server = Server()
        server.listen(Listener(address.bound("127.0.0.1", 0), answer, **bounds))
        threading.Thread(target=server.run, daemon=True).start()
        servers.append(server)
        return server.ports[0]

    yield start
    for each in servers:
        each.stop()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def answers(connection: socket.socket, count: int = 1) -> list[tuple[str, bytes]]:
    """Status and body of this many answers."""
    reader, found = connection.makefile("rb"), []
    for _ in range(count):
        status, length = reader.readline().decode().split(" ", 1)[1].strip(), 0
        while (line := reader.readline()) not in (b"\r\n", b""):
            if line.startswith(b"Content-Length:"):
                length = int(line.split()[1])
        found.append((status, reader.read(length)))
    return found


def test_requests_that_come_in_pieces_or_together_are_answered_one_after_the_other(serve: Serve) -> None:
    port = serve(longest_body=100, idle_s=20.0)
    request = b"POST /a?b HTTP/1.1\r\nHost: x\r\ncontent-length: 5\r\n\r\nhello"
    with connected(port) as one:
        for byte in request[:-1]:
            one.sendall(bytes([byte]))
        # The rest, two whole ones, and a part of one.
        one.sendall(request[-1:] + request + b"GET / HTTP/1.1\r\n\r\n" + b"GET /la")
        assert answers(one, 3) == [("200 OK", b"POST /a hello")] * 2 + [("200 OK", b"GET / ")]
        one.sendall(b"st HTTP/1.0\r\n\r\n")
        assert answers(one) == [("200 OK", b"GET /last ")]
        assert one.recv(1) == b""  # of HTTP/1.0 no more is read


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST / HTTP/1.1\r\nContent-Length: 101", "413 Request Entity Too Large"),
        ("POST / HTTP/1.1\r\nContent-Length: -1", "413 Request Entity Too Large"),
        ("POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2", "413 Request Entity Too Large"),
        ("POST / HTTP/1.1", "411 Length Required"),
        ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2", "411 Length Required"),
        ("DELETE / HTTP/1.1", "405 Method Not Allowed"),
        ("GET  / HTTP/1.1", "400 Bad Request"),
    ],
)
def test_something_that_is_no_request_ends_the_connection(serve: Serve, head: str, status: str) -> None:
    with connected(serve(longest_body=100, idle_s=20.0)) as one:
        one.sendall(f"{head}\r\n\r\n".encode())
        found = answers(one)[0][0]
        assert found.replace("Content Too Large", "Request Entity Too Large") == status
        assert one.recv(1) == b""


def test_an_answer_that_is_larger_than_the_kernels_buffers_arrives(serve: Serve) -> None:
    with connected(serve(threaded(lambda _: Answer(200, "text/plain", LARGE)))) as one:
        one.sendall(b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(0.1)  # it is full
        assert answers(one) == [("200 OK", LARGE)]


def test_with_tls_large_bodies_and_answers_arrive_over_one_connection(serve: Serve) -> None:
    pem = REPOSITORY / "tests/support/certificates"
    certificate = Certificate(str(pem / "server.crt"), str(pem / "server.key"), None)
    port = serve(
        threaded(lambda request: Answer(200, "text/plain", request.body * 4)),
        longest_body=8 << 20,
        idle_s=20.0,
        tls=certificate,
    )
    context, body = ssl.create_default_context(cafile=str(pem / "ca.crt")), LARGE[: 8 << 20]
    with context.wrap_socket(connected(port), server_hostname="localhost") as one:
        for _ in range(3):
            one.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert answers(one) == [("200 OK", LARGE)]


def test_a_client_that_does_not_read_its_answer_is_dropped(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_ANSWER_S", 0.2)
    with connected(serve(threaded(lambda _: Answer(200, "text/plain", LARGE)))) as lazy:
        lazy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(1)
        with pytest.raises(ConnectionError):
            for _ in range(100):
                lazy.sendall(b"x" * 100_000)
                time.sleep(0.01)


def test_a_client_that_waits_for_us_is_not_dropped_and_others_wait_in_the_kernel(serve: Serve) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def slow(_: Request) -> Answer:
        begun.release()
        go_on.wait(20)
        return text(200, "done")

    port = serve(threaded(slow), connections=2)
    asking = []
    for taken in (True, True, False, False, False):
        asking.append(connected(port))
        asking[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert begun.acquire(timeout=20 if taken else 0.1) is taken
    go_on.set()
    for each in asking:
        assert answers(each) == [("200 OK", b"done\n")]
        each.close()


def test_a_new_connection_gets_the_place_of_the_one_that_has_waited_longest(serve: Serve) -> None:
    port = serve(connections=2)
    first, second, third = (connected(port) for _ in range(3))
    for each in (third, second):
        each.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert answers(each) == [("200 OK", b"GET / ")]
    assert first.recv(1) == b""
    for each in (first, second, third):
        each.close()


def test_without_a_free_descriptor_it_waits_and_serves_once_there_is_one(
    in_child: Callable[..., None],
) -> None:
    def look() -> None:
        server = Server()
        server.listen(Listener(address.bound("127.0.0.1", 0), told))
        with connected(server.ports[0]) as one:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            taken = []
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            server.step(None)
            assert select.select([server], [], [], 0)[0] == []  # it would not sleep in its next step
            server.step(None)
            os.close(taken.pop())
            while not select.select([one], [], [], 0)[0]:
                server.step(None)
            assert answers(one) == [("200 OK", b"GET / ")]

    in_child(look)


def test_an_answer_that_fails_is_an_answer_and_the_next_one_may_do_better(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    done = [1, 0]
    port = serve(threaded(lambda _: text(200, str(1 // done.pop()))))
    for status in ("500 Internal Server Error", "200 OK"):
        with connected(port) as one:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert answers(one)[0][0] == status
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_requests_under_way_are_answered_when_the_server_stops() -> None:
    server, begun = Server(), threading.Event()

    def slow(_: Request) -> Answer:
        begun.set()
        time.sleep(0.3)
        return text(200, "done")

    server.listen(Listener(address.bound("127.0.0.1", 0), threaded(slow), idle_s=20.0))
    (port,) = server.ports
    threading.Thread(target=server.run, daemon=True).start()
    # In this order, so that the first is taken, too, once the second is answered.
    with connected(port) as idle, connected(port) as one:
        one.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert begun.wait(20)
        server.stop(20)
        assert answers(one) == [("200 OK", b"done\n")]
        assert one.recv(1) == idle.recv(1) == b""
        with pytest.raises(ConnectionError):
            connected(port)
