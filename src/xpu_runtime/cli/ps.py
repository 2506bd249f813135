"""`xpu ps`: who holds which slice, and what holds its limits.

Only shows what the ledger and the backends tell; names no backend.
"""

from __future__ import annotations

from typing import Any

import click

from xpu_runtime.agent import status
from xpu_runtime.cli import containers, names
from xpu_runtime.cli.table import json_option, memory, print_json, print_table, share, used_of
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import sharing, unaccounted
from xpu_runtime.limits.usage import Usage
from xpu_runtime.vendors import discovery

#: How time is shared where the agent need not do anything: no choice, or each has its cap.
_WITHOUT_AGENT = ((None, None), ("fixed", "normal"))


@click.command()
@click.option("--no-trunc", is_flag=True, help="Print container ids in full.")
@json_option
def ps(no_trunc: bool, as_json: bool) -> None:
    """List the slices that containers hold.

    USED is what the container's processes have, of what they may have; `(2G unaccounted)` is what the driver
    counts and the container's account has not, where that is more than 256M a process: a program goes round
    the interposer libraries. CORES is the cap; without one, `equal turns` says that the driver's time slices
    share the device among the containers that have work, and `side by side` that they run at the same time
    (mps). GOT is the share of the device's time that the container had in the last
    moments, where its CORES are capped: it may be below the cap while the container wants no more, or
    while others use the card. ENFORCED BY names what holds each
    limit and how strongly: hard (the container cannot get round it) or soft; `unenforced` is booked and
    held by nothing. NAME is docker's name, in Kubernetes NAMESPACE/POD/CONTAINER, else of containerd
    NAMESPACE/ID (with nerdctl its name for the id); a dash where the engine does not tell it in a second.

    \b
    Example:
      xpu ps
      xpu ps --json | jq '.[].container_id'
    """
    with Ledger() as ledger:
        grants = ledger.grants()
    if grants and not containers.processes_are_known():
        click.echo("xpu: which of these still run is not known in this PID namespace", err=True)
    used, beyond = _used(grants)
    slices = [(grant, position, slice_) for grant in grants for position, slice_ in enumerate(grant.slices)]
    shares = sharing.got(grants)
    known = names.of(grants)
    entries = [
        containers.entry(
            grant, position, used.get((grant.id, position)), beyond.get((grant.id, position)), shares, known
        )
        for grant, position, _ in slices
    ]
    for grant, position, slice_ in slices:
        if (got := shares.get((grant.id, position))) is not None and got.unmeasured:
            click.echo(
                f"xpu: container {grant.container_id}: what it uses of the time of GPU {slice_.device_index} "
                "cannot be measured now: guesses hold its cap, by a stricter rule",
                err=True,
            )
    _tell_of_the_agent(entries)
    for grant in grants:
        for problem in containers.problems(grant):
            click.echo(f"xpu: container {grant.container_id}: {problem}", err=True)
    if as_json:
        print_json(entries)
        return
    print_table(
        (
            "CONTAINER",
            "GPU",
            "MEMORY",
            "USED",
            "CORES",
            "GOT",
            "ENFORCED BY",
            "MODE",
            "STATE",
            "PID",
            "CREATED",
            "NAME",
        ),
        [
            (
                e["container_id"] if no_trunc else e["container_id"][:12],
                e["device_index"],
                "whole device" if e["memory_bytes"] is None else memory(e["memory_bytes"]),
                used_of(e["memory_used_bytes"], slice_.memory_bytes, e["memory_unaccounted_bytes"]),
                containers.cores(e),
                share(e["cores_got_percent"]),
                containers.enforced(e),
                e["mode"],
                e["state"],
                str(e["pid"]),
                e["created"],
                e["name"] or "-",
            )
            for e, (_, _, slice_) in zip(entries, slices)
        ],
    )


def _tell_of_the_agent(entries: list[dict[str, Any]]) -> None:
    """On stderr: that it does not run where it is needed, and whom it holds more strictly."""
    running = status.ask()
    if running is None and any(
        (e["cores_sched"], e["cores_priority"]) not in _WITHOUT_AGENT for e in entries
    ):
        click.echo(f"xpu: {containers.NO_AGENT}", err=True)
    for device in running["devices"] if running else ():
        for each in device["slices"]:
            if each["held_strictly"]:
                told = f"container {each['container_id']} is held more strictly: {each['held_strictly']}"
                click.echo(f"xpu: {told}", err=True)


def _used(grants: list[Grant]) -> tuple[dict[tuple[int, int], int | None], unaccounted.Amounts]:
    """Bytes in use by grant and slice, None where it is not known; and what accounts lack."""
    if not grants:
        return {}, {}
    try:
        inventory = discovery.load(load())
    except XpuError as error:
        click.echo(f"xpu: memory in use is not known: {error}", err=True)
        return {}, {}
    usage = Usage(inventory)
    used = {
        (grant.id, position): usage.in_use(grant, position)
        for grant in grants
        for position in range(len(grant.slices))
    }
    for problem in usage.problems:
        click.echo(f"xpu: memory in use is not known: {problem}", err=True)
    beyond = unaccounted.find(inventory, grants)
    for line in unaccounted.warn(grants, beyond):
        click.echo(f"xpu: {line}", err=True)
    return used, beyond
