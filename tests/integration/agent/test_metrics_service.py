"""Metrics served by `xpu agent`: the permitted clients, misbehaving clients, a hanging driver, and the
end."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from support.sharing_time import Serve, children_of, until

from ..agent_http import GET, answer, asked, connected, free_port, listens, on_port, on_socket
from ..conftest import Node, processes_of


def as_stranger(node: Node, path: str, groups: str) -> str:
    """The result of connecting as another user than root."""
    node.folder.chmod(0o755)
    script = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r}); print('connected')"
    words = ["setpriv", "--reuid=65534", "--regid=65534", groups, "/usr/bin/python3", "-c", script]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
    return done.stdout


def test_the_socket_serves_the_page_to_root_alone(node: Node, start_agent: Serve) -> None:
    node.sim("1xT4")
    start_agent()
    path = on_socket(node)
    assert os.stat(path).st_mode & 0o777 == 0o600
    status, head, body = answer(path)
    assert status == 200 and "\nxpu_up 1.0\n" in body and "\nxpu_agent_up 1.0\n" in body
    assert "Content-Type: text/plain; version=0.0.4" in head and f"Content-Length: {len(body)}\r\n" in head
    assert answer(path, GET.format("anything"))[0] == 200
    status, head, body = answer(path, "HEAD /metrics?x HTTP/1.0\r\n\r\n")
    assert status == 200 and body == "" and "Content-Length: 0" not in head
    assert "PermissionError" in as_stranger(node, path, "--clear-groups")


def test_a_group_may_read_where_the_configuration_says_so(node: Node, start_agent: Serve) -> None:
    node.configure("metrics: {group: daemon}")
    service = start_agent()
    path = on_socket(node)
    until(lambda: os.stat(path).st_mode & 0o777 == 0o660, "the group may")
    assert as_stranger(node, path, "--groups=1") == "connected\n"
    assert "PermissionError" in as_stranger(node, path, "--groups=2")
    service.end(signal.SIGTERM)
    assert not os.path.exists(path)
    node.configure("metrics: {group: nosuchgroup}")
    again = start_agent()
    until(lambda: "there is no group nosuchgroup" in again.log, "it is said")
    assert os.stat(on_socket(node)).st_mode & 0o777 == 0o600


def test_a_port_of_this_machine_answers_only_requests_by_its_own_names(
    node: Node, start_agent: Serve
) -> None:
    node.sim("1xT4")
    port = on_port(node, start_agent)
    for path in ("/metrics", "/", "/data.json?x=1", "/history.json"):
        for host in ("localhost", f"127.0.0.1:{port}", "LOCALHOST:1", "[::1]"):
            assert asked(port, path, host)[0] == 200
        for host in ("evil.example", "localhost.evil.example", "", f"evil.example:{port}"):
            status, _, body = asked(port, path, host)
            assert (status, body) == (403, "ask for localhost\n")
        status, head, body = answer(port, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (status, body) == (200, "") and "Content-Length: 0" not in head
    assert answer(port, "GET /metrics HTTP/1.0\r\n\r\n")[0] == 403
    assert answer(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n")[0] == 403


def test_addresses_that_other_machines_reach_take_a_second_key(node: Node, start_agent: Serve) -> None:
    port = free_port()
    for address in (f"0.0.0.0:{port}", f"[::]:{port}", f"192.0.2.1:{port}"):
        node.configure(f'metrics: {{listen: "{address}"}}')
        told = node.xpu("config", "check", check=False)
        assert told.returncode and "metrics.allow_remote" in told.stdout + told.stderr
    for address in ("127.0.0.1:0", "127.0.0.1:70000", "localhost:9402", "127.1:80", "9402"):
        node.configure(f'metrics: {{listen: "{address}"}}')
        assert node.xpu("config", "check", check=False).returncode
    node.configure(f'metrics: {{listen: "0.0.0.0:{port}", allow_remote: true}}')
    node.xpu("config", "check")
    start_agent()
    until(lambda: listens(port), "it listens")
    assert answer(port, GET.format("node7.example"))[0] == 200


def test_a_local_port_refuses_other_names_even_if_remote_clients_are_allowed(
    node: Node, start_agent: Serve
) -> None:
    port = free_port()
    node.configure(f'metrics: {{listen: "127.0.0.1:{port}", allow_remote: true}}')
    start_agent()
    until(lambda: listens(port), "it listens")
    assert answer(port, GET.format("localhost"))[0] == 200
    assert answer(port, GET.format("evil.example"))[0] == 403


def test_other_requests_than_for_the_pages_are_refused(node: Node, start_agent: Serve) -> None:
    start_agent()
    path = on_socket(node)
    for request, expected in {
        "GET /other HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
        "GET /metrics/../x HTTP/1.1\r\n\r\n": 404,
        "GET /data.json/ HTTP/1.1\r\n\r\n": 404,
        "GET // HTTP/1.1\r\n\r\n": 404,
        "GET * HTTP/1.1\r\n\r\n": 404,
        "GET http://localhost/ HTTP/1.1\r\n\r\n": 404,
        "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}": 405,
        "POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello": 405,
        "hello\r\n\r\n": 400,
        "GET /metrics\r\n\r\n": 400,
        "GET /metrics HTTP/2\r\n\r\n": 400,
        "\r\n\r\n": 400,
        "\xff\0\r\n\r\n": 400,
        "GET /metrics HTTP/1.1\r\nX: " + "x" * 9000: 431,
    }.items():
        status, _, body = answer(path, request)
        assert (status, "xpu_" in body) == (expected, False), request
    assert answer(path)[0] == 200


def test_silent_and_slow_clients_hold_up_neither_the_socket_nor_the_agent(
    node: Node, start_agent: Serve
) -> None:
    port = free_port()
    node.configure(f'metrics: {{listen: "127.0.0.1:{port}"}}')
    service = start_agent()
    path = on_socket(node)
    until(lambda: listens(port), "it listens")
    # If this machine has the group, its answering process (test_members.py) has no children meanwhile.
    (serving,) = children_of(service.process.pid)
    before = len(os.listdir(f"/proc/{serving}/fd"))
    silent = [connected(port) for _ in range(14)]
    for each in silent[:4]:
        each.sendall(b"GET /met")
    assert answer(path)[0] == 200
    # One more is the process that makes the page; the other clients wait in the kernel.
    assert len(os.listdir(f"/proc/{serving}/fd")) <= before + 8 + 2
    # The port's client that has been silent for longest is dropped.
    assert answer(port)[0] == 200
    for each in silent:
        each.close()
    # Whoever takes nothing of the answer is dropped.
    with connected(path) as lazy:
        lazy.sendall(GET.format("localhost").encode())
        assert answer(path)[0] == 200
    assert service.status()["who"] == "xpu agent"


def test_a_driver_that_hangs_makes_no_answer_wait_for_ever(node: Node, start_agent: Serve) -> None:
    node.sim("1xT4")
    service = start_agent()
    path = on_socket(node)
    assert answer(path)[0] == 200
    node.xpu("drain", "0")
    with node.hanging_driver():
        time.sleep(1.1)  # the last page counts for a second
        status, _, body = answer(path)
        # With an error Prometheus would alert of an agent that does not run.
        assert status == 200 and "does the driver answer" in body
        assert "\nxpu_up 0.0\n" in body and "\nxpu_agent_up 1.0\n" in body
        # Events are counted all the same.
        assert '\nxpu_events_total{event="drained"} 1.0\n' in body
        assert service.status()["who"] == "xpu agent"
    time.sleep(1.1)
    assert answer(path)[0] == 200


def test_it_ends_with_the_agent_however_that_ends(node: Node, start_agent: Serve) -> None:
    path = str(node.run_dir / "metrics.sock")
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        service = start_agent()
        until(lambda: _answers(path), "it serves")  # the process that makes the page runs too
        agents = [each for each in processes_of(node) if each.endswith("xpu agent ")]
        assert len(agents) >= 3
        service.end(number)
        until(lambda: not [each for each in processes_of(node) if "xpu" in each], "all have ended")
        assert "Exception" not in service.log


def _answers(path: str) -> bool:
    try:
        return answer(path)[0] == 200
    except OSError:
        return False


def test_a_collector_that_ends_is_started_again(node: Node, start_agent: Serve) -> None:
    service = start_agent()
    path = on_socket(node)
    assert answer(path)[0] == 200
    (serving,) = children_of(service.process.pid)
    for collecting in children_of(serving):
        os.kill(collecting, signal.SIGKILL)
    time.sleep(1.1)
    assert answer(path)[0] == 200
