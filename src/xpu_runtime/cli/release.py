"""`xpu release`: gives a grant back by hand.

For what no hook and no reaping has given back; the container itself is not touched.
"""

from __future__ import annotations

import click

from xpu_runtime import granting
from xpu_runtime.cli import completion, containers
from xpu_runtime.cli.screen import printable
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError


@click.command(short_help="Give back the slices of one container by hand.")
@click.argument("container", metavar="ID", shell_complete=completion.containers)
@click.option("--force", is_flag=True, help="Release it even if its container is running.")
def release(container: str, force: bool) -> None:
    """Give back the slices of container ID (its id, the start of it, or its name).

    A container that is still running keeps its devices, without the memory limits that the driver holds: that
    needs --force.

    \b
    Example:
      xpu release 3f2a91
    """
    if not force:
        containers.require_known_processes()
    grants = containers.named(container)
    name = grants[0].container_id
    if not force and any(containers.is_alive(grant) for grant in grants):
        raise XpuError(
            f"container {name} still runs (process {grants[0].pid})",
            "stop it first, or give --force: it then keeps using the device beside the next container there",
        )
    granting.release(load(), grants)
    click.echo(f"{printable(name)}: released")
