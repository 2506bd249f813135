"""Identity and state of processes, from /proc (proc(5)).

A process id is reused after its process has ended; together with the start time and the boot id it identifies
one process. Knows nothing of containers.
"""

from __future__ import annotations

import os
import time

from xpu_runtime.value import Value

#: A bit of the flags in /proc/PID/stat (include/linux/sched.h).
_PF_EXITING = 0x4
_STAT_LIMIT = 4096
_VIEW = ("ns/mnt", "ns/pid", "ns/user", "ns/cgroup", "root")
#: States of a process that has ended, even if its parent never waits for it: Z zombie, X and x dead.
_ENDED = b"ZXx"


class Caller(Value):
    """The process that a container is created for: an entry point asks for it once, in its `main`.

    Later functions take the value, so that a resident agent can serve another process. `start_time` (clock
    ticks since boot) tells the process from a later one of the same number.
    """

    pid: int
    start_time: int
    environment: dict[str, str]
    #: "/" if it has none any more.
    working_folder: str
    #: The begin of its call, by time.monotonic().
    began: float


def this_process() -> Caller:
    """The calling process itself; its program was loaded first, which its processor's time tells."""
    began = time.monotonic() - time.process_time()
    pid = os.getpid()
    try:
        folder = os.getcwd()
    except OSError:
        folder = "/"
    return Caller(pid, start_time(pid) or 0, dict(os.environ), folder, began)


_boot_id = ""


def boot_id() -> str:
    """The kernel's random id of this boot, 36 characters. Read once: no process outlives a boot, and a start
    asks seven times."""
    global _boot_id
    if not _boot_id:
        _boot_id = _read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
    return _boot_id


def pid_namespace(pid: int | None = None) -> int:
    """The number of the PID namespace that `pid`, or this process, is in (namespaces(7)).

    OSError where the process has ended, or is another user's and we are not root.
    """
    return os.stat(f"/proc/{'self' if pid is None else pid}/ns/pid").st_ino


def view(pid: int | None = None) -> list[tuple[int, int]]:
    """The namespaces and the root folder of `pid`, or of this process: with others a path or a process id
    means something else there. OSError if it has ended."""
    found = [os.stat(f"/proc/{'self' if pid is None else pid}/{each}") for each in _VIEW]
    return [(each.st_dev, each.st_ino) for each in found]


def start_time(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None if there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def seconds(ticks: int) -> float:
    """`start_time` in seconds of CLOCK_BOOTTIME."""
    return ticks / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int, started: int) -> bool:
    """Whether the process `pid` that started at `started` still runs; a zombie does not.

    The kernel also shows a process as one whose first thread has ended (proc_pid_stat(5)). While others of
    its threads run, they have its memory and its devices.
    """
    fields = _stat(pid)
    return bool(fields) and (fields[0] not in _ENDED or int(fields[17]) > 1) and int(fields[19]) == started


def exists(pid: int) -> bool:
    """Whether any process, or zombie, has this number now: less to ask than `is_alive`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def name(pid: int) -> str:
    """The program's name, at most 15 characters, as the process has set it; "" if there is no process."""
    try:
        text = _read(f"/proc/{pid}/comm").decode("ascii", "replace").rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return printable(text)


def parent(pid: int) -> int:
    """The process that has `pid` as a child; 0 where it is in none of our namespace, or has ended."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def awaits_start(pid: int) -> bool:
    """Whether the process is a container's that was created and not started: runc waits in it, and no program
    of the container has run. By its name, so that a container can say so of itself."""
    return name(pid) == "runc:[2:INIT]"


def kill(pid: int, started: int) -> None:
    """SIGKILL for the process `pid` that started at `started`; no error where it has ended."""
    import signal  # a start rarely kills anything, and the enums of signals take a millisecond

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_alive(pid, started):  # looked at while `fd` has it: no other process gets the signal
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def printable(text: str) -> str:
    """A process's own name, with `?` for each letter that is not printable ASCII."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)


def innermost_pid(pid: int) -> int | None:
    """The id of process `pid` in its own PID namespace; None if there is no such process."""
    try:
        # Read by lines: the groups before the NSpid line may be 65536.
        with open(f"/proc/{pid}/status", "rb") as lines:
            for line in lines:
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None


def is_hosts_root() -> bool:
    """Whether this process is root in the first user namespace, where the host's devices are.

    All ids are mapped there, to themselves, and in no other: user_namespaces(7).
    """
    return os.geteuid() == 0 and _read("/proc/self/uid_map").split() == [b"0", b"0", b"4294967295"]


def root_user(pid: int) -> tuple[int, int]:
    """The user and group ids here of root in the user namespace of `pid`; (0, 0) if it is the same
    namespace."""
    return _first_mapped(f"/proc/{pid}/uid_map"), _first_mapped(f"/proc/{pid}/gid_map")


def _first_mapped(path: str) -> int:
    with open(path, "rb") as lines:
        for line in lines:
            inside, outside, _ = line.split()
            if int(inside) == 0:
                return int(outside)
    return 0


def is_ending(pid: int) -> bool:
    """Whether process `pid` is ending, or has ended: a zombie, too."""
    fields = _stat(pid)
    return not fields or bool(int(fields[6]) & _PF_EXITING)


def in_pid_namespace_of(pid: int) -> list[int] | None:
    """All processes of the PID namespace of `pid`; None if that is our own, empty if `pid` has ended."""
    try:
        theirs = os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return []
    if theirs == os.readlink("/proc/self/ns/pid"):
        return None
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == theirs:
                found.append(int(entry))
        except OSError:
            continue  # ended meanwhile
    return found


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third (state) on; empty if there is no such process."""
    if pid <= 0:
        return []
    try:
        data = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The name before them is set by the process: it may contain spaces and brackets.
    return data[data.rindex(b")") + 2 :].split()


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STAT_LIMIT)
    finally:
        os.close(fd)
