"""What a node says of its devices: the annotation that the device plugin writes, as plain numbers.

What others than pods were given of a device is taken off here, and a device that is not healthy has nothing
free. Knows no pod.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

#: The node's annotation.
ANNOTATION = "yoyoworks.com/xpu-devices"
#: Labels of a node that say how its devices are filled: ours wins over ACK's.
PLACEMENT_LABELS = ("yoyoworks.com/xpu.placement", "ack.node.gpu.placement")

_VERSION = 1
#: Devices of one node; more are no annotation of our plugin's.
_MOST = 256

#: (UUID, bytes or None for the whole device, percent of cores) of each device that a pod has a share of.
Held = tuple[tuple[str, "int | None", int], ...]


class NodeDevices:
    """A node's devices, in its order; `memory` and `cores` are what pods can have, -1 bytes where they
    cannot."""

    __slots__ = ("cores", "indexes", "memory", "reserved", "totals", "uuids", "why", "why_not")

    def __init__(self, why_not: str = "") -> None:
        #: Why no pod can be placed here; "": pods can.
        self.why_not = why_not
        self.uuids: tuple[str, ...] = ()
        self.indexes: tuple[str, ...] = ()
        self.totals: tuple[int, ...] = ()
        self.memory: tuple[int, ...] = ()
        self.cores: tuple[int, ...] = ()
        #: By position what is wrong with a device.
        self.why: Mapping[int, str] = {}
        #: By UID what the node's ledger has reserved for pods whose annotation does not tell it.
        self.reserved: Mapping[str, Held] = {}


def read(text: str | None) -> NodeDevices:
    """The devices of a node with that annotation; without any, and with the reason, where it cannot be
    used."""
    if text is None:
        return NodeDevices(f"no annotation {ANNOTATION}: is xpu's device plugin running there?")
    try:
        data = json.loads(text)
        if data["v"] != _VERSION:
            return NodeDevices(
                f"annotation {ANNOTATION} of version {data['v']!r}, and {_VERSION} is known here"
            )
        if data["placement"] != "extender":
            return NodeDevices(
                "places pods itself (kubernetes.placement in its configuration is not extender)"
            )
        rows = data["devices"]
        if not rows:
            return NodeDevices("no GPUs")
        return _devices(rows[:_MOST], data.get("reserved") or {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return NodeDevices(f"annotation {ANNOTATION} cannot be read ({type(error).__name__}: {error})"[:200])


def policy(labels: Mapping[str, str]) -> str | None:
    """How the node's labels want its devices to be filled; None where they do not say."""
    found = next((labels[name] for name in PLACEMENT_LABELS if name in labels), None)
    return found if found in ("binpack", "spread") else None


def _devices(rows: list[dict[str, Any]], reserved: Mapping[str, Any]) -> NodeDevices:
    found = NodeDevices()
    # Interned: the same UUIDs stand in the assignments of pods, and most nodes have the same numbers.
    found.uuids = tuple(sys.intern(str(row["uuid"])) for row in rows)
    found.indexes = tuple(sys.intern(str(row["index"])) for row in rows)
    found.totals = _shared(tuple(int(row["memory"]) for row in rows))
    if min(found.totals) <= 0:
        raise ValueError("a device without memory")
    found.memory = _shared(tuple(_memory(row) for row in rows))
    found.cores = _shared(tuple(int(row["cores"]) - int(_others(row, "cores")) for row in rows))
    found.why = {
        position: str(row.get("why") or "not healthy")[:80]
        for position, row in enumerate(rows)
        if not row["healthy"]
    }
    found.reserved = {str(uid): _held(shares) for uid, shares in reserved.items()}
    return found


def _memory(row: dict[str, Any]) -> int:
    if not row["healthy"]:
        return -1
    return 0 if _others(row, "whole") else max(int(row["memory"]) - int(_others(row, "memory")), 0)


def _others(row: dict[str, Any], name: str) -> Any:
    return (row.get("others") or {}).get(name) or 0


def _held(shares: list[list[Any]]) -> Held:
    return tuple(
        (sys.intern(str(uuid)), None if memory is None else int(memory), int(cores or 0))
        for uuid, memory, cores in shares
    )


_tuples: dict[tuple[int, ...], tuple[int, ...]] = {}


def _shared(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The same tuple for the same numbers."""
    if len(_tuples) > 10_000:
        _tuples.clear()
    return _tuples.setdefault(numbers, numbers)
