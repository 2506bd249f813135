"""`xpu release`: takes a grant back by hand."""

from __future__ import annotations

import click

from xpu_runtime.cli import containers
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.plan import granting


@click.command(short_help="Give back the slices of one container by hand.")
@click.argument("container", metavar="ID")
@click.option("--force", is_flag=True, help="Release it although its container runs.")
def release(container: str, force: bool) -> None:
    """Give back the slices of container ID (its id or the start of it).

    A running container keeps its devices, and loses the memory limits that the driver holds: that needs
    --force.

    \b
    Example:
      xpu release 3f2a91
    """
    if not force:
        containers.require_known_processes()
    found = containers.named(container)
    name = found[0].container_id
    if not force and any(containers.is_alive(grant) for grant in found):
        raise XpuError(
            f"container {name} still runs (process {found[0].pid})",
            "stop it, or give --force and know that it goes on using the device beside whoever gets it next",
        )
    granting.release(load(), found)
    click.echo(f"{name}: released")
