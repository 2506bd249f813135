"""The agent's answer on its socket in the run folder (agent/status.py): whether it runs, and its state."""

from __future__ import annotations

import json
import socket
from typing import Any

from xpu_runtime import paths

SOCKET = "agent.sock"
#: The file whose lock the one agent of a run folder holds.
LOCK = "agent.lock"
#: Seconds that a client waits for the agent, and the agent for a client's line.
WAIT_S = 2.0
LONGEST_ANSWER = 4 << 20


def ask() -> dict[str, Any] | None:
    """The agent's answer: `version`, `pid`, `rounds`, `devices`; None if none runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(WAIT_S)
        try:
            connection.connect(paths.in_run_dir(SOCKET))
            connection.sendall(b"status\n")
            answer = b""
            while (more := connection.recv(1 << 16)) and len(answer) < LONGEST_ANSWER:
                answer += more
            found = json.loads(answer)
        except (OSError, ValueError):
            return None
    return found if isinstance(found, dict) else None
