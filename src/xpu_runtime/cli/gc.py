"""`xpu gc`: takes back what containers hold that no longer exist."""

from __future__ import annotations

import click

from xpu_runtime.cli.table import json_option, memory, print_json
from xpu_runtime.config.load import load
from xpu_runtime.plan import granting


@click.command()
@json_option
def gc(as_json: bool) -> None:
    """Give back the slices of containers that are gone.

    Every new container does this by itself; use it to see free figures at once after a crash.

    \b
    Example:
      xpu gc
    """
    dead = granting.reap(load())
    if as_json:
        print_json([{"container_id": grant.container_id, "pid": grant.pid} for grant in dead])
        return
    for grant in dead:
        what = ", ".join(f"{memory(part.memory_bytes)} of GPU {part.device_index}" for part in grant.slices)
        click.echo(f"{grant.container_id}: gave back {what}")
    if not dead:
        click.echo("nothing to give back: every grant's container is alive")
