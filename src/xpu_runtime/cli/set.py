"""`xpu set`: changes a running container's limits.

Reads the words and prints the outcome: limits/resize.py makes the change.
"""

from __future__ import annotations

from functools import partial

import click

from xpu_runtime.cli import completion, reaping
from xpu_runtime.cli.terminal.screen import printable
from xpu_runtime.cli.terminal.table import json_option, memory, percent, print_json
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import MEMORY, Grant
from xpu_runtime.ledger.refusal import Refused
from xpu_runtime.ledger.vocabulary import CODES
from xpu_runtime.limits import registry, sharing
from xpu_runtime.limits.registry import NONE
from xpu_runtime.limits.resize import Wanted, resize
from xpu_runtime.observe import containers, driver_questions, names
from xpu_runtime.request.request import PRIORITIES, SCHEDS
from xpu_runtime.request.units import Memory, NearMiss, parse_cores, parse_memory
from xpu_runtime.vendors.inventory import Inventory, begins


def _amount(context: click.Context, param: click.Parameter, value: str | None) -> Memory | None:
    if value is None:
        return None
    try:
        return parse_memory(value)
    except ValueError as error:
        raise click.BadParameter(f"{value[:60]!r} {error}; write 6G, 6144M or 50%") from None


def _device(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter(f"{value[:60]!r} names no device; give an index or a UUID (see `xpu ps`)")
    return value


@click.command(short_help="Change the limits of a running container.")
@click.argument("container", metavar="ID", shell_complete=completion.containers)
@click.option("--mem", "amount", callback=_amount, metavar="AMOUNT", help="6G, 6144M, or 50% of the device.")
@click.option("--cores", "cores", metavar="PERCENT", help="30 or 30%, of each device's time.")
@click.option(
    "--sched", type=click.Choice(SCHEDS), help="The way to share the devices' time beyond the caps."
)
@click.option(
    "--priority",
    type=click.Choice(PRIORITIES),
    help="The order of launches: high, then normal, then low.",
)
@click.option(
    "--device",
    callback=_device,
    metavar="INDEX",
    shell_complete=completion.devices,
    help="Change only the slice of this device: its index, or the start of its UUID.",
)
@click.option(
    "--force", is_flag=True, help="Also set a limit below the use: programs get no more memory until it fits."
)
@json_option
@click.pass_context
def set(
    context: click.Context,
    container: str,
    amount: Memory | None,
    cores: str | None,
    sched: str | None,
    priority: str | None,
    device: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Change the limits of the running container ID (its id, the start of it, or its name), at once.

    Each of the container's devices gets the limit, as with XPU_MEM and XPU_CORES, unless --device names
    one. Cores can change if a backend holds a cap on them: see ENFORCED BY in `xpu ps`. --sched and
    --priority mean the same as XPU_SCHED and XPU_PRIORITY. A change is booked like a new request. Quotas and
    maximums of the policy (policy.quotas, policy.max_memory, ...) do not apply: they limit requests of
    containers, and only root can run this. The change holds until the container ends; a restart asks for
    the values of its variables again. If a change was interrupted, repeat the command.

    --json prints the changed slices as `xpu ps --json` does.
    Exit status: 0 changed, 3 refused (not enough is free, or more is in use), 2 wrong usage, 1 any other
    failure.

    \b
    Example:
      xpu set 3f2a91 --mem 6G
      xpu set 3f2a91 --mem 50% --device 1
      xpu set web --cores 30
      xpu set 3f2a91 --sched burst --priority high
    """
    if amount is None and cores is None and sched is None and priority is None:
        raise click.UsageError("Give at least one of --mem, --cores, --sched and --priority.")
    config = load()
    percentage = None if cores is None else _percent(cores, config.cores_step)
    wanted = Wanted(amount, percentage, sched, priority)
    containers.require_known_processes()
    grant, positions = _slices(containers.named(container), device)
    inventory = driver_questions.inventory(config)
    usage = None if force else driver_questions.usage(inventory, [grant])
    try:
        after = resize(
            inventory,
            grant,
            positions,
            wanted,
            oversubscribe=config.oversubscribe_memory,
            usage=usage,
            clear=partial(reaping.clear, config),
        )
    except Refused as refused:
        line = refused.refusal.line({"XPU_MEM": "--mem ", "XPU_CORES": "--cores "})
        more = ", or give --force" if refused.refusal.code == "below-use" else ""
        click.echo(f"xpu: refused: {line}{more}", err=True)
        context.exit(CODES[refused.refusal.code].exit_status)
    _tell(inventory, after, positions, wanted, as_json)
    _tell_notes(grant, after, positions, wanted)


def _percent(text: str, step: int) -> int:
    try:
        return parse_cores(text, step)
    except ValueError as error:
        hint = f"; did you mean {error.nearest}?" if isinstance(error, NearMiss) else ""
        raise click.BadParameter(f"{text[:60]!r} {error}{hint}", param_hint="'--cores'") from None


def _slices(grants: list[Grant], device: str | None) -> tuple[Grant, tuple[int, ...]]:
    """The one live grant that is meant, and the positions of its slices."""
    name = grants[0].container_id
    live = [grant for grant in grants if containers.is_alive(grant)]
    if not live:
        raise XpuError(f"container {name} has ended", "`xpu gc` gives back its slices")
    chosen = [
        (
            grant,
            tuple(
                p
                for p, slice_ in enumerate(grant.slices)
                if device in (None, slice_.device_index) or begins(device or "", slice_.device_uuid)
            ),
        )
        for grant in live
    ]
    chosen = [(grant, positions) for grant, positions in chosen if positions]
    if not chosen:
        held = sorted({slice_.device_index for grant in live for slice_ in grant.slices})
        raise XpuError(f"container {name} has no slice of device {device}; it has one of {', '.join(held)}")
    if len(chosen) > 1:
        bundles = ", ".join(grant.bundle for grant, _ in chosen)
        held = [slice_.device_index for grant, _ in chosen for slice_ in grant.slices]
        apart = device is None and any(held.count(each) == 1 for each in held)
        todo = "choose one with --device" if apart else "nothing tells them apart here: end one of them"
        raise XpuError(f"several containers have the id {name} ({bundles})", todo)
    return chosen[0]


def _tell(
    inventory: Inventory, grant: Grant, positions: tuple[int, ...], wanted: Wanted, as_json: bool
) -> None:
    if as_json:
        usage, beyond = driver_questions.usage_and_unaccounted(inventory, [grant])
        shares = driver_questions.shares(inventory, [grant])
        known = names.of([grant])
        print_json(
            [
                containers.entry(grant, p, usage.in_use(grant, p), beyond.get((grant.id, p)), shares, known)
                for p in positions
            ]
        )
        return
    for position in positions:
        slice_ = grant.slices[position]
        now = []
        if wanted.memory is not None:
            now.append(memory(slice_.memory_bytes))
        if wanted.cores is not None:
            now.append(f"{percent(slice_.cores)} of the cores")
        policy = sharing.policy(grant, position) if wanted.shares() else None
        unheld = wanted.memory is not None and slice_.holder(MEMORY) == NONE
        more = " (booked only: nothing on this node holds it)" if unheld else ""
        gpu = f"GPU {slice_.device_index}"
        told = [f"{' and '.join(now)} of {gpu}{more}"] if now else []
        if policy is not None:
            told.append(f"{gpu}: shared as {policy.sched}, at {policy.priority} priority")
        click.echo(f"{printable(grant.container_id)}: {'; '.join(told)}")


def _tell_notes(before: Grant, after: Grant, positions: tuple[int, ...], wanted: Wanted) -> None:
    """Notes on stderr about effects that come later."""
    for position in positions:
        for kind in wanted.kinds():
            was, now = (grant.slices[position].limit(kind) or 0 for grant in (before, after))
            holder = registry.known_holder(after.slices[position], kind)
            note = holder.note_of_change(kind, was, now) if holder is not None else ""
            if note:
                click.echo(f"xpu: container {printable(after.container_id)}: {note}", err=True)
