"""`xpu release`: takes a grant back by hand."""

from __future__ import annotations

import click

from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc
from xpu_runtime.plan import granting


@click.command()
@click.argument("container", metavar="ID")
@click.option("--force", is_flag=True, help="Release it although its container runs.")
def release(container: str, force: bool) -> None:
    """Give back the slices of container ID (its id or the start of it).

    A running container keeps its devices and loses its memory limits: that needs --force.

    \b
    Example:
      xpu release 3f2a91
    """
    with Ledger() as ledger:
        grants = [grant for grant in ledger.grants() if grant.container_id.startswith(container)]
    exact = [grant for grant in grants if grant.container_id == container]
    found = exact or grants
    names = sorted({grant.container_id for grant in found})
    if not found:
        raise XpuError(f"no container {container!r} holds a slice", "see `xpu ps --no-trunc`")
    if len(names) > 1:
        raise XpuError(f"{container!r} is the start of {', '.join(names)}", "give more of the id")
    running = [grant for grant in found if proc.is_alive(grant.pid, grant.start_time)]
    if running and not force:
        raise XpuError(
            f"container {names[0]} still runs (process {running[0].pid})",
            "stop it, or give --force and know that it goes on using the device without a limit",
        )
    granting.release(load(), found)
    click.echo(f"{names[0]}: released")
