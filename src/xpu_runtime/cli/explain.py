"""`xpu explain`: the outcome of a request on this node now, and why.

Runs the same steps as a container's start, from the spec to the plan, and books and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from xpu_runtime import candidates
from xpu_runtime.cli import cdi, completion, reaping
from xpu_runtime.cli.explanation import OutputOptions, tell
from xpu_runtime.cli.terminal.table import json_option, wide_option
from xpu_runtime.config import low_level_runtime
from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.errors import ApplyError, ConfigError, RequestError
from xpu_runtime.ledger import quotas
from xpu_runtime.ledger.grants import CORES, Grant, Slice
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.ledger.vocabulary import CODES
from xpu_runtime.limits import choose, pages, registry, sharing
from xpu_runtime.linux.rootfs import Root
from xpu_runtime.observe import agent_status, containers, driver_questions
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request import source
from xpu_runtime.request.cdi import KIND
from xpu_runtime.request.parse import by_annotations
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import show
from xpu_runtime.start import mode as start_mode
from xpu_runtime.start.sequence import Start
from xpu_runtime.vendors.inventory import Inventory, find

_NO_QUOTA = "no quota of policy.quotas matches what the engine tells of it: annotations and user namespace"


class _Folder(click.Path):
    """A folder. A word in its place that belongs to an option is named with the option."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        key, equals, _ = str(value).partition("=")
        option = "--device" if key == KIND else "-e" if key.isidentifier() else ""
        if equals and option and not os.path.isdir(value):
            self.fail(f"there is no folder {value!r}; did you mean {option} {value}?", param, ctx)
        return super().convert(value, param, ctx)


@click.command(short_help="Show what a request would get now, or why it would be refused.")
@click.argument("bundle", required=False, type=_Folder(exists=True, file_okay=False))
@click.option(
    "-e", "--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable, as for docker run."
)
@click.option(
    "--annotation", "annotations", multiple=True, metavar="KEY=VALUE", help="An annotation of its OCI spec."
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="yoyoworks.com/xpu=NAME",
    shell_complete=completion.cdi_devices,
    help="A CDI device, as for docker run.",
)
@click.option("--privileged", is_flag=True, help="Ask as a container with CAP_SYS_ADMIN.")
@click.option("--systemd-cgroup", is_flag=True, help="Ask as an engine with the systemd cgroup driver.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also list the device nodes, mounts and links that the container would get.",
)
@wide_option
@json_option
@click.pass_context
def explain(
    context: click.Context,
    bundle: str | None,
    variables: tuple[str, ...],
    annotations: tuple[str, ...],
    devices: tuple[str, ...],
    privileged: bool,
    systemd_cgroup: bool,
    verbose: bool,
    wide: bool,
    as_json: bool,
) -> None:
    """Show what a request would get now, or why it is refused; nothing is booked.

    Takes variables with -e and CDI devices, or a BUNDLE folder (then these add to its own).
    Exit status: 0 granted, 3 refused, 2 the request is wrong.

    \b
    Example:
      xpu explain -e XPU_MEM=4G -e XPU_CORES=30
      xpu explain -v --device yoyoworks.com/xpu=4g
      xpu explain --json /run/containerd/io.containerd.runtime.v2.task/default/web
    """
    options = OutputOptions(as_json, wide, verbose)
    spec = (
        oci_spec.read(oci_spec.path_in(bundle)) if bundle else {"linux": {"namespaces": [{"type": "mount"}]}}
    )
    config = load()
    given = cdi.variables_of(devices, _inventory(config), config) if devices else []
    _add(spec, (*variables, *given), annotations, privileged)
    mode, why = start_mode.choose(config, spec, systemd_cgroup, _runtime(config))
    if devices:
        mode, why = start_mode.HOOK, "a CDI device brings our hooks with it"
    try:
        request = source.from_spec(spec, config, os.path.abspath(bundle) if bundle else "")
        if request is not None:
            steps = Start(request, config, _inventory)
    except RequestError as error:
        wrong = Refusal(error.code, str(error))
        tell(options, mode, why, (), wrong)
        context.exit(CODES[wrong.code].exit_status)
    if request is None:
        tell(options, mode, "the container asks for no XPU and is left alone", (), None)
        context.exit()
    request, inventory = steps.request, steps.inventory
    with steps.ledger() as ledger:
        outcome = steps.decide(ledger)
        counts = [
            f"quota {quotas.granted(quota, ledger.counted(quota.name))} before this"
            for quota in request.quotas
        ]
        others = [slice_ for grant in ledger.grants() for slice_ in grant.slices]
    if isinstance(outcome, Refusal):
        tell(options, mode, why, (), outcome, spelling=by_annotations(request))
        context.exit(CODES[outcome.code].exit_status)
    rootfs = oci_spec.rootfs(spec, os.path.abspath(bundle)) if bundle else "/"
    try:
        # The container's volumes are not mounted yet, and the host's mounts below its own /usr are none of
        # them.
        with Root(rootfs, host_devices=frozenset()) as root:
            unbooked = Grant(0, "", "", 0, 0, "", "", "", 0.0, outcome)
            planned = steps.plan(outcome, unbooked)
            operations = planned.in_image(root, spec if bundle else None)
    except OSError as error:
        raise ApplyError(f"cannot open the bundle's root {rootfs}: {error.strerror}") from error
    notes = _notes(inventory, request, config, outcome)
    notes += cdi.notes(inventory, config) if devices else []
    if config.policy_quotas:
        notes += counts or [_NO_QUOTA]
    notes += [note for slice_ in outcome for note in _slices_without_cap(slice_, others)]
    tell(options, mode, why, outcome, None, [operation.describe() for operation in operations], notes)


def _runtime(config: Config) -> str:
    """The low-level runtime's name, "" without one; ConfigError where no container of it has a slice."""
    try:
        runtime = low_level_runtime.low_level_runtime(config)
    except ConfigError:
        return ""  # a request means the same, and `xpu doctor` names the missing file
    refused = low_level_runtime.refusal(runtime.path, runtime.name)
    if refused is not None:
        raise refused
    return runtime.name


def _inventory(config: Config) -> Inventory:
    """The node's devices, after dead containers' slices were taken back."""
    reaping.reap(config)
    return driver_questions.inventory(config)


def _notes(inventory: Inventory, request: Request, config: Config, slices: tuple[Slice, ...]) -> list[str]:
    """The settings that the request leaves open, with the sources of their values."""
    if request.choice == "none":
        return [f"no device: {request.choice_from} is none, which overrides the rest of the request"]
    if request.of_pod is not None:
        return [f"it comes from {request.choice_from}", *choose.notes(slices, request)]
    notes = [] if request.memory else [_unasked(inventory, config, slice_, request) for slice_ in slices]
    if request.reservation is not None:
        notes.append(f"only devices that are reserved for {request.reservation} (XPU_RESERVATION)")
    if request.cores_from:
        notes.append(f"XPU_CORES is not set: {request.cores}% comes from {request.cores_from}")
    if request.caps_cores and pages.needs_agent(request.sched, request.priority):
        notes.append(f"cores are shared as {request.sched}, with {request.priority} priority")
        notes += [] if agent_status.ask() else [containers.NO_AGENT]
    return notes + choose.notes(slices, request)


def _slices_without_cap(slice_: Slice, others: Sequence[Slice]) -> list[str]:
    """A note that a cap is no guarantee, if other slices of the device have no cap."""
    if sharing.shared(slice_) != sharing.CAP:
        return []
    holder = registry.known_holder(slice_, CORES)
    apart = {sharing.TURNS}
    if holder is None or not holder.SIDE_BY_SIDE:
        apart.add(sharing.SIDE_BY_SIDE)  # under MPS: they take turns with this one, not with each other
    count = sum(
        each.device_uuid == slice_.device_uuid and each.cores is None and sharing.shared(each) in apart
        for each in others
    )
    if not count:
        return []
    gpu = f"GPU {slice_.device_index}"
    have = f"a container without XPU_CORES has a slice of {gpu}: "
    if count > 1:
        have = f"{count} containers without XPU_CORES have slices of {gpu}: each "
    return [f"{have}as many turns as this one, so {slice_.cores}% is not guaranteed"]


def _unasked(inventory: Inventory, config: Config, slice_: Slice, request: Request) -> str:
    device = find(inventory, slice_.device_uuid)
    if slice_.limited and device is not None:
        _, origin = candidates.unasked(device, config, request)
        amount = show(slice_.memory_bytes)
        return f"XPU_MEM is not set: {amount} of GPU {slice_.device_index} comes from {origin}"
    alone = " (a device is shared only where XPU_MEM is set)" if slice_.cores is not None else ""
    return (
        f"XPU_MEM is not set: all memory of GPU {slice_.device_index} is booked, and no other container gets "
        f"a slice of it{alone}"
    )


def _add(
    spec: dict[str, Any], variables: tuple[str, ...], annotations: tuple[str, ...], privileged: bool
) -> None:
    """Adds -e, --annotation and --privileged to the spec, as an engine would."""
    for text in variables:
        if "=" not in text:
            raise click.UsageError(f"-e takes NAME=VALUE, not {text!r}")
    for text in annotations:
        if "=" not in text:
            raise click.UsageError(f"--annotation takes KEY=VALUE, not {text!r}")
    if annotations:
        spec["annotations"] = {
            **oci_spec.annotations_of(spec),
            **{key: value for key, _, value in (text.partition("=") for text in annotations)},
        }
    process = spec.setdefault("process", {})
    process["env"] = [*(process.get("env") or ()), *variables]
    if privileged:
        process["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
