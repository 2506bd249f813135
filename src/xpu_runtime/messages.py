"""What the doors tell: one line on stderr, and one in the log that the engine named, in runc's formats.

docker and containerd read the log file that they pass with `--log` for the last error of a runtime
that failed; a person at a terminal reads stderr.
"""

from __future__ import annotations

import os
import time

from xpu_runtime import jsonlite
from xpu_runtime.value import Value

_PREFIX = "xpu: "


class Log(Value):
    """The runtime's log: a path, or empty for none, and `text` or `json`."""

    path: str = ""
    format: str = "text"

    def write(self, level: str, text: str) -> None:
        """Appends one line; a log that cannot be written is no reason to fail."""
        if not self.path:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if self.format == "json":
            line = jsonlite.dumps({"level": level, "msg": _PREFIX + text, "time": now})
        else:
            line = f'time="{now}" level={level} msg={jsonlite.dumps(_PREFIX + text)}'
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


def complain(log: Log, text: str) -> None:
    """An error, for people and for the engine."""
    log.write("error", text)
    try:
        os.write(2, f"{_PREFIX}{text}\n".encode("utf-8", "replace"))
    except OSError:
        pass  # closed


def line_of(error: BaseException) -> str:
    """The one line of an error; of one that is a fault of ours, what a report needs."""
    from xpu_runtime.errors import XpuError

    if isinstance(error, XpuError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" in {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"internal error{where}: {text}: please report it"
