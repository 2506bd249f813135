"""`xpu drain`: takes devices out of service for new slices.

What a drained device means for a request is granting.py's to know.
"""

from __future__ import annotations

import click

from xpu_runtime import granting
from xpu_runtime.cli.table import memory
from xpu_runtime.config.load import load
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger import events
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.vendors import discovery, drained
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors.inventory import Inventory


@click.command(short_help="Give a device to no new container.")
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True)
@click.option("--reason", default="", metavar="TEXT", help="Shown to who is refused, and by `xpu devices`.")
def drain(devices: tuple[str, ...], reason: str) -> None:
    """Give DEVICE (an index or UUID) to no new container, privileged ones included.

    Containers that hold a slice of it keep that until they end. A GPU stands for all of its MIG devices.
    It stays so over reboots, until `xpu undrain`; drained again, it has the new reason.

    \b
    Example:
      xpu drain GPU-1f2e --reason "fan"
      xpu drain 0 1
    """
    config = load()
    inventory = discovery.load(config)
    uuids = [uuid_of(inventory, device) for device in devices]
    for uuid in uuids:
        drained.drain(uuid, reason)
    # Starts are decided with the ledger locked: after this, by what was written here.
    granting.reap(config)
    with Ledger() as ledger:
        ledger.note(events.DRAINED, "", [events.Part(uuid) for uuid in uuids], reason)
        grants = ledger.grants()
    for uuid in uuids:
        click.echo(f"{uuid} is drained")
        parts = {device.uuid for device in inventory.devices if uuid in (device.uuid, device.parent)}
        for grant in grants:
            for slice_ in grant.slices:
                if slice_.device_uuid in parts:
                    click.echo(f"  {grant.container_id[:12]} keeps {memory(slice_.memory_bytes)} of it")


def uuid_of(inventory: Inventory, selector: str) -> str:
    """Of the device that is named, or of the GPU whose MIG devices are; DeviceError where there is none."""
    device = node.find(inventory, selector)
    if device is not None:
        return device.uuid
    gpus = {part.parent for part in inventory.devices if part.parent and node.lists((selector,), part)}
    if len(gpus) != 1:
        raise DeviceError(f"{selector!r}, {node.why_not_found(inventory, selector)}", "see `xpu devices`")
    return gpus.pop()
