"""`xpu devices`: what the node has, and how much of it is granted."""

from __future__ import annotations

from typing import Any

import click

from xpu_runtime.cli.table import json_option, memory, percent, print_json, print_table
from xpu_runtime.config.load import load
from xpu_runtime.devices import inventory
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import Use
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger


@click.command()
@json_option
def devices(as_json: bool) -> None:
    """List the devices of this node and what is granted of each.

    Asks the driver anew, so that containers started from now on see a changed MIG layout too.

    \b
    Example:
      xpu devices
      xpu devices --json | jq '.[] | select(.slices == 0).uuid'
    """
    root, simulated = inventory.driver_root(load())
    found = inventory.refresh(root, simulated)
    with Ledger() as ledger:
        uses = ledger.uses()
    rows: list[dict[str, Any]] = []
    for device in found.devices:
        use = uses.get(device.uuid, Use())
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
                "simulated": found.simulated,
            }
        )
    if as_json:
        print_json(rows)
        return
    if not rows:
        raise DeviceError(inventory.why_empty(found))
    print_table(
        ("INDEX", "NAME", "MEMORY", "GRANTED", "CORES", "SLICES", "STATE", "UUID"),
        [
            (
                row["index"],
                row["name"],
                memory(row["memory_bytes"]),
                memory(row["memory_granted_bytes"]),
                percent(row["cores_granted"]),
                str(row["slices"]),
                device.fault or "healthy",
                row["uuid"],
            )
            for row, device in zip(rows, found.devices, strict=True)
        ],
    )
    kind = "simulated driver" if found.simulated else "driver"
    limits = "holds memory limits" if found.memory_limits else "leaves memory limits to the wrapper libraries"
    click.echo(f"\n{kind} {found.driver_version}, CUDA {found.cuda_version}, {limits}")
