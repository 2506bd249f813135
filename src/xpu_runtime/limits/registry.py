"""The backends that are registered, by name: each file in backends/ is one.

Importing a backend costs time on a container's start, so it is imported when it is first asked for. A choice
among backends asks all of them (`every`). Carrying out or ending a grant imports only those that the grant
names.
"""

from __future__ import annotations

import os

from xpu_runtime import extensions
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import KINDS, MEMORY
from xpu_runtime.limits.backend import HARD, Backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from xpu_runtime.ledger.grants import Grant, Slice

#: In the place of a backend's name: the limit is booked, and nothing holds it.
NONE = "none"


def known_names() -> tuple[str, ...]:
    return extensions.backends()


def load(name: str) -> Backend:
    """The backend of that name; DeviceError where none is registered (any more)."""
    if name not in extensions.backends():
        raise DeviceError(f"there is no backend {name!r} on this node", "install the runtime again")
    return _import(name)


def _import(name: str) -> Backend:
    try:
        # importlib itself is not on a container's path.
        backend: Backend = __import__(f"{__package__}.backends.{name}", fromlist=["BACKEND"]).BACKEND
        if name != backend.NAME:
            raise ValueError(f"its NAME is {backend.NAME!r}")
    except Exception as error:  # any error of a module that someone has put there
        raise DeviceError(
            f"the backend {os.path.dirname(__file__)}/backends/{name}.py cannot be loaded: {error!r}",
            "mend or remove that file, or install the runtime again",
        ) from error
    return backend


def every() -> list[Backend]:
    """All registered backends, the strongest first."""
    found = [_import(name) for name in extensions.backends()]
    return sorted(found, key=lambda backend: backend.STRONGEST != HARD)


def holder(slice_: Slice, kind: str) -> Backend | None:
    """The backend that holds the limit of that kind; None where none does. DeviceError as `load`."""
    name = _name(slice_, kind)
    return None if name is None else load(name)


def known_holder(slice_: Slice, kind: str) -> Backend | None:
    """As `holder`; None if that backend is not registered any more."""
    name = _name(slice_, kind)
    return None if name not in extensions.backends() else _import(name)


def accountant(grant: Grant) -> Backend | None:
    """The backend whose account of the grant counts; None if none keeps one.

    Of several it is the first that holds memory of the grant, or simply the first: all readers must use the
    same account.
    """
    keepers = [backend for backend in known(grant.slices) if backend.KEEPS_ACCOUNT]
    of_memory = {slice_.holder(MEMORY) for slice_ in grant.slices}
    return next((each for each in keepers if each.NAME in of_memory), keepers[0] if keepers else None)


def holding(slices: Iterable[Slice]) -> list[Backend]:
    """The backends that hold limits of these slices; DeviceError as `load`."""
    return [load(name) for name in _named(slices)]


def known(slices: Iterable[Slice]) -> list[Backend]:
    """As `holding`, without those that are not registered any more.

    After a downgrade the ledger may name a backend of the newer version: showing and ending containers goes
    on with the others.
    """
    there = extensions.backends()
    return [_import(name) for name in _named(slices) if name in there]


def _named(slices: Iterable[Slice]) -> list[str]:
    names = {_name(slice_, kind) for slice_ in slices for kind in KINDS}
    return sorted(name for name in names if name is not None)


def _name(slice_: Slice, kind: str) -> str | None:
    """The name of the backend that holds the limit of that kind; None where none does."""
    name = slice_.holder(kind)
    return None if name == NONE else name
