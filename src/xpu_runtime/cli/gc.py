"""`xpu gc`: gives back the slices of containers that no longer exist.

The same reaping as at a container's start, and a look for running containers that bypass their limit.
"""

from __future__ import annotations

from typing import TypedDict

import click

from xpu_runtime.cli import reaping
from xpu_runtime.cli.terminal.screen import printable
from xpu_runtime.cli.terminal.table import json_option, memory, print_json
from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.doctor.machine import listed
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.limits import unaccounted
from xpu_runtime.observe import driver_questions
from xpu_runtime.start import created


class GivenBackJson(TypedDict):
    """A container that is gone, and whose slices were given back."""

    container_id: str
    #: The process id of its first process, on the host.
    pid: int


@click.command()
@json_option
def gc(as_json: bool) -> None:
    """Give back the slices of containers that are gone.

    The start of every container does this as well; use it to see at once what is free after a crash. Running
    containers that bypass their memory limit are reported here and in the system's log.

    \b
    Example:
      xpu gc
    """
    config = load()
    dead = reaping.reap(config)
    created.forget_gone()
    _report_bypasses(config)
    if as_json:
        given_back: list[GivenBackJson] = [
            {"container_id": grant.container_id, "pid": grant.pid} for grant in dead
        ]
        print_json(given_back)
        return
    for grant in dead:
        what = ", ".join(
            f"{memory(slice_.memory_bytes)} of GPU {slice_.device_index}" for slice_ in grant.slices
        )
        click.echo(f"{printable(grant.container_id)}: gave back {what}")
    if not dead:
        click.echo("nothing to give back: every grant's container is alive")
    with PodLedger() as ledger:
        pods = [printable(allocation.label) for allocation in ledger.allocations()]
    if pods:
        click.echo(f"reservations of pods stay: {listed(pods)} (see `xpu release --help`)")


def _report_bypasses(config: Config) -> None:
    with PodLedger() as ledger:
        grants = unaccounted.with_account(ledger.grants())
    if not grants:
        return
    try:
        inventory = driver_questions.inventory(config)
    except XpuError:
        return  # giving back needs no driver
    for line in unaccounted.warn(grants, driver_questions.amounts_unaccounted(inventory, grants)):
        click.echo(f"xpu: {printable(line)}", err=True)
