"""Ends of containers that are entered without the ledger being opened: by the hook in C, as Python, only to
remove a row, would be most of a container's end.

A grant of whose end nothing is left once its cgroup and its folder are gone has a note in the run folder,
`running/CONTAINER-ID`: which grant it is, and what must be gone. At the container's end
native/launcher/end.c looks whether that is so, and moves the note to `ended/GRANT`, with the time as that of
the file. Whoever reads or writes the ledger next takes these grants out of it first, in a transaction, and
then removes the notes; if it is killed in between, the next one does. So the ledger stays the only record of
who holds what: a note that is missing, or not the container's, costs it a Python at its end, and one that is
lost leaves a grant that is reaped. There are never more ends than grants. Knows files, and of grants what
they are called.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from xpu_runtime.ledger.grants import Grant

#: Of a note: as in native/launcher/end.c.
FORMAT = 1
_RUNNING, _ENDED = "running", "ended"
_LONGEST_ID = 200
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-.")


def is_plain(container_id: str) -> bool:
    """Whether the id can be a file's name; runc allows no other letters in it."""
    return (
        0 < len(container_id) <= _LONGEST_ID and container_id[0] != "." and _LETTERS.issuperset(container_id)
    )


def note(grant: Grant, ledger: str, pid_namespace: int) -> None:
    """Leaves the end of the container that has `grant` to the hook in C. `pid_namespace` is where its process
    has its number. Where the note cannot be written there is none."""
    fields = {
        "format": FORMAT,
        "grant": grant.name,
        "process": f"{grant.pid} {grant.start_time}",
        "pid_namespace": pid_namespace,
        "bundle": grant.bundle,
        "cgroup": grant.cgroup,
    }
    lines = [f"{key}={value}" for key, value in fields.items()]
    if not is_plain(grant.container_id) or any("\n" in line for line in lines):
        return
    path = _path(ledger, _RUNNING, grant.container_id)
    data = os.fsencode("\n".join(lines) + "\n")
    try:
        fd = _create(path)
        try:
            whole = os.write(fd, data) == len(data)
        finally:
            os.close(fd)
    except OSError:
        whole = False
    if not whole:  # what was there before is another container's, or of another time
        _remove(path)


def _create(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        running = os.path.dirname(path)
        # The second one last: where it is, both are.
        for folder in (os.path.join(os.path.dirname(running), _ENDED), running):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)


def forget(grant: Grant, ledger: str) -> None:
    """Removes the note of a container whose grant is taken out of the ledger."""
    withdraw(ledger, grant.container_id)


def withdraw(ledger: str, container_id: str) -> None:
    """Removes the note of a container with whose end more is to be done than the hook in C does."""
    if is_plain(container_id):
        _remove(_path(ledger, _RUNNING, container_id))


def sweep(ledger: str, containers: Collection[str]) -> None:
    """Removes the notes of all but these containers, who have a grant; under the ledger's lock."""
    for name in _names(_path(ledger, _RUNNING)):
        if name not in containers:
            _remove(_path(ledger, _RUNNING, name))


def are_entered(ledger: str) -> bool:
    """Whether an end was entered that may not be in the ledger yet."""
    return bool(_names(_path(ledger, _ENDED)))


def entered(ledger: str) -> list[tuple[str, float]]:
    """The names of grants whose containers' ends were entered, the first to end first, each with its time in
    seconds since the epoch."""
    found = []
    for name in _names(_path(ledger, _ENDED)):
        try:
            found.append((name, os.stat(_path(ledger, _ENDED, name)).st_mtime))
        except OSError:
            continue  # another process has taken it in
    return sorted(found, key=lambda each: each[1])


def take_in(ledger: str, names: Collection[str]) -> None:
    """The ledger has these ends now, or never had their grants."""
    for name in names:
        _remove(_path(ledger, _ENDED, name))


def time_of(when: float, grant: Grant) -> float:
    """The time of an end as an event has it, whatever the clock was set to since."""
    return max(grant.created, min(when, time.time()))


def _path(ledger: str, *names: str) -> str:
    return os.path.join(os.path.dirname(ledger), *names)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
