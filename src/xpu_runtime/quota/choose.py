"""Which backend holds the limits of a slice, and how strongly.

The strongest that is available is taken, for memory and for cores each on its own. Where none can
hold a limit the device does not serve the request, unless the configuration lets that kind of limit go
unheld, which `xpu ps` then says. A backend is one file beside this one.
"""

from __future__ import annotations

from xpu_runtime.devices.inventory import Device, Inventory
from xpu_runtime.ledger.grants import Holding
from xpu_runtime.quota import driver, library
from xpu_runtime.request.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config

NONE = "none"
UNENFORCED = "unenforced"
SOFT = "soft"
MIG = "mig"

#: Backends that hold memory only: XPU_ENFORCE with such a name says nothing about cores.
_FOR_MEMORY = (driver.NAME, library.NAME)

#: A backend and its strength.
_Pair = tuple[str | None, str | None]


def holding(found: Inventory, device: Device, request: Request, config: Config) -> tuple[Holding, str | None]:
    """What holds this request's limits on `device`, and why the device cannot serve it (None: it can)."""
    memory: _Pair = (None, None)
    cores: _Pair = (None, None)
    reasons: list[str | None] = []
    capped = request.cores is not None and request.cores < 100
    if request.enforce == MIG and (request.memory or capped or not device.is_mig):
        return Holding(), "XPU_ENFORCE=mig asks for a whole MIG device, without XPU_MEM and XPU_CORES"
    if request.memory:
        memory, reason = _memory(found, device, request, config)
        reasons.append(reason)
    elif device.is_mig:
        # All of a MIG device: the hardware keeps its memory apart from its neighbours'.
        memory = (MIG, "hard")
    if capped:
        cores, reason = _cores(request, config)
        if reason and request.cores_from:
            reason += f" (the cap is of {request.cores_from})"
        reasons.append(reason)
    elif device.is_mig:
        cores = (MIG, "hard")
    return Holding(*memory, *cores), "; and ".join(reason for reason in reasons if reason) or None


def for_memory(found: Inventory, device: Device) -> Holding:
    """What would hold a limit on a part of this device's memory, for a container that cannot lift it."""
    if driver.unavailable(found, device) is None:
        return Holding(driver.NAME, driver.STRENGTH)
    if library.unavailable(found, device) is None:
        return Holding(library.NAME, library.STRENGTH)
    return Holding(NONE, UNENFORCED)


def _memory(found: Inventory, device: Device, request: Request, config: Config) -> tuple[_Pair, str | None]:
    reasons = []
    if request.enforce in ("auto", "hard", driver.NAME):
        reason = driver.unavailable(found, device)
        if reason is None and not request.can_lift:
            return (driver.NAME, driver.STRENGTH), None
        if reason is None and request.enforce != "hard":
            return (driver.NAME, SOFT), None
        reasons.append(reason or f"{request.can_lift}, and could lift a limit that the driver holds")
    if request.enforce in ("auto", library.NAME):
        reason = library.unavailable(found, device) or library.cannot_count(request.capabilities)
        if reason is None:
            return (library.NAME, library.STRENGTH), None
        reasons.append(reason)
    return _unheld("memory", ", and ".join(reasons) or _no_such("memory", request.enforce), request, config)


def _cores(request: Request, config: Config) -> tuple[_Pair, str | None]:
    if request.enforce in ("auto", "hard", *_FOR_MEMORY):
        reason = "nothing on this node can hold a cap on cores"
    else:
        reason = _no_such("cores", request.enforce)
    return _unheld("cores", reason, request, config)


def _no_such(kind: str, name: str) -> str:
    if name == NONE:
        return f"XPU_ENFORCE=none leaves {kind} without a limit"
    return f"the backend {name!r} is not available on this node for {kind}"


def _unheld(kind: str, reason: str, request: Request, config: Config) -> tuple[_Pair, str | None]:
    """The limit goes unheld where the request and the configuration allow that."""
    if request.enforce == "hard":
        return (None, None), f"{reason}, and XPU_ENFORCE=hard is asked"
    says_nothing = kind == "cores" and request.enforce in _FOR_MEMORY
    if request.enforce not in ("auto", NONE) and not says_nothing:
        return (None, None), reason
    if kind in config.enforcement_allow_unenforced:
        return (NONE, UNENFORCED), None
    return (None, None), f"{reason}, and enforcement.allow_unenforced does not list {kind}"
