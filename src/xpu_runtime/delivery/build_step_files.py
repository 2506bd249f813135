"""A record of the files that a start made in the root folder of a build's step, which removes them at its
end.

A build makes an image of that folder. Without this the image has empty files and links under the names of the
driver's libraries, and their entries in the loader's cache. A file that someone else put in the place of ours
stays, such as the cache of an ldconfig in the step. There is one record a container, in the run folder; if no
hook tells us of a container's end, its record stays until the next boot.
"""

from __future__ import annotations

import os

from xpu_runtime import jsonlite, paths
from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import files, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The largest file of ours that is compared; nearly all of it is a loader's cache.
_MOST_BYTES = 64 << 20
_LONGEST_ID = 200
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-.")


def write(container_id: str, root: str, pid: int, told: list[Any]) -> None:
    """Keeps the files that Root.made lists of the folder `root`, for the end of the container with the init
    `pid`; ApplyError.

    Without such files nothing is written: a second call of the hook, by the engine's hooks.d, makes none, and
    the record of the first counts.
    """
    path = _path(container_id)
    if not told or not _is_plain(container_id):
        return
    kept = {"root": root, "process": [pid, proc.start_time(pid)], "made": told}
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        files.write_atomic(path, jsonlite.dumps(kept).encode(), mode=0o600)
    except OSError as error:
        raise ApplyError(f"cannot write {path}: {error.strerror}") from error


def take_away(container_id: str) -> None:
    """Removes the files that were made for the container, if it was a step. A file that cannot be removed
    stays.

    Another engine may have a container of the same id that still runs, and would lose its driver. The record
    goes last: where a start worker is killed meanwhile, the hook does it again.
    """
    path = _path(container_id)
    if not _is_plain(container_id):
        return
    try:
        told = jsonlite.loads(files.read(path, _MOST_BYTES).decode())
    except (OSError, ValueError):
        return
    if proc.is_alive(*told["process"]):
        return
    from xpu_runtime.linux.rootfs import Root

    try:
        with Root(told["root"]) as root:
            root.unmake(told["made"])
    except OSError:
        pass  # the folder is gone, and nobody makes an image of it
    try:
        os.unlink(path)
    except OSError:
        pass  # another try has been as far


def _is_plain(container_id: str) -> bool:
    """Whether the id can be a file's name; runc allows no other letters in it."""
    return (
        0 < len(container_id) <= _LONGEST_ID and container_id[0] != "." and _LETTERS.issuperset(container_id)
    )


def _path(container_id: str) -> str:
    return os.path.join(paths.in_run_dir(paths.BUILDS), container_id)
