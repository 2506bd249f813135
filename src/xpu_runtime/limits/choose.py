"""Which backend holds the limits of a slice, and how strongly.

The strongest that is available is taken, for memory and for cores each on its own. Where none can
hold a limit the device does not serve the request, unless the configuration lets that kind of limit go
unheld, which `xpu ps` then says. Which backends there are is the registry's to know.
"""

from __future__ import annotations

from xpu_runtime.ledger.grants import CORES, KINDS, MEMORY, Holding, Slice
from xpu_runtime.limits import registry
from xpu_runtime.limits.backend import HARD, SOFT, Backend, Offer
from xpu_runtime.request.request import Request
from xpu_runtime.vendors.inventory import Device, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config

    #: A backend and its strength.
    _Pair = tuple[str | None, str | None]

#: The note on a backend or a vendor that has not been tried on a card.
EXPERIMENTAL = "experimental: no card has tried it yet (docs/hardware.md)"
#: The strength of a limit that is booked and held by nothing.
UNENFORCED = "unenforced"

#: From the weakest.
_STRENGTHS = (UNENFORCED, SOFT, HARD)
#: The name of a kind of limit in a refusal.
_LIMIT_OF = {MEMORY: "hold a memory limit", CORES: "hold a cap on cores"}


def holding(
    inventory: Inventory, device: Device, request: Request, config: Config
) -> tuple[Holding, str | None]:
    """The backends of this request's limits on `device`, and why the device cannot serve it (None: it
    can)."""
    named = _named(request)
    objection = named.objection(device, request) if named is not None else None
    if objection is not None:
        return Holding(), objection
    pairs: list[_Pair] = []
    reasons: list[str] = []
    for kind, asked in ((MEMORY, bool(request.memory)), (CORES, request.caps_cores)):
        pair, reason = (
            _for_kind(kind, inventory, device, request, config) if asked else (_unasked(kind, device), "")
        )
        if asked and not reason and request.of_pod is not None and request.enforce not in ("auto", HARD):
            reason = _weaker(kind, pair, inventory, device, request, config)
        pairs.append(pair)
        if reason and reason not in reasons:  # one for both is said once
            reasons.append(reason)
        if reason and kind == CORES and request.cores_from:
            reasons[-1] += f" (the cap comes from {request.cores_from})"
    memory, cores = pairs
    return Holding(*memory, *cores), "; and ".join(reasons) or None


def takes_default(request: Request) -> bool:
    """Whether the configuration's default share of a device applies to a request without XPU_MEM."""
    named = _named(request)
    return named is None or not named.WHOLE_DEVICES


def for_memory(inventory: Inventory, device: Device) -> Holding:
    """The backend that would hold a limit on a part of this device's memory, for a container that cannot lift
    it."""
    backends = [backend for backend in registry.every() if MEMORY in backend.KINDS]
    best, _ = _best(backends, MEMORY, inventory, device, Request())
    return Holding(*(best or (registry.NONE, UNENFORCED)))


def offers(kind: str, inventory: Inventory, device: Device) -> list[tuple[Backend, Offer]]:
    """The backends' offers for a part of this device, the strongest first; `whole` is for a whole device."""
    backends = [backend for backend in registry.every() if kind in backend.KINDS]
    return [(each, _offer(each, kind, inventory, device, Request())) for each in backends]


def whole(kind: str, device: Device) -> tuple[str | None, str | None]:
    """The backend that holds all of a device by itself, and how strongly; (None, None): none does."""
    return _unasked(kind, device)


def _named(request: Request) -> Backend | None:
    return None if request.enforce in ("auto", HARD, registry.NONE) else registry.load(request.enforce)


def _unasked(kind: str, device: Device) -> _Pair:
    """The holder of a whole device: the hardware."""
    for backend in registry.every():
        strength = backend.unasked(kind, device)
        if strength is not None:
            return backend.NAME, strength
    return None, None


def _for_kind(
    kind: str, inventory: Inventory, device: Device, request: Request, config: Config
) -> tuple[_Pair, str]:
    """The backend of a requested limit, and why there is none ("": there is one)."""
    named = _named(request)
    # A backend that has no such limits says nothing about them.
    meant = named if named is not None and kind in named.KINDS else None
    if request.enforce == registry.NONE:
        reason = f"XPU_ENFORCE=none leaves {kind} without a limit"
    else:
        able = [meant] if meant is not None else [each for each in registry.every() if kind in each.KINDS]
        if request.enforce == HARD:
            able = [backend for backend in able if backend.STRONGEST == HARD]
        best, why_not = _best(able, kind, inventory, device, request)
        if best is not None:
            return best, ""
        reason = ", and ".join(why_not) or f"nothing on this node can {_LIMIT_OF[kind]}"
    if request.enforce == HARD:
        return (None, None), f"{reason}, and XPU_ENFORCE=hard is set"
    if meant is not None:
        return (None, None), reason
    if kind in config.enforcement_allow_unenforced:
        return (registry.NONE, UNENFORCED), ""
    return (None, None), f"{reason}, and enforcement.allow_unenforced does not list {kind}"


def _weaker(
    kind: str, named: _Pair, inventory: Inventory, device: Device, request: Request, config: Config
) -> str:
    """Why a pod's container may not name its backend; "": it may.

    The node's labels, and its annotation for the scheduler, promise how strongly limits are held there, and
    the amounts were given by that: an author must not exchange a hard limit for a soft one.
    """
    if config.policy_pods_may_weaken_limits:
        return ""
    (backend, strength), _ = _for_kind(kind, inventory, device, request.replace(enforce="auto"), config)
    if strength not in _STRENGTHS or _STRENGTHS.index(strength) <= _STRENGTHS.index(named[1] or UNENFORCED):
        return ""
    return (
        f"XPU_ENFORCE={request.enforce} would leave {kind} {named[1]}, which {backend} holds {strength}, and "
        "policy.pods_may_weaken_limits is false"
    )


def _best(
    backends: list[Backend], kind: str, inventory: Inventory, device: Device, request: Request
) -> tuple[_Pair | None, list[str]]:
    """The strongest that these backends offer, the first of equals; or None, and why none does."""
    offers: list[tuple[Backend, Offer]] = []
    for backend in backends:
        offer = _offer(backend, kind, inventory, device, request)
        offers.append((backend, offer))
        if offer.strength == HARD:
            return (backend.NAME, HARD), []
    for backend, offer in offers:
        if offer.strength is not None and request.enforce != HARD:
            return (backend.NAME, offer.strength), []
    return None, [offer.reason for _, offer in offers if offer.reason]


def _offer(backend: Backend, kind: str, inventory: Inventory, device: Device, request: Request) -> Offer:
    if not backend.OF_DRIVER or backend.NAME in inventory.driver(device.vendor).backends:
        return backend.offer(kind, inventory, device, request)
    # Worth a line only if the request names that backend.
    named = request.enforce == backend.NAME
    return Offer(None, f"{backend.NAME} cannot hold limits of {device.vendor} devices" if named else "")


def notes(slices: tuple[Slice, ...], request: Request) -> list[str]:
    """Notes of the backends that hold these limits, and why a requested log stays empty."""
    told = [note for backend in registry.known(slices) for note in backend.notes(request)]
    told += [f"{each.NAME} is {EXPERIMENTAL}" for each in registry.known(slices) if each.EXPERIMENTAL]
    silent = why_no_log(slices) if request.log else None
    return [*told, silent] if silent else told


def why_no_log(slices: tuple[Slice, ...]) -> str | None:
    """Why XPU_LOG=debug writes nothing in a container with these slices; None if it does."""
    if any(backend.WRITES_LOG for backend in registry.known(slices)):
        return None
    held = sorted({slice_.holder(MEMORY) or "" for slice_ in slices} - {"", registry.NONE})
    why = f"its memory limit is held by: {', '.join(held)}" if held else "nothing holds a memory limit of it"
    return f"XPU_LOG=debug writes no log, since only the interposer libraries write it, and {why}"


def unheld(slices: tuple[Slice, ...]) -> list[str]:
    """The limits that are booked and held by nothing, as `memory of GPU 0`."""
    return [
        f"{kind} of GPU {slice_.device_index}"
        for slice_ in slices
        for kind in KINDS
        if slice_.holder(kind) == registry.NONE
    ]
