"""What commands for people ask drivers, each time in a process with an end: a driver that hangs keeps none of
them from ending, and what is known without it is shown.

What is asked is known where it is used: vendors/discovery.py, limits/usage.py, limits/unaccounted.py.
"""

from __future__ import annotations

from collections.abc import Callable

from xpu_runtime.config.defaults import Config
from xpu_runtime.doctor import bounded
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import unaccounted
from xpu_runtime.limits.unaccounted import Amounts
from xpu_runtime.limits.usage import OfDrivers, Usage
from xpu_runtime.vendors import discovery
from xpu_runtime.vendors.inventory import Inventory

_HANGS = "see whether the driver's own tools answer, and `xpu doctor`"


class DriverHangsError(DeviceError):
    """The driver did not answer within bounded.DRIVER_S."""


def inventory(config: Config) -> Inventory:
    """As `discovery.load`; DriverHangsError where the driver has to be asked, and hangs."""
    known = discovery.cached(discovery.driver_root(config)[0])
    return known if known is not None else _answered(lambda: discovery.load(config))


def refreshed_inventory(config: Config) -> Inventory:
    """As drivers tell them now, with the same errors."""
    root = discovery.driver_root(config)
    return _answered(lambda: discovery.refresh(*root))


def _answered(ask: Callable[[], Inventory]) -> Inventory:
    answer = bounded.one(ask, bounded.DRIVER_S)
    if answer.values:
        return answer.values[0]  # type: ignore[no-any-return]
    if answer.hung:
        raise DriverHangsError(f"asking the driver: {answer.error}", _HANGS)
    raise DeviceError(answer.error, answer.todo)


def usage(devices: Inventory, grants: list[Grant], seconds: float = bounded.DRIVER_S) -> tuple[Usage, bool]:
    """What is known within `seconds` of what these grants use; without drivers' figures where there are none
    by then. And whether a driver hangs."""
    if not grants:
        return Usage(devices, OfDrivers({}, {}, ())), False
    answer = bounded.one(lambda: Usage(devices).of_drivers(grants), seconds)
    told = answer.values[0] if answer.values else OfDrivers({}, {}, (f"asking the driver: {answer.error}",))
    return Usage(devices, told), answer.hung


def usage_and_unaccounted(devices: Inventory, grants: list[Grant]) -> tuple[Usage, Amounts]:
    """As `usage`, and as `amounts_unaccounted`."""
    found, hangs = usage(devices, grants)
    return found, {} if hangs else amounts_unaccounted(devices, grants)


def amounts_unaccounted(devices: Inventory, grants: list[Grant]) -> Amounts:
    """What the grants' accounts lack, as `unaccounted.find`; nothing where a driver hangs."""
    held = unaccounted.with_account(grants)
    answer = bounded.one(lambda: unaccounted.find(devices, held), bounded.DRIVER_S) if held else None
    return answer.values[0] if answer and answer.values else {}
