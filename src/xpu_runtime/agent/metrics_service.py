"""The process that serves metrics and the page, beside the agent: its sockets, its start and its end.

It costs nothing without a client. This module decides about access, by the configuration; the caller makes
the answers.
"""

from __future__ import annotations

import grp
import ipaddress
import os
import select
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from xpu_runtime import paths
from xpu_runtime.agent.collector import Collector, Make, Page
from xpu_runtime.agent.history import History
from xpu_runtime.agent.page import browser_page
from xpu_runtime.agent.side_process import AGAIN_S, SideProcess
from xpu_runtime.config.defaults import Config
from xpu_runtime.http_message import JSON, METRICS, Answer, Request, text
from xpu_runtime.http_server import Listener, Reply, Server
from xpu_runtime.linux import address

SOCKET = "metrics.sock"
#: The collector's questions, besides that for a sample.
FIGURES, DATA = b"metrics", b"data"
#: Connections at once of each listener: those of a port that everybody reaches take none of the socket's.
_MOST_CLIENTS = 8
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def metrics_service(
    config: Config, make: Make, unread: Callable[[str], bytes], log: Callable[[str], None]
) -> SideProcess:
    """The process that serves metrics by `config`; `log` takes problems. `unread` makes the metrics of a node
    whose driver hangs (its argument is the reason): those that need no driver."""
    return SideProcess("the metrics service", 0, lambda: _serve(config, make, unread, log), SOCKET, log)


def _serve(
    config: Config, make: Make, unread: Callable[[str], bytes], log: Callable[[str], None]
) -> NoReturn:
    """The serving process's whole life."""
    # Without a port hardly anybody looks, and the driver is left alone until somebody does.
    history = History(timed=config.metrics_listen is not None)
    collector, server = Collector(make, history), Server()
    answer = _answers(collector, history, unread, log)
    waiting: list[Callable[[], Listener]] = [lambda: _on_socket(config.metrics_group, answer, log)]
    if config.metrics_listen:
        waiting.append(lambda: _on_port(config, answer))
    told: set[str] = set()
    while True:
        for bind in list(waiting):
            try:
                server.listen(bind())
                waiting.remove(bind)
            except OSError as error:
                why = f"metrics cannot be served on {error.filename}: {error.strerror or error}"
                if why not in told:
                    told.add(why)
                    log(f"{why}; it is tried again every {AGAIN_S:.0f} s")
        again = time.monotonic() + AGAIN_S if waiting else None
        due = [each for each in (again, server.until, collector.until) if each is not None]
        left = max(0.0, min(due) - time.monotonic()) if due else None
        ready = [each for each in (server.fileno(), collector.fileno()) if each is not None]
        select.select(ready, [], [], left)
        collector.step()
        server.step(0)


#: The function that a listener calls.
_Answers = Callable[[Request, Reply], None]


def _answers(
    collector: Collector, history: History, unread: Callable[[str], bytes], log: Callable[[str], None]
) -> _Answers:
    def missing(why: str) -> bytes:
        """An answer with the reason, and no HTTP error: Prometheus would take that for a dead agent."""
        return f"# {why}\n".encode() + unread(why)

    made = {
        "/metrics": Page(FIGURES, METRICS, missing=missing),
        "/data.json": Page(DATA, JSON, history.taken),
    }
    at_hand = {"/history.json": lambda: Answer(200, JSON, history.json())}
    try:
        at_hand["/"] = browser_page()
    except OSError as error:  # no reason to serve no metrics
        log(f"there is no page for browsers: {error}")

    def answer(request: Request, reply: Reply) -> None:
        if request.path in made:
            collector.ask(made[request.path], reply)
        elif request.path in at_hand:
            reply(at_hand[request.path]())
        else:
            reply(text(404, f"there is only {', '.join((*made, *at_hand))}"))

    return answer


def _on_socket(group: str | None, answer: _Answers, log: Callable[[str], None]) -> Listener:
    """The socket in the run folder, for root and `group`; OSError. The caller's agent has the run folder's
    lock: a socket that is there is a dead one's."""
    path = paths.in_run_dir(SOCKET)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    try:
        listening.bind(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from None
    finally:
        os.umask(old)
    if group is not None:
        try:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
            os.chmod(path, 0o660)
        except KeyError:
            log(f"metrics.group: there is no group {group}: only root can read {path}")
    return Listener(listening, answer, connections=_MOST_CLIENTS)


def _on_port(config: Config, answer: _Answers) -> Listener:
    """OSError where the address is in use, or not (yet) this machine's."""
    where, port = address.parsed(config.metrics_listen or "")
    # metrics.allow_remote does not matter here: only this machine reaches a loopback address.
    is_local = ipaddress.ip_address(where).is_loopback
    hosts = (*_LOCAL, f"[{where}]" if ":" in where else where)
    checked = _for_hosts(hosts, answer) if is_local else answer
    return Listener(address.bound(where, port), checked, connections=_MOST_CLIENTS)


def _for_hosts(hosts: tuple[str, ...], answer: _Answers) -> _Answers:
    """Answers only requests for one of those host names. A page on the web can have a browser on this machine
    ask for a name of its own that leads here (DNS rebinding), and would read the answer."""

    def checked(request: Request, reply: Reply) -> None:
        named = request.fields.get("host", [])
        if len(named) == 1 and without_port(named[0]).lower() in hosts:
            answer(request, reply)
        else:
            reply(text(403, "ask for localhost"))

    return checked


def without_port(host: str) -> str:
    """`[::1]:9402` is `[::1]`."""
    end = host.find("]")
    return host[: end + 1] if end >= 0 else host.partition(":")[0]
