"""HTTP requests to `xpu agent`, on its socket or a port."""

from __future__ import annotations

import socket

from support.sharing_time import Serve, until

from .conftest import Node

GET = "GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n"


def connected(address: str | int) -> socket.socket:
    """To a socket's path, or a port of this machine."""
    by_path = isinstance(address, str)
    connection = socket.socket(socket.AF_UNIX if by_path else socket.AF_INET)
    connection.settimeout(30)
    connection.connect(address if isinstance(address, str) else ("127.0.0.1", address))
    return connection


def answer(address: str | int, request: str = GET.format("localhost")) -> tuple[int, str, str]:
    """The status, the head and the body."""
    with connected(address) as connection:
        connection.sendall(request.encode())
        content = b""
        while piece := connection.recv(1 << 16):
            content += piece
    head, _, body = content.decode().partition("\r\n\r\n")
    return int(head.split()[1]), head, body


def asked(address: str | int, path: str, host: str = "localhost") -> tuple[int, str, str]:
    return answer(address, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")


def on_socket(node: Node) -> str:
    path = str(node.run_dir / "metrics.sock")
    until(lambda: listens(path), "it listens")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def on_port(node: Node, start_agent: Serve, more: str = "") -> int:
    """The port of this machine on which an agent that this starts listens."""
    port = free_port()
    node.configure(f'metrics: {{listen: "127.0.0.1:{port}"}}\n{more}')
    start_agent()
    until(lambda: listens(port), "it listens")
    return port


def listens(address: str | int) -> bool:
    try:
        connected(address).close()
    except OSError:
        return False
    return True
