"""Marks on devices (drained, reserved), applied to the candidates of a request.

Imported only if there may be a mark, or a request names a reservation: most starts do without.
"""

from __future__ import annotations

from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.placement.available import Candidate
from xpu_runtime.request.request import Request
from xpu_runtime.vendors import marks
from xpu_runtime.vendors.marks import Marks

#: Reservations that a refusal names.
_NAMES = 8


def unmarked(choice: list[Candidate], request: Request) -> list[Candidate] | Refusal:
    """The candidates; drained ones and those of another reservation cannot serve. For a request with a
    reservation, `all` means the devices of that. ConfigError if the marks cannot be read."""
    told, wanted = marks.read(), request.reservation
    if wanted is not None and request.choice != "list":
        own = [each for each in choice if _reserved_for(told, each) == wanted]
        if not own:
            return _unknown(wanted, choice, told)
        if request.choice == "all":
            choice = own
    return [_unless_marked(each, told, wanted) for each in choice]


def _reserved_for(told: Marks, candidate: Candidate) -> str | None:
    reservation = told.reservation(candidate.device)
    return reservation.name if reservation is not None else None


def _unknown(wanted: str, choice: list[Candidate], told: Marks) -> Refusal:
    known = sorted({name for each in choice if (name := _reserved_for(told, each))})
    there = f"; reserved are devices for {', '.join(known[:_NAMES])}" if known else ""
    text = f"XPU_RESERVATION={wanted}: no device that it could have is reserved for that name{there}"
    return Refusal("unknown-reservation", text)


def _unless_marked(candidate: Candidate, told: Marks, wanted: str | None) -> Candidate:
    reasons = [candidate.reason] if candidate.reason else []
    reservation = told.reservation(candidate.device)
    if reservation is None:
        if wanted is not None:
            reasons.insert(0, f"not reserved for {wanted}")
    elif reservation.name != wanted:
        unset = "" if wanted else " (XPU_RESERVATION is not set)"
        reasons.insert(0, marks.as_reserved(reservation) + unset)
    device = candidate.device
    drained = told.why_drained(device)
    if drained is not None:
        marked = device.index if device.uuid in told.drained else device.parent
        reasons.insert(0, f"{marks.as_drained(drained)} (until xpu undrain {marked})")
    return candidate.replace(reason="; and ".join(reasons)) if reasons else candidate
