"""Records of containers' settings at creation: the low-level runtime, XPU_CONFIG and XPU_RUN_DIR.

The launcher writes a record of each created container, and follows it in all later commands
(native/launcher/created.c has the reasons, and writes them). A record goes with a `delete` that has
succeeded; `forget_gone` is for containers that have ended otherwise. Opens nothing but records; each is a
symlink whose target is the text.
"""

from __future__ import annotations

import os
import time

from xpu_runtime import paths
from xpu_runtime.config.low_level_runtime import RUNTIME_FOLDERS
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: A fixed path: records are needed to find the run folder.
FOLDER = os.path.join(paths.DEFAULT_RUN_DIR, "created")

_FORMAT = "1"
#: Seconds within which a container that has a record is sure to have come to be, or not to.
_BEGINNING_S = 60.0
#: Seconds for a runtime to say whether it has a container.
_PATIENCE_S = 5.0
_SIGKILL = 9  # the signal module imports enum, functools and more


class Created(Value):
    """A container and its settings at creation; `config` and `run_dir` are "" if they were not set."""

    runtime: str
    config: str
    run_dir: str
    root: str
    """The folder of the low-level runtime's state, behind all symlinks; "" where it is the runtime's own."""
    container_id: str


def _read(path: str) -> Created | None:
    """The record at `path`; None if there is none that can be read, or if it is somebody else's."""
    try:
        text = os.readlink(path)
        owner = os.lstat(path).st_uid
    except OSError:
        return None
    format_, *lines = text.split("\n")
    if format_ != _FORMAT or len(lines) != 5 or owner not in (0, os.geteuid()):
        return None
    found = Created(*lines)
    return found if found.runtime.startswith("/") else None


def records() -> Iterator[tuple[str, Created]]:
    """Each record with its path. OSError where they cannot be listed; that there are none is no error."""
    try:
        names = os.listdir(FOLDER)
    except FileNotFoundError:
        return
    for name in sorted(names):
        path = os.path.join(FOLDER, name)
        found = _read(path)
        if found is not None:
            yield path, found


def of_this_run_dir() -> list[tuple[str, Created]]:
    """As `records`, for containers that were created with the caller's run folder, in any spelling."""
    own = os.path.realpath(paths.run_dir())
    return [each for each in records() if os.path.realpath(each[1].run_dir or paths.DEFAULT_RUN_DIR) == own]


def program(created: Created) -> str | None:
    """The runtime that created the container. If it is gone, the one of the same name in the system's folders
    (as runtime_again in runtime.c), or None."""
    name = os.path.basename(created.runtime)
    candidates = [created.runtime, *(os.path.join(folder, name) for folder in RUNTIME_FOLDERS)]
    return next((each for each in candidates if os.path.isfile(each) and os.access(each, os.X_OK)), None)


def forget_gone() -> None:
    """Removes the records of containers of this run folder that have ended without a `delete`, such as those
    of `runc run`, and of those that never came to be. OSError."""
    for path, created in of_this_run_dir():
        try:
            before = os.lstat(path)
            if time.time() - before.st_mtime <= _BEGINNING_S or _has_state(created) or has_container(created):
                continue
            now = os.lstat(path)  # the runtime takes its time, in which the id may be used again
            if (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns):
                os.unlink(path)
        except FileNotFoundError:
            continue  # deleted meanwhile


def _has_state(created: Created) -> bool:
    """Whether the state files of runc or crun exist. A runtime of another kind may have them elsewhere."""
    return os.path.isdir(os.path.join(_root(created), created.container_id))


def has_ended(created: Created) -> bool:
    """Whether the container's folder in its runtime's state is gone: the runtime itself may be gone. False if
    that folder cannot be found."""
    return os.path.isdir(_root(created)) and not _has_state(created)


def _root(created: Created) -> str:
    return created.root or os.path.join("/run", os.path.basename(created.runtime))


def has_container(created: Created) -> bool:
    """Whether the runtime that created the container reports it, or does not answer in time: a container
    counts as there until it is known to be gone."""
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    root = ["--root", created.root] if created.root else []
    runtime = program(created)
    if runtime is None:
        return False
    words = [runtime, *root, "state", created.container_id]
    try:
        child = os.posix_spawn(runtime, words, os.environ, file_actions=nowhere)
    except OSError:
        return False
    import select  # a start rarely asks

    fd = os.pidfd_open(child)
    ended = select.select([fd], [], [], _PATIENCE_S)[0]
    os.close(fd)
    if not ended:
        os.kill(child, _SIGKILL)
    status = os.waitpid(child, 0)[1]
    return not ended or os.waitstatus_to_exitcode(status) == 0
