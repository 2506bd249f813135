"""Which backend would hold which limit of which device, and why none that is stronger."""

from __future__ import annotations

from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.finding import Finding
from xpu_runtime.ledger.grants import KINDS
from xpu_runtime.limits import choose
from xpu_runtime.limits.backend import HARD
from xpu_runtime.vendors import registry
from xpu_runtime.vendors.inventory import Device, Inventory

ORDER = 100
_CHECK = "limits"


def look(machine: Machine) -> Iterator[Finding]:
    inventory = machine.inventory
    if inventory is None:
        return
    alike: dict[tuple[str, str, str | None], list[Device]] = {}
    for device in inventory.devices:
        for kind in KINDS:
            unheld = kind in machine.settings.enforcement_allow_unenforced
            alike.setdefault(_of(kind, inventory, device, unheld), []).append(device)
    for (state, text, todo), devices in alike.items():
        names = ", ".join(device.label for device in devices[:1]) + "".join(
            f", {device.index}" for device in devices[1:]
        )
        yield Finding(_CHECK, state, f"{names}: {text}", todo)
    yield from _experimental(inventory)


def _experimental(inventory: Inventory) -> Iterator[Finding]:
    """Drivers and backends that this node would use and that nobody has tried on a card."""
    offered = {
        backend.NAME
        for device in inventory.devices
        for kind in KINDS
        for backend, offer in choose.offers(kind, inventory, device)
        if backend.EXPERIMENTAL and (offer.strength or choose.whole(kind, device)[0] == backend.NAME)
    }
    there = {driver.vendor for driver in inventory.drivers}
    names = [f"GPUs of {each.name}" for each in registry.every() if each.experimental and each.name in there]
    names += [f"the backend {name}" for name in sorted(offered)]
    for name in names:
        yield finding.ok(_CHECK, f"{name}: {choose.EXPERIMENTAL}")


def _of(kind: str, inventory: Inventory, device: Device, may_be_unheld: bool) -> tuple[str, str, str | None]:
    """State, text and todo for one kind of limit; the text does not name the device."""
    name, strength = choose.whole(kind, device)
    all_of_it = f"; all of it: {name} ({strength})" if strength else ""
    offers = choose.offers(kind, inventory, device)
    best = next((each for each in offers if each[1].strength == HARD), None)
    best = best or next((each for each in offers if each[1].strength is not None), None)
    reasons = [
        f"{backend.NAME}: {offer.reason.replace(device.label, 'it')}"
        for backend, offer in offers
        if offer.strength is None and offer.reason and (best is None or backend.STRONGEST == HARD)
    ]
    why = f" (not {'; '.join(reasons)})" if reasons else ""
    if best is not None:
        return finding.OK, f"{kind} is held by {best[0].NAME} ({best[1].strength}){why}{all_of_it}", None
    text = f"nothing on this node holds a limit of {kind}{why}{all_of_it}"
    if may_be_unheld:
        return finding.OK, f"{text}; it is booked only, as enforcement.allow_unenforced says", None
    todo = (
        f"allow it by `enforcement: {{allow_unenforced: [{kind}]}}`, or mend the cause that the reason names"
    )
    return finding.WARNING, f"{text}: containers that ask for one are refused", todo
