"""The outcome of `xpu explain`: lines for people, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from xpu_runtime.cli.terminal.table import print_json, print_lines, width_of_window, wrapped
from xpu_runtime.ledger.grants import Slice
from xpu_runtime.ledger.refusal import Refusal, plain_index
from xpu_runtime.limits import registry, sharing
from xpu_runtime.observe import containers
from xpu_runtime.observe.containers import LimitsJson
from xpu_runtime.request.units import show
from xpu_runtime.value import Value


class OutputOptions(Value):
    """The form in which the outcome is printed."""

    as_json: bool
    wide: bool
    #: The plan's operations as well.
    verbose: bool


def tell(
    options: OutputOptions,
    mode: str,
    why: str,
    slices: tuple[Slice, ...],
    refusal: Refusal | None,
    operations: Sequence[str] = (),
    notes: Sequence[str] = (),
    spelling: dict[str, str] | None = None,
) -> None:
    """`spelling`: as for Refusal.line."""
    if options.as_json:
        told: ExplanationJson = {
            "granted": refusal is None,
            "mode": mode,
            "mode_reason": why,
            "slices": [
                {"device_index": plain_index(slice_.device_index), **containers.limits(slice_)}
                for slice_ in slices
            ],
            "refusal": _refusal(refusal) if refusal else None,
            "operations": list(operations),
            "notes": list(notes),
        }
        print_json(told)
        return
    width = width_of_window(options.wide)
    if refusal is not None:
        print_lines(wrapped(f"refused: {refusal.line(spelling)}", width, hang=2, style="red", word="refused"))
        return
    outcome = "granted" if slices else "granted, without a device" if operations else "nothing to do"
    found = wrapped(outcome, width, style="green", word="granted")
    for slice_ in slices:
        amount = show(slice_.memory_bytes) if slice_.limited else f"all {show(slice_.memory_bytes)}"
        text = f"  GPU {slice_.device_index} ({slice_.device_uuid}): {amount}, {_cores(slice_)}"
        found += wrapped(text, width, hang=6)
        holding = slice_.holding.as_dict()
        for kind in ("memory", "cores"):
            backend, strength = holding[f"{kind}_backend"], holding[f"{kind}_strength"]
            if strength:
                held = "nothing (booked only)" if backend == registry.NONE else f"{backend} ({strength})"
                found += wrapped(f"    {kind}: held by {held}", width, hang=6)
    for note in notes:
        found += wrapped(f"  note: {note}", width, hang=4)
    found += wrapped(f"  {mode} mode: {why}" if operations else f"  {why}", width, hang=4)
    if options.verbose:
        found += [line for text in operations for line in wrapped(f"    {text}", width, hang=6)]
    elif operations:
        count = f"{len(operations)} device nodes, mounts, links and the like"
        found += wrapped(f"    {count}: -v lists them", width, hang=6, style="dim")
    print_lines(found)


def _cores(slice_: Slice) -> str:
    if slice_.cores is not None:
        return f"{slice_.cores}% of its cores"
    # Held without a cap: the hardware gives the device these cores and no others.
    if slice_.holding.cores_backend:
        turns = ", in equal turns with its other slices" if slice_.limited else ""
        return f"all cores of the device{turns}"
    with_others = {
        sharing.TURNS: ", equal turns with others on the device",
        sharing.SIDE_BY_SIDE: ", side by side with others on the device",
    }
    return f"no cap on cores{with_others.get(sharing.shared(slice_) or '', '')}"


class PlannedSliceJson(LimitsJson):
    """A slice that a container would get."""

    #: A GPU's index is a number, a MIG device's is text (`"0:1"`).
    device_index: int | str


class RefusedDeviceJson(TypedDict):
    """A device, and why it cannot serve the request."""

    #: A GPU's index is a number, a MIG device's is text (`"0:1"`).
    index: int | str
    #: Bytes that are free.
    free_memory_bytes: int
    #: Percent of the device's time that is free.
    free_cores: int
    #: In words.
    reason: str


class RefusalJson(TypedDict):
    """Why a request is not granted."""

    #: One of the [codes](errors.md#codes-of-refusals).
    code: str
    #: In words, without the reasons of devices.
    message: str
    devices: list[RefusedDeviceJson]
    #: The variables of the nearest request that fits now; null: nothing fits.
    nearest: dict[str, str] | None


class ExplanationJson(TypedDict):
    """The result of a request, if it were made now."""

    granted: bool
    #: The way in which the container would get its devices: `hook` or `spec`.
    mode: str
    #: Why in that mode, in words.
    mode_reason: str
    #: None where the request is refused, or asks for no device.
    slices: list[PlannedSliceJson]
    #: Null: it is granted.
    refusal: RefusalJson | None
    #: The changes that would be made in the container, in words: device nodes, mounts, links.
    operations: list[str]
    #: Remarks on the request, such as limits that it leaves open.
    notes: list[str]


def _refusal(refusal: Refusal) -> RefusalJson:
    return {
        "code": refusal.code,
        "message": refusal.message,
        "devices": [
            {
                "index": plain_index(each.index),
                "free_memory_bytes": each.free_memory_bytes,
                "free_cores": each.free_cores,
                "reason": each.reason,
            }
            for each in refusal.devices
        ],
        "nearest": refusal.nearest,
    }
