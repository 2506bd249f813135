"""The first steps of a forked process, which must end with its parent and keep none of its descriptors.

A process that hangs in a driver would keep locks and pages open for as long.
"""

from __future__ import annotations

import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int) -> None:
    """Has this process killed when its parent, process `parent`, ends, however that does."""
    import ctypes  # in the process that needs it

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def silence() -> None:
    """Has the standard streams lead nowhere: libraries and programs may print anything."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)


def signal_name(number: int) -> str:
    """As `SIGSEGV`."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def keep_only(*kept: int) -> None:
    """Closes all descriptors from 3 on but those: the parent's locks and pages among them."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the one of the listing
