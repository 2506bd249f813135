"""The common part of `xpu drain`, `reserve`, `undrain` and `unreserve`.

candidates.py applies marks to requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import click

from xpu_runtime.cli import reaping
from xpu_runtime.cli.terminal.screen import printable
from xpu_runtime.cli.terminal.table import memory
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.config.load import load
from xpu_runtime.errors import ConfigError, DeviceError, XpuError
from xpu_runtime.ledger import events
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.observe import driver_questions
from xpu_runtime.observe.names import Names
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors import marks
from xpu_runtime.vendors.inventory import Inventory


def mark(
    selectors: tuple[str, ...],
    write: Callable[[str], None],
    kind: str,
    text: str,
    said: Callable[[str], str],
) -> None:
    """Calls `write` with the UUID of each device, records an event of that kind, and prints the new state
    (`said`) and the containers that keep a slice. DeviceError, with nothing written, if a selector names no
    device. A whole UUID is accepted as it is if the driver does not answer: the operator must be able to
    drain such a device."""
    config = _config()
    try:
        inventory = driver_questions.inventory(config)
    except DeviceError as error:
        if not all(map(_UUID.fullmatch, selectors)):
            raise DeviceError(error.what, f"give a device's whole UUID, or {error.todo}") from None
        inventory = None
    uuids = list(dict.fromkeys(each if inventory is None else _uuid(inventory, each) for each in selectors))
    for uuid in uuids:
        write(uuid)
    # Starts decide with the ledger locked: from now on they see this mark.
    done = "; ".join(f"{each} is {said(each)}" for each in uuids)
    with _done(done, "no event could be written"), Ledger() as ledger:
        ledger.note(kind, "", [_part(inventory, uuid) for uuid in uuids], text)
    with _done(done, "its present holders are not known"):
        reaping.reap(config)
        with Ledger() as ledger:
            grants = ledger.grants()
    names = Names()
    for uuid in uuids:
        unsure = "" if inventory is not None else " (if there is one: the driver does not tell)"
        click.echo(f"{uuid} is {said(uuid)}{unsure}")
        devices = inventory.devices if inventory is not None else ()
        parts = {uuid, *(device.uuid for device in devices if device.parent == uuid)}
        holding = [grant for grant in grants if any(each.device_uuid in parts for each in grant.slices)]
        names.learn(holding)
        for grant in holding:
            known = names.of(grant)
            who = printable(grant.container_id[:12] + (f" ({known})" if known else ""))
            for slice_ in grant.slices:
                if slice_.device_uuid in parts:
                    click.echo(f"  {who} keeps {memory(slice_.memory_bytes)} of it")


def unmark(selectors: tuple[str, ...], mark: str, missing: str, kind: str, said: str) -> None:
    """Removes `mark` (marks.DRAINED, RESERVED) from each device, with an event of that kind; `missing` is
    said of one that has none."""
    # A UUID also names a device that is not there any more.
    told = marks.read()
    known = told.drained if mark == marks.DRAINED else told.reserved
    try:
        inventory = driver_questions.inventory(_config())
    except XpuError:
        if not all(_marked(known, selector) for selector in selectors):
            raise
        inventory = None
    marked = {}
    for selector in selectors:
        uuid = _marked(known, selector) or (selector if inventory is None else _uuid(inventory, selector))
        if uuid not in known:
            if inventory is not None and (gpu := _parent(inventory, uuid)) in known:
                command = "undrain" if mark == marks.DRAINED else "unreserve"
                raise DeviceError(f"{selector} {missing}, its GPU is", f"xpu {command} {gpu}")
            raise DeviceError(f"{selector} {missing}", "see `xpu devices`")
        marked[uuid] = selector
    for uuid, selector in marked.items():
        if not marks.remove(mark, uuid):
            raise DeviceError(f"{selector} {missing} any more", "see `xpu devices`")
        with _done(f"{uuid} is {said}", "no event could be written"), Ledger() as ledger:
            ledger.note(kind, "", [_part(inventory, uuid)])
        click.echo(f"{uuid} is {said}")


@contextmanager
def _done(what: str, undone: str) -> Iterator[None]:
    """If the rest fails, says which devices are done and which are not."""
    try:
        yield
    except XpuError as error:
        raise XpuError(f"{what}, but {undone}: {error.what}", error.todo) from error


def _config() -> Config:
    """As it is, or without: a mistake in the file must not keep a device in service."""
    try:
        return load()
    except ConfigError as error:
        click.echo(f"xpu: {error}: the defaults are used", err=True)
        return DEFAULTS


def _marked(known: Collection[str], selector: str) -> str | None:
    """The one marked device whose UUID that is, or the start of it, whether it is there or not."""
    found = [uuid for uuid in known if selector == uuid or node.begins(selector, uuid)]
    return found[0] if len(found) == 1 else None


def _part(inventory: Inventory | None, uuid: str) -> events.Part:
    """The device's index, with those of its partitions if a GPU has some; without an index if the device is
    gone."""
    for device in inventory.devices if inventory is not None else ():
        if device.uuid == uuid:
            return events.Part(uuid, device.index)
        if device.parent == uuid:
            return events.Part(uuid, device.gpu)
    return events.Part(uuid)


#: Whole UUIDs of devices: NVIDIA's, and those that vendors/amd.py makes, of which a partition has a number.
_UUID = re.compile(
    r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|GPU-([0-9a-f]{16}|pci-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7])(-[0-9]{1,2})?"
)


def _parent(inventory: Inventory, uuid: str) -> str | None:
    return next((device.parent for device in inventory.devices if device.uuid == uuid), None)


def _uuid(inventory: Inventory, selector: str) -> str:
    """The UUID of the named device, or of the GPU whose MIG devices are named; DeviceError if there
    is none."""
    device = node.find(inventory, selector)
    if device is not None:
        return device.uuid
    gpus = {part.parent for part in inventory.devices if part.parent and node.lists((selector,), part)}
    if len(gpus) != 1:
        why = node.why_not_found(inventory, selector)
        raise DeviceError(f"DEVICE names {selector!r}, {why}", "see `xpu devices`")
    return gpus.pop()
