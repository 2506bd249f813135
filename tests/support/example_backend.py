"""A backend that only the tests have, as an example of one: it writes both kinds of limits into a file.

The file is in the grant's folder, with a line for each limit; the container has it at /run/example-limits. No
program obeys it; otherwise it behaves like a backend of the product. A test registers it as any backend is
registered, by putting this file into the folder of the backends, as example.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from xpu_runtime.delivery.contribution import Contribution
from xpu_runtime.errors import ApplyError
from xpu_runtime.ledger.grants import CORES, MEMORY, Grant
from xpu_runtime.limits import folders
from xpu_runtime.limits.backend import HARD, Backend, Change, Detail, InForce, Offer, held
from xpu_runtime.request.request import Request
from xpu_runtime.vendors.inventory import Device, Inventory, Library

NAME = "example"
_SIZE = 4096


class Example(Backend):
    NAME = NAME
    KINDS = (MEMORY, CORES)
    STRONGEST = HARD

    def offer(self, kind: str, inventory: Inventory, device: Device, request: Request) -> Offer:
        return Offer(HARD)

    def notes(self, request: Request) -> list[str]:
        return ["it is an example"]

    def folder_size(self, grant: Grant) -> int:
        return _SIZE

    def prepare(self, grant: Grant, request: Request) -> None:
        file(grant).touch()

    def contribution(self, inventory: Inventory, grant: Grant) -> Contribution:
        return _InTheContainer(str(file(grant)))

    def impose(self, inventory: Inventory, grant: Grant) -> None:
        if not grant.cgroup:
            raise ApplyError("the container has no cgroup")
        write(grant, {(position, kind): value for position, kind, value in held(grant, NAME)})

    def open(self, inventory: Inventory, grant: Grant) -> Change:
        return ExampleChange(grant)

    def must_lift(self, grant: Grant) -> bool:
        return os.path.isdir(grant.cgroup) and bool(limits(grant))

    def lift(self, inventory: Inventory, grant: Grant, unless: Callable[[], bool]) -> None:
        if not unless():
            write(grant, {})

    def in_force(self, inventory: Inventory, grant: Grant, position: int, kind: str) -> InForce | None:
        return InForce(limits(grant).get((position, kind)))

    def details(self, grant: Grant, *, holds: bool) -> list[Detail]:
        return [Detail("example", str(file(grant)) if holds else None, f"in {file(grant)}" if holds else "")]


BACKEND = Example()


class ExampleChange(Change):
    """The file of a grant, open for changes; each limit is written at once."""

    def __init__(self, grant: Grant) -> None:
        self._grant = grant

    def set(self, position: int, kind: str, value: int) -> None:
        try:
            write(self._grant, {**limits(self._grant), (position, kind): value})
        except OSError as error:
            raise ApplyError(f"cannot write {file(self._grant)}: {error.strerror}") from error


class _InTheContainer(Contribution):
    def __init__(self, path: str) -> None:
        self._path = path

    def files(self, asked: list[Library], every: tuple[Library, ...]) -> list[Library]:
        return [*asked, Library("file", self._path, "/run/example-limits", "")]


def file(grant: Grant) -> Path:
    """The file on the host."""
    return Path(folders.of(grant)) / "limits"


def limits(grant: Grant) -> dict[tuple[int, str], int]:
    """The limits in it, by position and kind."""
    try:
        lines = file(grant).read_text().split("\n")
    except FileNotFoundError:
        return {}
    words = [line.split() for line in lines if line]
    return {(int(position), kind): int(value) for position, kind, value in words}


def write(grant: Grant, wanted: dict[tuple[int, str], int]) -> None:
    """Writes all limits; the file keeps its inode, because the container has that mounted."""
    text = "".join(f"{position} {kind} {value}\n" for (position, kind), value in sorted(wanted.items()))
    fd = os.open(file(grant), os.O_WRONLY)
    try:
        os.pwrite(fd, text.encode().ljust(_SIZE, b"\n"), 0)
    finally:
        os.close(fd)
