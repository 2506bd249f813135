"""A backend's state for a device while any container uses it, such as a daemon: its folder and its end.

An existing folder means that there may be something to stop. It is made (`impose`) and ended under the
device's lock. Under the same lock the ledger tells whether it is still needed: a container's row exists
before its `impose` is called, and is gone before the end is. A call that was killed leaves the folder to the
next start, the next end on that device, or `xpu gc`. A container's end looks for the folder, and imports
nothing of this if there is none. This module names no backend.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.errors import ApplyError, XpuError
from xpu_runtime.ledger.grants import KINDS
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import registry
from xpu_runtime.linux.files import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

    from xpu_runtime.ledger.grants import Grant

    #: A backend's name and a device's UUID.
    Kept = tuple[str, str]

#: Seconds for the lock: an end that another process is busy with, or a start, which takes longer.
_END_S, START_S = 3.0, 60.0


def of(backend: str, uuid: str) -> str:
    """The folder of a backend for a device; it need not be there."""
    return paths.in_run_dir(paths.DEVICE_FOLDERS, backend, uuid)


class Locked(Lock):
    """The lock of a backend's folder for a device: a context manager. ApplyError if it cannot be had in time.

    The lock's file stays.
    """

    def __init__(self, backend: str, uuid: str, seconds: float = START_S) -> None:
        super().__init__(of(backend, uuid) + ".lock", seconds)

    def __enter__(self) -> Self:
        try:
            # Sockets there are everybody's: other users of the host must not reach them.
            os.makedirs(paths.in_run_dir(paths.DEVICE_FOLDERS), mode=0o700, exist_ok=True)
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            return super().__enter__()
        except TimeoutError as error:
            raise ApplyError(
                f"{self.path} is {error.strerror}", f"find the process that has it: fuser {self.path}"
            ) from error
        except OSError as error:
            raise ApplyError(f"cannot lock {self.path}: {error.strerror}") from error


def end_unused(grants: Iterable[Grant]) -> None:
    """Ends backends' state for the devices of `grants`, which are released, unless another grant needs it.

    State that cannot be ended now is left: the ended container must not fail for it.
    """
    for kept in sorted({each for grant in grants for each in _named(grant)}):
        if os.path.isdir(of(*kept)):
            _end(kept)


def left() -> list[Kept]:
    """All that backends keep for devices."""
    top = paths.in_run_dir(paths.DEVICE_FOLDERS)
    found: list[Kept] = []
    for backend in _names(top):
        folder = os.path.join(top, backend)
        found += [
            (backend, uuid) for uuid in sorted(_names(folder)) if os.path.isdir(os.path.join(folder, uuid))
        ]
    return found


def needed(grants: Iterable[Grant]) -> set[Kept]:
    """The state that the containers of these grants may use."""
    return {each for grant in grants for each in _named(grant)}


def end_all_unused() -> None:
    """Ends all that no grant needs."""
    for kept in left():
        _end(kept)


def _end(kept: Kept) -> None:
    backend, uuid = kept
    if backend not in registry.known_names():
        return  # after a downgrade: the newer version's to end
    try:
        with Locked(backend, uuid, _END_S):
            with Ledger() as ledger:
                used = kept in needed(ledger.grants())
            if not used:
                registry.load(backend).ended(uuid)
    except (XpuError, OSError):
        pass  # the next end, start or `xpu gc` does it


def _named(grant: Grant) -> set[Kept]:
    return {
        (name, slice_.device_uuid)
        for slice_ in grant.slices
        for kind in KINDS
        if (name := slice_.holder(kind)) not in (None, registry.NONE)
    }


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
