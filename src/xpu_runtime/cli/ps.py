"""`xpu ps`: who holds which slice, and what holds its limits."""

from __future__ import annotations

from typing import Any

import click

from xpu_runtime.cli.table import json_option, memory, percent, print_json, print_table, timestamp
from xpu_runtime.config.load import load
from xpu_runtime.devices import inventory
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant, Slice
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import cgroups, proc
from xpu_runtime.quota import usage


@click.command()
@click.option("--no-trunc", is_flag=True, help="Print container ids in full.")
@json_option
def ps(no_trunc: bool, as_json: bool) -> None:
    """List the slices that containers hold.

    ENFORCED BY names what holds each limit and how strongly: hard (the container cannot get round it)
    or soft; `unenforced` is booked and held by nothing.

    \b
    Example:
      xpu ps
      xpu ps --json | jq '.[].container_id'
    """
    with Ledger() as ledger:
        grants = ledger.grants()
    used = _used(grants)
    entries = [
        _entry(grant, part, used.get((grant.id, part.device_uuid)))
        for grant in grants
        for part in grant.slices
    ]
    if as_json:
        print_json(entries)
        return
    print_table(
        ("CONTAINER", "GPU", "MEMORY", "USED", "CORES", "ENFORCED BY", "MODE", "STATE", "PID", "CREATED"),
        [
            (
                e["container_id"] if no_trunc else e["container_id"][:12],
                e["device_index"],
                "whole device" if e["memory_bytes"] is None else memory(e["memory_bytes"]),
                memory(e["memory_used_bytes"]),
                percent(e["cores"]),
                _enforced(e),
                e["mode"],
                e["state"],
                str(e["pid"]),
                e["created"],
            )
            for e in entries
        ],
    )


def _used(grants: list[Grant]) -> dict[tuple[int, str], int]:
    """Bytes in use by (grant, device); what the driver does not tell is left out."""
    if not grants:
        return {}
    try:
        return usage.measure(inventory.load(load()), grants)
    except XpuError as error:
        click.echo(f"xpu: memory in use is not known: {error}", err=True)
        return {}


def _entry(grant: Grant, part: Slice, used: int | None) -> dict[str, Any]:
    alive = proc.is_alive(grant.pid, grant.start_time) or (
        bool(grant.cgroup) and cgroups.has_processes(grant.cgroup)
    )
    return {
        "container_id": grant.container_id,
        "device_index": plain_index(part.device_index),
        "device_uuid": part.device_uuid,
        "memory_bytes": part.memory_bytes if part.limited else None,
        "memory_used_bytes": used,
        "cores": part.cores,
        **part.holding.as_dict(),
        "mode": grant.mode,
        "state": grant.state if alive else "dead",
        "pid": grant.pid,
        "created": timestamp(grant.created),
    }


def _enforced(entry: dict[str, Any]) -> str:
    """`memory: driver (hard), cores: unenforced`; a dash where there is no limit."""
    parts = []
    for kind in ("memory", "cores"):
        strength, backend = entry[f"{kind}_strength"], entry[f"{kind}_backend"]
        if strength:
            parts.append(f"{kind}: {strength if strength == 'unenforced' else f'{backend} ({strength})'}")
    return ", ".join(parts) or "-"
