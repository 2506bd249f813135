"""`xpu gc`: takes back what containers hold that no longer exist."""

from __future__ import annotations

import click

from xpu_runtime.cli.table import json_option, memory, print_json
from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.devices import inventory
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.plan import granting
from xpu_runtime.quota import library, unaccounted


@click.command()
@json_option
def gc(as_json: bool) -> None:
    """Give back the slices of containers that are gone.

    Every new container does this by itself; use it to see at once what is free after a crash. Containers that
    are seen to go round their limit are told of, here and in the system's log.

    \b
    Example:
      xpu gc
    """
    config = load()
    dead = granting.reap(config)
    _look_at_the_living(config)
    if as_json:
        print_json([{"container_id": grant.container_id, "pid": grant.pid} for grant in dead])
        return
    for grant in dead:
        what = ", ".join(f"{memory(part.memory_bytes)} of GPU {part.device_index}" for part in grant.slices)
        click.echo(f"{grant.container_id}: gave back {what}")
    if not dead:
        click.echo("nothing to give back: every grant's container is alive")


def _look_at_the_living(config: Config) -> None:
    with Ledger() as ledger:
        grants = [grant for grant in ledger.grants() if library.holds(grant.slices)]
    if not grants:
        return
    try:
        found = inventory.load(config)
    except XpuError:
        return  # giving back needs no driver
    for line in unaccounted.warn(grants, unaccounted.find(found, grants)):
        click.echo(f"xpu: {line}", err=True)
