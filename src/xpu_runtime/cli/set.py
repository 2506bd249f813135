"""`xpu set`: changes a running container's memory limit."""

from __future__ import annotations

import click

from xpu_runtime.cli import containers
from xpu_runtime.cli.table import json_option, memory, print_json
from xpu_runtime.config.load import load
from xpu_runtime.devices import inventory
from xpu_runtime.devices.inventory import Inventory
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.refusal import Refused
from xpu_runtime.quota import choose, unaccounted
from xpu_runtime.quota.resize import resize
from xpu_runtime.quota.usage import Figures
from xpu_runtime.request.units import Memory, parse_memory

_REFUSED = 3


def _amount(context: click.Context, param: click.Parameter, value: str) -> Memory:
    try:
        return parse_memory(value)
    except ValueError as error:
        raise click.BadParameter(f"{value[:60]!r} {error}; write 6G, 6144M or 50%") from None


def _no_cores(context: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError("The cores of a running container cannot be changed, only its memory (--mem).")


@click.command(short_help="Change the memory limit of a running container.")
@click.argument("container", metavar="ID")
@click.option("--cores", callback=_no_cores, expose_value=False, hidden=True, is_eager=True)
@click.option(
    "--mem",
    "amount",
    callback=_amount,
    required=True,
    metavar="AMOUNT",
    help="6G, 6144M, or 50% of the device.",
)
@click.option("--device", metavar="INDEX", help="Only the slice of this device: its index or UUID.")
@click.option("--force", is_flag=True, help="Even below what is in use: nothing more is given until it fits.")
@json_option
@click.pass_context
def set(
    context: click.Context,
    container: str,
    amount: Memory,
    device: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Change the memory limit of the running container ID (its id or the start of it), at once.

    As with XPU_MEM, each of the container's devices gets this limit, unless --device names one. It is
    booked like a new request, but policy.max_memory does not bind it: that is for what containers ask,
    and this is for who has root on the host. It holds until the container ends: a restart asks for what
    its XPU_MEM says. A change that was cut short is completed by repeating it.

    --json prints the changed slices as `xpu ps --json` does.
    Exit status: 0 changed, 3 refused (not enough is free, or more is in use), 2 wrong usage, 1 any other
    failure.

    \b
    Example:
      xpu set 3f2a91 --mem 6G
      xpu set 3f2a91 --mem 50% --device 1
    """
    containers.require_known_processes()
    grant, positions = _slices(containers.named(container), device)
    config = load()
    found = inventory.load(config)
    try:
        after = resize(
            found, grant, positions, amount, oversubscribe=config.oversubscribe_memory, force=force
        )
    except Refused as refused:
        line = refused.refusal.line({"XPU_MEM": "--mem "})
        more = ", or give --force" if refused.refusal.code == "below-use" else ""
        click.echo(f"xpu: refused: {line}{more}", err=True)
        context.exit(_REFUSED)
    _tell(found, after, positions, as_json)


def _slices(grants: list[Grant], device: str | None) -> tuple[Grant, tuple[int, ...]]:
    """The one live grant that is meant, and the positions of its slices."""
    name = grants[0].container_id
    live = [grant for grant in grants if containers.is_alive(grant)]
    if not live:
        raise XpuError(f"container {name} has ended", "`xpu gc` gives back what it held")
    chosen = [
        (
            grant,
            tuple(
                p
                for p, part in enumerate(grant.slices)
                if device in (None, part.device_index, part.device_uuid)
            ),
        )
        for grant in live
    ]
    chosen = [(grant, positions) for grant, positions in chosen if positions]
    if not chosen:
        held = sorted({part.device_index for grant in live for part in grant.slices})
        raise XpuError(f"container {name} has no slice of device {device}; it has one of {', '.join(held)}")
    if len(chosen) > 1:
        bundles = ", ".join(grant.bundle for grant, _ in chosen)
        raise XpuError(f"several containers have the id {name} ({bundles})", "say which one by --device")
    return chosen[0]


def _tell(found: Inventory, grant: Grant, positions: tuple[int, ...], as_json: bool) -> None:
    figures = Figures(found)
    if as_json:
        beyond = unaccounted.find(found, [grant])
        print_json(
            [
                containers.entry(grant, grant.slices[p], figures.in_use(grant, p), beyond.get((grant.id, p)))
                for p in positions
            ]
        )
        return
    for position in positions:
        part = grant.slices[position]
        unheld = part.holding.memory_backend == choose.NONE
        more = " (booked only: nothing on this node holds it)" if unheld else ""
        click.echo(f"{grant.container_id}: {memory(part.memory_bytes)} of GPU {part.device_index}{more}")
