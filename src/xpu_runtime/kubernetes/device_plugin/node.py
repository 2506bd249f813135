"""The devices on the Node object: labels for selectors, and an annotation for the scheduler extender and `xpu
kubernetes status`. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from xpu_runtime.kubernetes import node_annotation
from xpu_runtime.kubernetes.device_plugin.offer import Card
from xpu_runtime.kubernetes.node_annotation import ANNOTATION, NodeAnnotation, Row, Shares
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import CORES, MEMORY
from xpu_runtime.limits.choose import UNENFORCED
from xpu_runtime.vendors.inventory import Device, Inventory

LABEL = "yoyoworks.com/xpu."
#: All that are written; one that says nothing (any more) is removed. A name that is taken out here stays on
#: nodes until the runtime goes from them. The list of docs/reference/kubernetes.md is made from the comments.
LABELS = (
    #: Of the first card: `nvidia`, `amd`.
    "vendor",
    #: The first card's model.
    "product",
    #: The number of GPUs.
    "count",
    #: MiB of the first card.
    "memory",
    #: Version of the first card's driver.
    "driver",
    #: Version of CUDA of that driver.
    "cuda",
    #: `true` where a GPU is divided.
    "mig",
    #: How strongly limits of memory are held on the weakest card: `hard`, `soft`, `unenforced`, `none`.
    "memory-strength",
    #: The same for caps on cores.
    "cores-strength",
)
_LONGEST = 63
_MIB = 1 << 20
_DEFAULT = Resources()


def annotation(
    inventory: Inventory,
    cards: Sequence[Card],
    placement: str,
    allocations: Mapping[str, Allocation],
    strengths: Sequence[tuple[str, str]] = (),
    unenforced: Collection[str] = (),
    resources: Resources = _DEFAULT,
    keys: Iterable[str] = (),
) -> str:
    """The annotation's value. `cards`, and `strengths` as for `labels` (none: not known): of the inventory's
    devices, in their order; `allocations`: by the pods' UIDs; `unenforced`: the kinds of limits that may go
    unheld; `resources`: those that the node offers; `keys`: ids of the keys that the node verifies with."""
    known: Sequence[tuple[str, str] | None] = strengths or [None] * len(inventory.devices)
    devices = tuple(
        _row(device, card, held, unenforced) for device, card, held in zip(inventory.devices, cards, known)
    )
    versions = dict.fromkeys(driver.version for driver in inventory.drivers if driver.version)
    reserved = {uid: _shares(each) for uid, each in allocations.items()}
    content = NodeAnnotation(
        ", ".join(versions),
        placement,
        devices,
        reserved,
        resources.memory_unit,
        tuple(keys),
        resources.aliases,
        {uid: each.key_id for uid, each in allocations.items() if each.key_id},
    )
    return node_annotation.write(content)


def _shares(allocation: Allocation) -> Shares:
    return tuple(
        (uuid, None if amount.whole else amount.memory_bytes, amount.cores or None)
        for uuid, amount in allocation.amounts().items()
    )


def _row(device: Device, card: Card, held: tuple[str, str] | None, unenforced: Collection[str]) -> Row:
    others = card.others
    memory, cores = (
        (_strength(each, kind in unenforced) for each, kind in zip(held, (MEMORY, CORES)))
        if held is not None
        else ("", "")
    )
    return Row(
        device.uuid,
        device.index,
        device.name,
        device.memory_bytes,
        100,
        card.fault or card.withheld,
        others.memory_bytes,
        others.cores,
        others.exclusive,
        device.vendor,
        memory,
        cores,
        card.capacity,
    )


def _strength(held: str, may_go_unheld: bool) -> str:
    if held in ("", UNENFORCED):
        return UNENFORCED if may_go_unheld else node_annotation.NONE
    return held


def labels(inventory: Inventory, strengths: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """The labels' values by their whole names; None: the node must not have the label.

    `strengths`: of each device, how strongly a limit of memory and one of cores is held ("": nothing holds
    it). If devices differ, product and memory are the first one's, and strengths the weakest.
    """
    found: dict[str, str] = {}
    devices = inventory.devices
    if devices:
        first = devices[0]
        facts = inventory.facts(first)
        gpus = {device.index.partition(":")[0] for device in devices}
        held = list(strengths)
        found = {
            "vendor": first.vendor,
            "product": first.name,
            "count": str(len(gpus)),
            "memory": str(first.memory_bytes // _MIB),
            "driver": inventory.driver(first.vendor).version,
            "cuda": facts.get("cuda", ""),
            "mig": "true" if any(device.is_partition for device in devices) else "false",
            "memory-strength": _weakest(memory for memory, _ in held),
            "cores-strength": _weakest(cores for _, cores in held),
        }
    return {LABEL + name: label_value(found.get(name, "")) or None for name in LABELS}


def _weakest(strengths: Iterable[str]) -> str:
    order = ("none", "unenforced", "soft", "hard")
    return min((each or "none" for each in strengths), key=order.index, default="none")


def label_value(text: str) -> str:
    """`text` as a label's value may be: up to 63 letters, digits, -, _ and ., the first and the last a letter
    or digit (kubernetes.io, "Labels and Selectors")."""
    kept = "".join(each if each.isascii() and (each.isalnum() or each in "-_.") else "-" for each in text)
    return kept[:_LONGEST].strip("-_.")


def patch(annotation_value: str, labels_found: dict[str, str | None]) -> dict[str, Any]:
    """The merge patch of the Node object."""
    return {"metadata": {"annotations": {ANNOTATION: annotation_value}, "labels": labels_found}}
