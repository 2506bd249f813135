"""The output of the entry points: one line on stderr, and one in the engine's log file, in runc's formats.

docker and containerd read the last error of a failed runtime from the log file that they pass with `--log`; a
person at a terminal reads stderr. That log is deleted with the container, and is not read if the container
starts. So messages for the node's administrator also go to the system's log. This module knows only texts.
"""

from __future__ import annotations

import os
import time

from xpu_runtime import jsonlite
from xpu_runtime.value import Value

#: Of every line of ours.
PREFIX = "xpu: "

#: Where syslogd, or systemd's journal in its place, takes datagrams (syslog(3)).
_SYSTEM_LOG = "/dev/log"
_TAG = "xpu-container-runtime"
_FACILITY_DAEMON = 3 << 3
_SEVERITIES = {"error": 3, "warning": 4, "info": 6}
#: RFC 3164 asks for no more than this many bytes in a message.
_LONGEST_DATAGRAM = 1024
#: How many frames of an internal error are shown.
_FRAMES = 5


class Log(Value):
    """The runtime's log: a path, or empty for none, and `text` or `json`."""

    path: str = ""
    format: str = "text"

    def write(self, level: str, text: str) -> None:
        """Appends one line; a log that cannot be written is ignored."""
        if not self.path:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if self.format == "json":
            line = jsonlite.dumps({"level": level, "msg": PREFIX + text, "time": now})
        else:
            line = f'time="{now}" level={level} msg={jsonlite.dumps(PREFIX + text)}'
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(self.path, flags, 0o644)
        except OSError:
            return
        try:
            os.write(fd, line.encode() + b"\n")
        except OSError:
            pass
        finally:
            os.close(fd)


def to_system_log(level: str, text: str) -> None:
    """Sends one line to syslog or the journal, in the form of RFC 3164. `level`: error, warning or info.

    Without syslog(3), which blocks if the daemon has stopped reading: a container's start must not. Without a
    daemon (a minimal node) nothing happens.
    """
    try:
        send_to_system_log(level, text)
    except OSError:
        pass  # there is no daemon, or its queue is full


def send_to_system_log(level: str, text: str) -> None:
    """As `to_system_log`; OSError where there is no daemon, or its queue is full."""
    try:
        import _socket  # 0.7 ms, paid only if there is a message
    except ImportError:
        import socket as _socket  # type: ignore[no-redef]

    now = time.localtime()
    stamp = f"{time.strftime('%b', now)} {now.tm_mday:2d} {time.strftime('%H:%M:%S', now)}"
    # The text may contain an image's strings: they must not start a line of their own.
    line = " ".join("".join(c if c.isprintable() else " " for c in PREFIX + text).split())
    priority = _FACILITY_DAEMON | _SEVERITIES[level]
    message = f"<{priority}>{stamp} {_TAG}[{os.getpid()}]: {line}".encode("utf-8", "replace")
    kind = _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
    sender = _socket.socket(_socket.AF_UNIX, kind)
    try:
        sender.sendto(message[:_LONGEST_DATAGRAM], _SYSTEM_LOG)
    finally:
        sender.close()


def warn(log: Log, text: str) -> None:
    """A warning, for the engine's log and the system's."""
    log.write("warning", text)
    to_system_log("warning", text)


def complain(log: Log, text: str) -> None:
    """An error, for people and for the engine."""
    log.write("error", text)
    try:
        os.write(2, f"{PREFIX}{text}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # closed


def line_of(error: BaseException) -> str:
    """The one line of an error; for an internal error with the facts for a bug report."""
    from xpu_runtime.errors import XpuError

    if isinstance(error, XpuError):
        return str(error)
    if isinstance(error, ImportError) and (error.name or "").startswith("xpu_"):
        return (
            f"a part of xpu-container-runtime cannot be started ({error}): if it is being installed now, "
            "start the container again; otherwise install xpu-container-runtime again"
        )
    # Several frames: the innermost one alone would only show the system call, and not its caller.
    trace, frames = error.__traceback__, []
    while trace is not None:
        frames.append(f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}")
        trace = trace.tb_next
    where = f" in {' < '.join(frames[: -_FRAMES - 1 : -1])}" if frames else ""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"internal error{where}: {text}: please report it"
