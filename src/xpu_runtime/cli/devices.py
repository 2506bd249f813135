"""`xpu devices`: what the node has, and how much of it is granted.

Names no vendor and no backend: both say themselves what they are.
"""

from __future__ import annotations

from typing import Any

import click

from xpu_runtime.cli.table import json_option, memory, percent, print_json, print_table
from xpu_runtime.config.load import load
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import Use
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import choose, registry
from xpu_runtime.vendors import discovery, marks
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors.inventory import Device


@click.command()
@json_option
def devices(as_json: bool) -> None:
    """List the devices of this node and what is granted of each.

    Asks the driver again, so that containers started from now on get a changed MIG layout too. LIMITS BY is
    what would hold the limit of a slice of that device's memory, and how strongly; for a whole MIG device
    that is the hardware. A drained device gets no new slices (`xpu drain`), a reserved one only those of
    containers that name its reservation (`xpu reserve`).

    \b
    Example:
      xpu devices
      xpu devices --json | jq '.[] | select(.slices == 0).uuid'
    """
    root, simulated = discovery.driver_root(load())
    inventory = discovery.refresh(root, simulated)
    with Ledger() as ledger:
        uses = ledger.uses()
    told = marks.read()
    rows: list[dict[str, Any]] = []
    for device in inventory.devices:
        use = uses.get(device.uuid, Use())
        reserved = told.reservation(device)
        held = choose.for_memory(inventory, device)
        rows.append(
            {
                "index": plain_index(device.index),
                "uuid": device.uuid,
                "name": device.name,
                "memory_bytes": device.memory_bytes,
                "memory_granted_bytes": use.memory_bytes,
                "cores_granted": use.cores,
                "slices": use.slices,
                "healthy": device.fault is None,
                "drained": told.why_drained(device),
                "reserved_for": reserved.name if reserved else None,
                "reserved_reason": reserved.reason if reserved else None,
                "simulated": inventory.simulated,
                "memory_backend": held.memory_backend,
                "memory_strength": held.memory_strength,
            }
        )
    if as_json:
        print_json(rows)
        return
    if not rows:
        raise DeviceError(node.why_empty(inventory))
    print_table(
        ("INDEX", "NAME", "MEMORY", "GRANTED", "CORES", "SLICES", "LIMITS BY", "STATE", "UUID"),
        [
            (
                row["index"],
                row["name"],
                memory(row["memory_bytes"]),
                memory(row["memory_granted_bytes"]),
                percent(row["cores_granted"]),
                str(row["slices"]),
                _held_by(row),
                _state(device, told),
                row["uuid"],
            )
            for row, device in zip(rows, inventory.devices)
        ],
    )
    kind = "simulated " if inventory.simulated else ""
    click.echo("\n" + "\n".join(f"{kind}{driver.summary}" for driver in inventory.drivers))
    for problem in inventory.problems:
        click.echo(f"xpu: {problem}", err=True)


def _state(device: Device, told: marks.Marks) -> str:
    drained, reserved = told.why_drained(device), told.reservation(device)
    states = [marks.as_drained(drained)] if drained is not None else []
    states += [marks.as_reserved(reserved)] if reserved is not None else []
    return "; ".join([*states, *([device.fault] if device.fault else [])]) or "healthy"


def _held_by(row: dict[str, Any]) -> str:
    if row["memory_backend"] == registry.NONE:
        return "nothing"
    return f"{row['memory_backend']} ({row['memory_strength']})"
