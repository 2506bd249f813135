"""`xpu explain`: what would happen to a request on this node now, and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from xpu_runtime import paths
from xpu_runtime.cli.table import json_option, print_json
from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.devices import inventory
from xpu_runtime.devices.inventory import Inventory
from xpu_runtime.errors import ApplyError, RequestError
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.ledger.refusal import Refusal, plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.plan import build, granting
from xpu_runtime.plan import mode as plan_mode
from xpu_runtime.quota import choose, driver, library
from xpu_runtime.request import source
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import show

_GRANTED, _WRONG, _REFUSED = 0, 2, 3


@click.command(short_help="Show what a request would get now, or why not.")
@click.argument("bundle", required=False, type=click.Path(exists=True, file_okay=False))
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable, as for docker run."
)
@click.option("--privileged", is_flag=True, help="Ask as a container with CAP_SYS_ADMIN.")
@click.option("--systemd-cgroup", is_flag=True, help="Ask as an engine with the systemd cgroup driver.")
@json_option
@click.pass_context
def explain(
    context: click.Context,
    bundle: str | None,
    variables: tuple[str, ...],
    privileged: bool,
    systemd_cgroup: bool,
    as_json: bool,
) -> None:
    """Show what a request would get now, or why it is refused; nothing is booked.

    Takes variables with -e, or a BUNDLE folder (then -e adds to its variables).
    Exit status: 0 granted, 3 refused, 2 the request is wrong.

    \b
    Example:
      xpu explain -e XPU_MEM=4G -e XPU_CORES=30
      xpu explain --json /run/containerd/io.containerd.runtime.v2.task/default/web
    """
    spec = (
        oci_spec.read(oci_spec.path_in(bundle)) if bundle else {"linux": {"namespaces": [{"type": "mount"}]}}
    )
    _add(spec, variables, privileged)
    config = load()
    mode, why = plan_mode.choose(config, spec, systemd_cgroup)
    try:
        request = source.from_spec(spec, config)
    except RequestError as error:
        wrong = Refusal("wrong-request", str(error))
        _tell(as_json, mode, why, (), wrong)
        context.exit(_WRONG)
    if request is None:
        _tell(as_json, mode, "the container asks for no XPU and is left alone", (), None)
        context.exit(_GRANTED)
    granting.reap(config)
    found = inventory.load(config)
    privileged = oci_spec.is_privileged(spec)
    with Ledger() as ledger:
        outcome = granting.decide(found, request, config, ledger.uses(), privileged=privileged)
    if isinstance(outcome, Refusal):
        _tell(as_json, mode, why, (), outcome)
        context.exit(_REFUSED)
    rootfs = oci_spec.rootfs(spec, os.path.abspath(bundle)) if bundle else "/"
    try:
        # The container's volumes are not there yet, and what is mounted on the host's own /usr is none.
        with Root(rootfs, host_devices=frozenset()) as root:
            image = spec if bundle else None
            operations = build.build(found, outcome, request.capabilities, root, _pages(outcome), image)
    except OSError as error:
        raise ApplyError(f"cannot open the bundle's root {rootfs}: {error.strerror}") from error
    notes = _notes(found, request, config, outcome, privileged)
    _tell(as_json, mode, why, outcome, None, [operation.describe() for operation in operations], notes)


def _notes(
    found: Inventory, request: Request, config: Config, slices: tuple[Slice, ...], privileged: bool
) -> list[str]:
    """What the request did not say, and what was made of that."""
    if request.choice == "none":
        return [f"no device: {request.choice_from} is none, which wins over all else that is asked for"]
    notes = [] if request.memory else [_unasked(found, config, part, privileged) for part in slices]
    if request.cores_from:
        notes.append(f"XPU_CORES is not set: {request.cores}% are of {request.cores_from}")
    if any(part.held_by(driver.NAME) for part in slices) and request.can_lift:
        notes.append(f"{request.can_lift}, and could lift the limit that the driver holds: it is soft here")
    silent = library.why_no_log(slices) if request.log else None
    return [*notes, silent] if silent else notes


def _unasked(found: Inventory, config: Config, part: Slice, privileged: bool) -> str:
    device = inventory.find(found, part.device_uuid)
    if part.limited and device is not None:
        _, origin = granting.unasked(device, config, privileged)
        return f"XPU_MEM is not set: {show(part.memory_bytes)} of GPU {part.device_index} are of {origin}"
    alone = " (XPU_CORES alone shares no device)" if part.cores is not None else ""
    return (
        f"XPU_MEM is not set: all memory of GPU {part.device_index} is booked, and no other container gets "
        f"a slice of it{alone}"
    )


def _pages(slices: tuple[Slice, ...]) -> str | None:
    """Where the pages would be: a grant has the folder, and there is none."""
    return paths.in_run_dir("slices", "GRANT") if library.holds(slices) else None


def _add(spec: dict[str, Any], variables: tuple[str, ...], privileged: bool) -> None:
    """Adds -e and --privileged to the spec, as an engine would."""
    for text in variables:
        if "=" not in text:
            raise click.UsageError(f"-e takes NAME=VALUE, not {text!r}")
    process = spec.setdefault("process", {})
    process["env"] = [*(process.get("env") or ()), *variables]
    if privileged:
        process["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}


def _tell(
    as_json: bool,
    mode: str,
    why: str,
    slices: tuple[Slice, ...],
    refusal: Refusal | None,
    operations: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    if as_json:
        print_json(
            {
                "granted": refusal is None,
                "mode": mode,
                "mode_reason": why,
                "slices": [_plain(part) for part in slices],
                "refusal": refusal.as_plain() if refusal else None,
                "operations": list(operations),
                "notes": list(notes),
            }
        )
        return
    if refusal is not None:
        click.echo(f"refused: {refusal.line()}")
        return
    click.echo("granted" if slices else "granted, without a device" if operations else "nothing to do")
    for part in slices:
        amount = show(part.memory_bytes) if part.limited else f"all {show(part.memory_bytes)}"
        cores = f"{part.cores}% of its cores" if part.cores is not None else "no cap on cores"
        click.echo(f"  GPU {part.device_index} ({part.device_uuid}): {amount}, {cores}")
        holding = part.holding.as_dict()
        for kind in ("memory", "cores"):
            backend, strength = holding[f"{kind}_backend"], holding[f"{kind}_strength"]
            if strength:
                held = "nothing (booked only)" if backend == choose.NONE else f"{backend} ({strength})"
                click.echo(f"    {kind}: held by {held}")
    for note in notes:
        click.echo(f"  note: {note}")
    click.echo(f"  {mode} mode: {why}" if operations else f"  {why}")
    for line in operations:
        click.echo(f"    {line}")


def _plain(part: Slice) -> dict[str, Any]:
    return {
        "device_index": plain_index(part.device_index),
        "device_uuid": part.device_uuid,
        "memory_bytes": part.memory_bytes if part.limited else None,
        "cores": part.cores,
        **part.holding.as_dict(),
    }
