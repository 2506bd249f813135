"""The process that serves metrics and the page, beside the agent: its sockets, its start and its end.

It costs nothing while nobody asks. Who may ask is decided here, from the configuration; what is answered is
the caller's.
"""

from __future__ import annotations

import grp
import ipaddress
import os
import socket
from collections.abc import Callable
from typing import NoReturn

from xpu_runtime import paths
from xpu_runtime.agent.beside import AGAIN_S, Beside
from xpu_runtime.agent.collector import Collector, Make
from xpu_runtime.agent.history import History
from xpu_runtime.agent.page import Page
from xpu_runtime.agent.scrapes import FromCollector, Listener, Pages, Server, local_hosts, response
from xpu_runtime.config.defaults import Config

SOCKET = "metrics.sock"
#: What the collector is asked; besides, for a sample.
METRICS, DATA = b"metrics", b"data"
#: Prometheus' text format.
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_BACKLOG = 16


def metrics_service(
    config: Config, make: Make, unread: Callable[[str], bytes], log: Callable[[str], None]
) -> Beside:
    """The process that serves metrics, as `config` has it; `log` is told what goes wrong. `unread` makes the
    metrics of a node whose driver hangs (its argument says so): those that need none."""
    return Beside("what serves metrics", 0, lambda: _serve(config, make, unread, log), SOCKET, log)


def _serve(
    config: Config, make: Make, unread: Callable[[str], bytes], log: Callable[[str], None]
) -> NoReturn:
    """The serving process's whole life."""
    # Without a port hardly anybody looks, and the driver is left alone until somebody does.
    history = History(timed=config.metrics_listen is not None)
    server = Server(Collector(make), _pages(history, unread, log), history)
    waiting: list[Callable[[], Listener]] = [lambda: _on_socket(config.metrics_group, log)]
    if config.metrics_listen:
        waiting.append(lambda: _on_port(config))
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
                    log(f"{why}; it is tried again each {AGAIN_S:.0f} s")
        server.step(AGAIN_S if waiting else None)


def _pages(history: History, unread: Callable[[str], bytes], log: Callable[[str], None]) -> Pages:
    def missing(why: str) -> bytes:
        """Not an error, with which Prometheus would take the agent for gone."""
        return f"# {why}\n".encode() + unread(why)

    found: dict[str, FromCollector | Callable[[], bytes]] = {
        "/metrics": FromCollector(METRICS, _METRICS_TYPE, missing=missing),
        "/data.json": FromCollector(DATA, _JSON, history.taken),
        "/history.json": lambda: response("200 OK", _JSON, history.json()),
    }
    try:
        found["/"] = Page().response
    except OSError as error:  # no reason to serve no metrics
        log(f"there is no page for browsers: {error}")
    return found


def _on_socket(group: str | None, log: Callable[[str], None]) -> Listener:
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
    return _listening(listening)


def _on_port(config: Config) -> Listener:
    """OSError where the address is in use, or not (yet) this machine's."""
    where = config.metrics_listen or ""
    address, _, port = where.rpartition(":")
    address = address.strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, int(port)))
    except OSError as error:
        listening.close()
        raise OSError(error.errno, error.strerror, where) from None
    # Whatever is allowed to be reached by others: only this machine reaches a loopback address.
    is_local = ipaddress.ip_address(address).is_loopback
    return _listening(listening, local_hosts(address) if is_local else None)


def _listening(listening: socket.socket, hosts: tuple[str, ...] | None = None) -> Listener:
    listening.setblocking(False)
    listening.listen(_BACKLOG)
    return Listener(listening, hosts)
