"""What grants use, asked of drivers in a process of its own: one that hangs keeps no command from ending.

For commands for people. What is asked, and what becomes of it, is limits/usage.py's to know.
"""

from __future__ import annotations

from xpu_runtime.doctor import bounded
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import unaccounted
from xpu_runtime.limits.unaccounted import Amounts
from xpu_runtime.limits.usage import OfDrivers, Usage
from xpu_runtime.vendors.inventory import Inventory


def of(inventory: Inventory, grants: list[Grant], seconds: float = bounded.DRIVER_S) -> tuple[Usage, bool]:
    """What is known within `seconds` of what these grants use; without drivers' figures where there are none
    by then. And whether a driver hangs."""
    if not grants:
        return Usage(inventory, OfDrivers({}, {}, ())), False
    answer = bounded.one(lambda: Usage(inventory).of_drivers(grants), seconds)
    told = answer.values[0] if answer.values else OfDrivers({}, {}, (f"asking the driver: {answer.error}",))
    return Usage(inventory, told), answer.hung


def with_unaccounted(inventory: Inventory, grants: list[Grant]) -> tuple[Usage, Amounts]:
    """As `of`, and what their accounts lack of what drivers count."""
    found, hangs = of(inventory, grants)
    return found, {} if hangs else find_unaccounted(inventory, grants)


def find_unaccounted(inventory: Inventory, grants: list[Grant]) -> Amounts:
    """As `unaccounted.find`; nothing where a driver hangs."""
    held = unaccounted.with_account(grants)
    answer = bounded.one(lambda: unaccounted.find(inventory, held), bounded.DRIVER_S) if held else None
    return answer.values[0] if answer and answer.values else {}
