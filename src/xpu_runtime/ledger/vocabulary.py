"""The kinds of events and the codes of refusals, with their meanings.

For commands, metrics and pages (docs/reference/events.md, errors.md): a container's start writes events and
refuses without them.
"""

from __future__ import annotations

from typing import Literal

from xpu_runtime.ledger import events
from xpu_runtime.value import Value

#: By kind, for a column of 60 characters.
KINDS = {
    events.GRANTED: "A container got a slice.",
    events.REFUSED: "A container got no slice; the reason says why.",
    events.FAILED: "A container with a request did not start; the reason says why.",
    events.RESIZED: "`xpu set` changed limits of a slice, or its share of time.",
    events.RELEASED: "A container ended and gave its slice back.",
    events.REAPED: "A container died without notice; its slice was taken back.",
    events.DRAINED: "A device gets no new slices (`xpu drain`).",
    events.UNDRAINED: "A device gets new slices again (`xpu undrain`).",
    events.RESERVED: "A device is kept for a reservation (`xpu reserve`).",
    events.UNRESERVED: "A device is for everyone again (`xpu unreserve`).",
    events.POD_RESERVED: "A part of this node is reserved for a Kubernetes pod.",
    events.POD_UNRESERVED: "The part that was reserved for a pod is free again.",
    events.HELD: "`xpu agent` holds a slice more strictly: it used more than its cap.",
    events.UNHELD: "`xpu agent` holds the slice as usual again.",
}

Code = Literal[
    "no-device",
    "unknown-device",
    "unknown-reservation",
    "not-eligible",
    "not-enough-devices",
    "not-enough-memory",
    "not-enough-cores",
    "not-enough",
    "in-use",
    "over-quota",
    "wrong-request",
    "wrong-assignment",
    "below-use",
]


class Meaning(Value):
    """A code's meaning and remedy."""

    text: str
    todo: str
    #: The exit status of `xpu explain` or `xpu set`.
    exit_status: int = 3


CODES: dict[Code, Meaning] = {
    "no-device": Meaning("The node has no device.", "`xpu doctor` says why; `xpu devices` lists devices."),
    "unknown-device": Meaning(
        "`XPU_VISIBLE_DEVICES` names a device that the node does not have.", "`xpu devices` lists devices."
    ),
    "unknown-reservation": Meaning(
        "No device is reserved under the name in `XPU_RESERVATION`.",
        "Correct the name: the line lists those that exist. Or the reservation is over.",
    ),
    "not-eligible": Meaning(
        "No device can serve this request; the line has the reason of each.",
        "Leave out conditions that none meets (`XPU_REQUIRE`, `XPU_ENFORCE`), or see `xpu devices`.",
    ),
    "not-enough-devices": Meaning(
        "Fewer devices can serve the request than it asks for.", "Ask for fewer devices, or for less of each."
    ),
    "not-enough-memory": Meaning(
        "No device has so much memory free.",
        "Ask for the request that ends the line, if one does; `xpu ps` shows who holds the rest.",
    ),
    "not-enough-cores": Meaning(
        "No device has so large a share of its time free.",
        "Ask for the request that ends the line, if one does; `xpu ps` shows who holds the rest.",
    ),
    "not-enough": Meaning(
        "No single device has the memory and the share of time free.",
        "Ask for the request that ends the line, if one does; or wait.",
    ),
    "in-use": Meaning(
        "A whole device is requested, and each one is in use.",
        "Set `XPU_MEM` to share a device, or wait; `xpu ps` shows who holds them.",
    ),
    "over-quota": Meaning(
        "The request fits on the node and exceeds a quota of `policy.quotas`.",
        "Ask for less, or end a container that counts towards the quota.",
    ),
    "wrong-request": Meaning(
        "The request is misspelt, out of range, contradictory or against the policy.",
        "Correct it as the line says.",
        2,
    ),
    "wrong-assignment": Meaning(
        "The assignment of a pod is not valid, or not valid any more.",
        "Delete the pod: its controller creates it again, and it is scheduled anew.",
        2,
    ),
    "below-use": Meaning(
        "`xpu set` asks for a limit below the container's present use.",
        "Free memory in the container first, or give `--force`.",
    ),
}
#: A container can be refused for these; `xpu set` alone for the other.
OF_STARTS: tuple[str, ...] = tuple(code for code in CODES if code != "below-use")
