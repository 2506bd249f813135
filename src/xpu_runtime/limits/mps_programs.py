"""The needs of NVIDIA's MPS programs at their start, and their messages.

As seen of the programs of R535 to R580: the control daemon looks for the server on its PATH (execlp), and
that of R580 opens libcuda itself; R555's ends with status 1 and without a word where a socket's path is too
long. Knows neither devices, containers nor the daemon's life.
"""

from __future__ import annotations

import os

from xpu_runtime.linux import trusted
from xpu_runtime.value import Value

#: Bytes of a socket's path: sun_path has 108 with its end (unix(7)), and NVIDIA's daemon takes one less.
_LONGEST_SOCKET = 106
#: The longest name in the pipe folder that does not depend on a container.
PRIVILEGED = "control_privileged"
_SYSTEM = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: The programs' output and logs, with the length of each one's end that goes into an error.
_LOGS = ("start.log", "control.log", "server.log")
_MOST_BYTES, _MOST_LINES = 900, 8


class Programs(Value):
    """The paths of the driver's own; the server and libcuda are "" where they are not known."""

    control: str
    server: str = ""
    libcuda: str = ""

    def environment(self) -> dict[str, str]:
        """Where the daemon finds the server and libcuda."""
        folders = [os.path.dirname(path) for path in (self.server, self.control) if path]
        mine = [each for each in dict.fromkeys(folders) if _is_roots(each)]
        found = {"PATH": ":".join(dict.fromkeys([*mine, *_SYSTEM]))}
        beside = os.path.dirname(self.libcuda)
        # A driver of a container or a chroot lies beside a C library that is not the loader's here.
        if beside and _has(beside, "libcuda.so.1") and not _has(beside, "libc.so.6"):
            found["LD_LIBRARY_PATH"] = beside
        return found


def _is_roots(folder: str) -> bool:
    """Whether only root can put a program there, which root would run; so not a folder like /tmp."""
    try:
        trusted.real(folder)
    except (trusted.UntrustedError, OSError):
        return False
    return True


def _has(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


def too_long(pipe: str, name: str = PRIVILEGED) -> str | None:
    """Why no socket of that name fits into the folder, and the remedy; None if one fits."""
    path = os.path.join(pipe, name)
    excess = len(os.fsencode(path)) - _LONGEST_SOCKET
    if excess <= 0:
        return None
    return (
        f"the path of MPS's socket {path} has {excess} bytes more than the {_LONGEST_SOCKET} that fit "
        "(sun_path): set XPU_RUN_DIR to a shorter path"
    )


def said(folder: str) -> str:
    """The ends of a daemon's logs, in one line."""
    found = []
    for name in _LOGS:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
                lines = file.read(_MOST_BYTES).decode(errors="replace").splitlines()
        except OSError:
            continue
        lines = [" ".join(line.split()) for line in lines if line.strip()][-_MOST_LINES:]
        if lines:
            found.append(f"{name}: {' / '.join(lines)}")
    return "; ".join(found) or "it has printed nothing"
