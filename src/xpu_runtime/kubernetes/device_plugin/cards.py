"""The node's devices for the offer, from drivers, the operator's marks and the ledger."""

from __future__ import annotations

from collections.abc import Iterable

from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.device_plugin.offer import Card
from xpu_runtime.kubernetes.device_plugin.shared_ledger import Taken
from xpu_runtime.ledger.grants import CORES, Use
from xpu_runtime.limits import choose
from xpu_runtime.placement import card_capacity
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors import marks
from xpu_runtime.vendors.inventory import Device, Inventory


def with_known(before: Inventory | None, now: Inventory) -> Inventory:
    """`now`, and, with a fault, the devices of `before` that are missing now.

    Otherwise the kubelet would take a device for removed. For a card that has fallen off the bus a driver may
    report neither UUID nor memory, nor its MIG devices; a driver that does not answer, or is not loaded,
    reports nothing at all.
    """
    if before is None:
        return now
    if not now.devices:
        why = node.why_empty(now)
        return now.replace(devices=_faulty(before.devices, why), drivers=before.drivers)
    devices: list[Device] = []
    for device in now.devices:
        known = () if device.fault is None or device.is_partition else _of_gpu(before, device)
        devices += _faulty(known, device.fault or "") or (device,)
    there = {device.vendor for device in devices}
    lost = [each for each in before.devices if each.vendor not in there] if now.problems else []
    drivers = {each.vendor: each for each in (*before.drivers, *now.drivers)}
    return now.replace(
        devices=(*devices, *_faulty(lost, "; ".join(now.problems))), drivers=tuple(drivers.values())
    )


def _of_gpu(inventory: Inventory, device: Device) -> list[Device]:
    """The inventory's entries of the GPU `device`: itself, or its MIG devices."""
    return [each for each in inventory.devices if (each.vendor, each.gpu) == (device.vendor, device.gpu)]


def _faulty(devices: Iterable[Device], why: str) -> tuple[Device, ...]:
    return tuple(each.replace(fault=why) for each in devices)


def bare_cards(inventory: Inventory, config: Config) -> list[Card]:
    """An unused card for each device, in the inventory's order."""
    return [
        Card(
            each.uuid,
            each.memory_bytes,
            card_capacity.grantable(each.memory_bytes, config.oversubscribe_memory),
        )
        for each in inventory.devices
    ]


def cards(inventory: Inventory, problem: str, config: Config, taken: Taken) -> list[Card]:
    """A card for each device, in the inventory's order. `problem`: why the drivers do not answer; "": they
    do."""
    try:
        told: marks.Marks | None = marks.read()
        unreadable = ""
    except ConfigError as error:
        told, unreadable = None, str(error)
    return [
        card.replace(
            fault=problem or device.fault or "",
            withheld=unreadable or _withheld(inventory, device, config, told),
            use=taken.uses.get(device.uuid, Use()),
            others=taken.others.get(device.uuid, Use()),
        )
        for card, device in zip(bare_cards(inventory, config), inventory.devices)
    ]


def _withheld(inventory: Inventory, device: Device, config: Config, told: marks.Marks | None) -> str:
    """Why no pod that comes now gets any of a device; "": they do."""
    if config.policy_devices is not None and not node.lists(config.policy_devices, device):
        return "policy.devices does not list it"
    first = inventory.devices[0].vendor
    if config.kubernetes_placement == "node" and device.vendor != first:
        return f"this node gives pods its {first} devices"  # as granting does for a request without a vendor
    if told is None:
        return ""
    drained, reserved = told.why_drained(device), told.reservation(device)
    if drained is not None:
        return marks.as_drained(drained)
    return marks.as_reserved(reserved) if reserved is not None else ""


def strengths(inventory: Inventory) -> list[tuple[str, str]]:
    """How strongly a limit on a part of each device is held: memory, and cores ("" where nothing does)."""
    return [
        (choose.for_memory(inventory, device).memory_strength or "", _of_cores(inventory, device))
        for device in inventory.devices
    ]


def _of_cores(inventory: Inventory, device: Device) -> str:
    offers = choose.offers(CORES, inventory, device)
    return next((offer.strength for _, offer in offers if offer.strength is not None), "")
