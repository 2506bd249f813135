"""`xpu release`: takes a grant back by hand."""

from __future__ import annotations

import click

from xpu_runtime.cli import containers
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
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
    found = containers.named(container)
    name = found[0].container_id
    running = [grant for grant in found if proc.is_alive(grant.pid, grant.start_time)]
    if running and not force:
        raise XpuError(
            f"container {name} still runs (process {running[0].pid})",
            "stop it, or give --force and know that it goes on using the device without a limit",
        )
    granting.release(load(), found)
    click.echo(f"{name}: released")
