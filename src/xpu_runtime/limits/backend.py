"""The protocol of a backend: one way to hold limits of a slice, for both kinds of limits alike.

A backend is one file in backends/, which defines `BACKEND`; it is registered by being there (registry.py). A
limit has a kind, MEMORY or CORES (ledger/grants.py), and belongs to the slice at one position of a grant. All
methods are called on the host, and raise only XpuError. This module imports next to nothing: the end of a
container imports the backends that held its limits.
"""

from __future__ import annotations

from xpu_runtime.errors import ApplyError
from xpu_runtime.ledger.grants import KINDS
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from typing_extensions import Self

    from xpu_runtime.delivery.contribution import Contribution
    from xpu_runtime.errors import XpuError
    from xpu_runtime.ledger.grants import Grant, Slice
    from xpu_runtime.limits.pages import Compute, Policy
    from xpu_runtime.limits.usage_page import ProcessUsage
    from xpu_runtime.request.request import Request
    from xpu_runtime.vendors.inventory import Device, Inventory

#: How strongly a limit is held: the container cannot get round it, or it can if it means to.
HARD, SOFT = "hard", "soft"


class Offer(Value):
    """How strongly a backend can hold a limit (None: not at all), and why no more strongly ("": untold)."""

    strength: str | None
    reason: str = ""


class InForce(Value):
    """The limit in force for one slice (None: none), and the use that counts against it (None: none, or not
    known)."""

    limit: int | None
    used: int | None = None


class Detail(Value):
    """A backend's facts about one container, under a key of `xpu inspect --json`; `line` is for people, and
    `problem` says why it could not be read, or which fault the backend has."""

    key: str
    value: Any
    line: str = ""
    problem: XpuError | None = None


class Change:
    """The limits of one grant, open to be changed: a context manager.

    It is entered before other changes are locked out, and does its slow work there. Every call ends within
    seconds; none is made while the ledger is locked.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set(self, position: int, kind: str, value: int) -> None:
        """Puts a limit into force at once, for every process of the container."""
        raise NotImplementedError

    def set_policy(self, position: int, policy: Policy) -> None:
        """Changes how the device's time is shared at once; only where `Backend.policy` tells of it."""
        raise NotImplementedError

    def in_use(self, position: int, kind: str) -> int:
        """The use that counts against the limit, now."""
        return 0


class Backend:
    """A way to hold limits. This base class holds none."""

    #: The name in XPU_ENFORCE, in the ledger and in `xpu ps`: that of its file.
    NAME: str
    #: The kinds of limits that it can hold at all.
    KINDS: tuple[str, ...] = ()
    #: The best that it can offer.
    STRONGEST: str = SOFT
    #: Whether it works through a vendor's driver, which then names it in `Driver.backends`.
    OF_DRIVER = False
    #: Whether it holds limits on the container's own folder in cgroup v2, which not every runtime makes.
    ON_CGROUP = False
    #: Whether it serves XPU_LOG=debug.
    WRITES_LOG = False
    #: Whether it accounts for each process of a container (`account`).
    KEEPS_ACCOUNT = False
    #: Whether only the driver, which can hang, knows the limits in force.
    ASKS_DRIVER = False
    #: Whether its containers run on a device at the same time, and not in turns.
    SIDE_BY_SIDE = False
    #: Whether it has not been tried on a card yet: docs/hardware.md, "Experimental".
    EXPERIMENTAL = False
    #: Whether it holds whole devices only, so that the configuration's default share of one is not for it.
    WHOLE_DEVICES = False

    # Before anything is granted.

    def offer(self, kind: str, inventory: Inventory, device: Device, request: Request) -> Offer:
        """Whether it can hold the limit of `request`; called only for kinds of KINDS."""
        raise NotImplementedError

    def unasked(self, kind: str, device: Device) -> str | None:
        """How strongly it holds a whole device to itself where no limit is asked for; None: not at all."""
        return None

    def objection(self, device: Device, request: Request) -> str | None:
        """Why `device` cannot serve a request that names this backend, besides `offer`'s reasons."""
        return None

    def notes(self, request: Request) -> list[str]:
        """Notes for `xpu explain` about limits that it would hold."""
        return []

    # The life of a container.

    def folder_size(self, grant: Grant) -> int:
        """The bytes that `prepare` needs in the grant's folder (folders.py); 0: it makes nothing there."""
        return 0

    def prepare(self, grant: Grant, request: Request) -> None:
        """Makes its files before the container exists, in the grant's folder, which goes with the grant.
        `request` has settings that the ledger does not book, such as `sched` and `priority`."""

    def contribution(self, inventory: Inventory, grant: Grant) -> Contribution | None:
        """Its files for the container; None: none. A grant of number 0 is not booked."""
        return None

    def impose(self, inventory: Inventory, grant: Grant) -> None:
        """Puts the grant's limits into force on the container; if it fails, none is in force.

        The container exists, and no process of its own runs yet. `grant.cgroup` is its folder in cgroup v2,
        "" if it has none of its own.
        """

    def open(self, inventory: Inventory, grant: Grant) -> Change:
        """Opens the limits of a running container, to change them."""
        raise ApplyError(
            f"limits that are held by {self.NAME} cannot change while the container runs",
            "start it again with another XPU_MEM or XPU_CORES",
        )

    def must_lift(self, grant: Grant) -> bool:
        """Whether limits of the grant may be in force although its container has ended.

        Called as long as the container's cgroup exists: limits belong to that, or to the grant's folder, and
        end with them. So the end of most containers imports no backend.
        """
        return False

    def lift(self, inventory: Inventory, grant: Grant, unless: Callable[[], bool]) -> None:
        """Lifts the limits of `must_lift`, unless `unless`, called last, objects: the cgroup may belong to
        the container's next life by then. A limit that cannot be lifted any more is no error."""

    def ended(self, uuid: str) -> None:
        """Stops the daemon that this backend keeps for the device with this UUID, and removes its folder
        (per_device.py): no container needs it any more.

        Called under the device's lock, which `impose` takes as well, once the last ledger row is gone. It is
        also called after a start or an end was killed. DeviceError if it cannot be stopped.
        """

    # While it runs, for people.

    def problem(self, grant: Grant) -> XpuError | None:
        """The fault, with its remedy, of this backend for a running container, for `xpu ps` and `xpu doctor`;
        None if there is none."""
        return self.damage(grant)

    def damage(self, grant: Grant) -> XpuError | None:
        """The cheap part of `problem`, for callers that look every second: faults of the grant's own
        files."""
        return None

    def note_of_change(self, kind: str, before: int, after: int) -> str:
        """A note for the person who changed a limit that it holds; "": none."""
        return ""

    def in_force(self, inventory: Inventory, grant: Grant, position: int, kind: str) -> InForce | None:
        """The limits in force; None if not known."""
        return None

    def account(self, grant: Grant) -> list[ProcessUsage]:
        """Each process's use of each device, by the backend's own account; OSError."""
        return []

    def compute(self, grant: Grant) -> list[Compute]:
        """The container's use of each device's time, by position; OSError. Shorter than the grant if it does
        not measure, or if a part of the page is gone."""
        return []

    def policy(self, grant: Grant, position: int) -> Policy | None:
        """How a device's time is shared, where this backend holds a cap on cores; None: there is no choice,
        or it is not known."""
        return None

    def details(self, grant: Grant, *, holds: bool) -> list[Detail]:
        """Further facts for `xpu inspect`; `holds`: whether this backend holds a limit of the container (if
        not, the keys are there all the same, for scripts)."""
        return []


def held(grant: Grant, name: str) -> list[tuple[int, str, int]]:
    """The limits of a grant that the backend `name` holds: position, kind and value of each."""
    return [
        (position, kind, value)
        for position, slice_ in enumerate(grant.slices)
        for kind in KINDS
        if slice_.holder(kind) == name and (value := slice_.limit(kind)) is not None
    ]


def device_memory(inventory: Inventory, slice_: Slice) -> int:
    """Bytes of the slice's device; if that is gone, the booked bytes."""
    from xpu_runtime.vendors.inventory import find

    device = find(inventory, slice_.device_uuid)
    return slice_.memory_bytes if device is None else device.memory_bytes
