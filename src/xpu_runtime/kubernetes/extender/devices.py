"""A node's devices by the device plugin's annotation, as plain numbers.

Shares of others than pods are subtracted here, and an unhealthy device has nothing free. Knows no pod.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from xpu_runtime.errors import did_you_mean
from xpu_runtime.kubernetes import node_annotation
from xpu_runtime.kubernetes.node_annotation import ANNOTATION, NONE, NodeAnnotation, Row, Shares
from xpu_runtime.kubernetes.resources import POLICIES, gib
from xpu_runtime.placement import card_capacity
from xpu_runtime.placement.cards import Cards, VendorGroups
from xpu_runtime.request.units import show_exactly

#: Labels of a node that say how its devices are filled: ours wins over ACK's.
PLACEMENT_LABELS = ("yoyoworks.com/xpu.placement", "ack.node.gpu.placement")

_NO_CARDS = Cards(())
#: Different numbers that are kept as one object for all nodes that have them.
_MOST_SHARED = 10_000

#: (UUID, bytes or None for the whole device, percent of cores) of each device that a pod has a share of.
Held = tuple[tuple[str, "int | None", int], ...]


class NodeDevices:
    """A node's devices, in its order; `memory` and `cores` are the amounts for pods, -1 bytes if there is
    none."""

    __slots__ = (
        "cards", "cores", "has_other_unit", "indexes", "kinds",
        "memory", "reserved", "uuids", "why", "why_not",
    )  # fmt: skip

    def __init__(self, why_not: str = "", *, has_other_unit: bool = False) -> None:
        #: Why no pod can be placed here; "": pods can.
        self.why_not = why_not
        #: Whether the reason is its unit of memory, which somebody must correct.
        self.has_other_unit = has_other_unit
        self.uuids: tuple[str, ...] = ()
        self.indexes: tuple[str, ...] = ()
        self.cards = _NO_CARDS
        self.memory: tuple[int, ...] = ()
        self.cores: tuple[int, ...] = ()
        #: How its devices differ; None: they are of one vendor, and all hold every limit.
        self.kinds: VendorGroups | None = None
        #: A device's fault, by position.
        self.why: Mapping[int, str] = {}
        #: By UID the ledger's reservations for pods whose annotation does not have them.
        self.reserved: Mapping[str, Held] = {}


def read(text: str | None, memory_unit: int) -> NodeDevices:
    """The devices of a node with that annotation; without any, and with the reason, where it cannot be used,
    as where its unit of memory is not `memory_unit` (bytes)."""
    if text is None:
        return NodeDevices(f"no annotation {ANNOTATION}: is xpu's device plugin running there?")
    try:
        annotation = node_annotation.read(text)
    except node_annotation.WrongVersion as error:
        return NodeDevices(f"annotation {ANNOTATION} of {error}")
    except ValueError as error:
        return NodeDevices(f"annotation {ANNOTATION} cannot be read ({error})")
    if annotation.placement != "extender":
        return NodeDevices("places pods itself (kubernetes.placement in its configuration is not extender)")
    if annotation.memory_unit != memory_unit:
        # Its kubelet would count another amount for a pod than is signed here.
        return NodeDevices(_other_unit(annotation.memory_unit, memory_unit), has_other_unit=True)
    return of_annotation(annotation)


def of_annotation(annotation: NodeAnnotation) -> NodeDevices:
    """A node's devices, for any placing program and any unit."""
    rows = [row for row in annotation.devices if row.memory]  # nothing more is known of a lost card
    return _devices(rows, annotation.reserved) if rows else NodeDevices("no GPUs")


def _other_unit(theirs: int, ours: int) -> str:
    there, here = gib(show_exactly(theirs)), gib(show_exactly(ours))
    todo = "restart daemonset/xpu-node and deployment/xpu-extender, which read it when they start"
    return f"kubernetes.memory_unit is {there} there and {here} for the extender: {todo}"


def policy(labels: Mapping[str, str]) -> str | None:
    """How the node's labels want its devices to be filled; None where they do not say."""
    found = next((labels[name] for name in PLACEMENT_LABELS if name in labels), None)
    return found if found in POLICIES else None


def unknown_policy(labels: Mapping[str, str]) -> str:
    """The fault of the node's policy label, which is then ignored; "": none."""
    name = next((name for name in PLACEMENT_LABELS if name in labels), None)
    if name is None or labels[name] in POLICIES:
        return ""
    hint = did_you_mean(labels[name], POLICIES, f"it takes {' and '.join(POLICIES)}")
    return f"label {name}={labels[name]} is unknown and has no effect: {hint}"


def _devices(rows: Sequence[Row], reserved: Mapping[str, Shares]) -> NodeDevices:
    found = NodeDevices()
    # Interned: the same UUIDs stand in the assignments of pods, and most nodes have the same numbers.
    found.uuids = tuple(sys.intern(row.uuid) for row in rows)
    found.indexes = tuple(sys.intern(row.name) for row in rows)
    found.memory = _shared(tuple(map(_memory, rows)))
    found.cores = _shared(tuple(max(row.cores - row.others_cores, 0) for row in rows))
    found.kinds = _kinds(rows)
    found.cards = _cards(rows, found.kinds)
    found.why = {position: row.why for position, row in enumerate(rows) if row.why}
    found.reserved = {uid: _held(shares) for uid, shares in reserved.items()}
    return found


def _kinds(rows: Sequence[Row]) -> VendorGroups | None:
    holds = [(row.memory_strength != NONE, row.cores_strength != NONE) for row in rows]
    vendors = [row.vendor for row in rows]
    return None if len(set(vendors)) == 1 and all(map(all, holds)) else VendorGroups(vendors, holds)


def _memory(row: Row) -> int:
    if row.why:
        return -1
    return card_capacity.left(row.grantable, row.others_memory, row.others_whole)


def _held(shares: Shares) -> Held:
    return tuple((sys.intern(uuid), memory, cores or 0) for uuid, memory, cores in shares)


def _cards(rows: Sequence[Row], kinds: VendorGroups | None) -> Cards:
    """The same object for the same numbers, where the devices are alike."""
    totals = _shared(tuple(row.memory for row in rows))
    capacities = _shared(tuple(row.grantable for row in rows))
    if kinds is not None:
        return Cards(totals, capacities, kinds)
    if len(_alike) > _MOST_SHARED:
        _alike.clear()
    return _alike.setdefault((totals, capacities), Cards(totals, capacities))


_alike: dict[tuple[tuple[int, ...], tuple[int, ...]], Cards] = {}
_tuples: dict[tuple[int, ...], tuple[int, ...]] = {}


def _shared(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The same tuple for the same numbers."""
    if len(_tuples) > _MOST_SHARED:
        _tuples.clear()
    return _tuples.setdefault(numbers, numbers)
