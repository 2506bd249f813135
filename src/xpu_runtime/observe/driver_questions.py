"""Commands' questions to drivers, each in a process with a deadline: a command ends even if a driver hangs,
and shows the facts that need no driver.

The questions are in vendors/discovery.py, limits/usage.py and limits/unaccounted.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import CORES, Grant
from xpu_runtime.limits import sharing, unaccounted, unaccounted_time
from xpu_runtime.limits.sharing import Shares
from xpu_runtime.limits.unaccounted import Amounts
from xpu_runtime.limits.usage import OfDrivers, Usage
from xpu_runtime.linux import deadline
from xpu_runtime.linux.deadline import Answer
from xpu_runtime.vendors import discovery
from xpu_runtime.vendors.inventory import Inventory

#: Seconds that a command waits for drivers; to open one takes a second or two.
_DRIVER_S = 8.0
_HANGS = "see whether the driver's own tools answer, and `xpu doctor`"


class DriverHangsError(DeviceError):
    """The driver has not answered."""


#: With the driver, of all questions of this command: `--watch` would make more and more processes that hang.
_backoff = deadline.Backoff()


def one(call: Callable[[], Any], seconds: float = _DRIVER_S) -> Answer:
    """As `deadline.one`; of a driver that hung, for a while, that it does."""
    if (last := _backoff.last()) is not None:
        return last
    answer = deadline.one(call, seconds)
    if answer.died:  # of its library
        answer = answer.replace(error=f"asking the driver failed: {answer.error}", todo=_HANGS)
    if answer.hung:
        answer = answer.replace(error=f"the driver did not answer within {seconds:.0f} s", todo=_HANGS)
        _backoff.take(answer)
    else:
        _backoff.reset()
    return answer


def inventory(config: Config) -> Inventory:
    """As `discovery.load`; DriverHangsError where the driver has to be asked, and hangs."""
    known = discovery.cached(discovery.driver_root(config)[0])
    return known if known is not None else _answered(lambda: discovery.load(config))


def refreshed_inventory(config: Config) -> Inventory:
    """The drivers' present inventory, with the same errors."""
    root = discovery.driver_root(config)
    return _answered(lambda: discovery.refresh(*root))


def _answered(ask: Callable[[], Inventory]) -> Inventory:
    answer = one(ask)
    if answer.values:
        return answer.values[0]  # type: ignore[no-any-return]
    raise (DriverHangsError if answer.hung else DeviceError)(answer.error, answer.todo)


def usage(devices: Inventory, grants: list[Grant], seconds: float = _DRIVER_S) -> Usage:
    """The use of these grants; without drivers' figures if those do not come within `seconds`."""

    def ask() -> OfDrivers:
        answer = one(lambda: Usage(devices).of_drivers(grants), seconds)
        return answer.values[0] if answer.values else OfDrivers({}, {}, (answer.why,), silent=True)

    return Usage(devices, ask)


def usage_and_unaccounted(devices: Inventory, grants: list[Grant]) -> tuple[Usage, Amounts]:
    """As `usage`, and as `amounts_unaccounted`."""
    return usage(devices, grants), amounts_unaccounted(devices, grants)


def shares(devices: Inventory, grants: list[Grant]) -> Shares:
    """As `unaccounted_time.got`; without the driver's count if it hangs."""
    if not any(slice_.holder(CORES) for grant in grants for slice_ in grant.slices):
        return {}
    answer = one(lambda: unaccounted_time.got(devices, grants))
    return answer.values[0] if answer.values else sharing.got(grants)


def amounts_unaccounted(devices: Inventory, grants: list[Grant]) -> Amounts:
    """The memory that the grants' accounts lack, as `unaccounted.find`; nothing if a driver hangs."""
    held = unaccounted.with_account(grants)
    answer = one(lambda: unaccounted.find(devices, held)) if held else None
    return answer.values[0] if answer and answer.values else {}
