"""docker's Engine API on the Unix socket of a running dockerd: one question, one answer.

Each step of an answer has a time limit, an answer as a whole has none: callers that must go on ask in a
process of its own (linux/deadline.py).
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from xpu_runtime import textfile
from xpu_runtime.engines import docker
from xpu_runtime.errors import ConfigError
from xpu_runtime.observe.engine import Process

_SOCKET = "/run/docker.sock"


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, step_s: float) -> None:
        super().__init__("docker", timeout=step_s)
        self._path = path
        self._step_s = step_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._step_s)
        self.sock.connect(self._path)


def get(path: str, what: str, step_s: float, most_bytes: int) -> Any:
    """The engine's answer on the socket `path` to `GET what`, from JSON; one that is too long is refused.

    OSError, with its number, or ValueError. `step_s`: seconds for each step.
    """
    connection = _Connection(path, step_s)
    try:
        connection.request("GET", what)
        answer = connection.getresponse()
        told = json.loads(answer.read(most_bytes))
        if answer.status != 200:
            raise ValueError(f"its answer has the status {answer.status}")
        return told
    except (OSError, ValueError, http.client.HTTPException, RecursionError) as error:
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, error.strerror) from error
        raise ValueError(str(error) or type(error).__name__) from error
    finally:
        connection.close()


def socket_of(hosts: list[str]) -> str:
    """The Unix socket among the engine's addresses, by default its usual one."""
    found = [host[len("unix://") :] for host in hosts if host.startswith("unix://")]
    return found[0] if found else _SOCKET


def socket_of_process(process: Process) -> str:
    """Where a running dockerd listens, by its command line and its file."""
    hosts = process.option("-H", "--host")
    try:
        hosts += docker.hosts(textfile.read(process.file("docker")))
    except ConfigError:
        pass  # broken since it was started
    return socket_of(hosts)
