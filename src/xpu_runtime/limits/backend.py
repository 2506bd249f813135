"""The protocol of a backend: one way to hold limits of a slice, for both kinds of limits alike.

A backend is one file in backends/, which defines `BACKEND`; it is registered by being there (registry.py). A
limit has a kind, MEMORY or CORES (ledger/grants.py), and belongs to the slice at one position of a grant.
All methods are called on the host; what they raise is an XpuError. This module imports next to nothing: the
end of a container imports the backends that held its limits.
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
    """What is in force for one slice: the limit (None: none), and what is counted against it (None: nothing
    is, or it is not known)."""

    limit: int | None
    used: int | None = None


class Detail(Value):
    """What a backend tells of one container, under a key of `xpu inspect --json`; `line` is for people, and
    `problem` says why it could not be read, or what is wrong with what holds the limits."""

    key: str
    value: Any
    line: str = ""
    problem: XpuError | None = None


class Change:
    """The limits of one grant, open to be changed: a context manager.

    It is entered before other changes are kept out, and does there what can take long. Every call ends within
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
        """What is counted against the limit, now; 0 where nothing is."""
        return 0


class Backend:
    """A way to hold limits. What is written here is one that holds none and has nothing to say."""

    #: The name in XPU_ENFORCE, in the ledger and in `xpu ps`: that of its file.
    NAME: str
    #: The kinds of limits that it can hold at all.
    KINDS: tuple[str, ...] = ()
    #: The best that it can offer.
    STRONGEST: str = SOFT
    #: Whether it works by way of a vendor's driver, which names it then in `Driver.backends`.
    OF_DRIVER = False
    #: Whether it holds limits on the container's own folder in cgroup v2, which not every runtime makes.
    ON_CGROUP = False
    #: Whether it serves XPU_LOG=debug.
    WRITES_LOG = False
    #: Whether it accounts for each process of a container (`account`).
    KEEPS_ACCOUNT = False
    #: Whether what it has in force is the driver's to tell, which can hang.
    ASKS_DRIVER = False
    #: Whether the containers whose limits it holds run on a device at the same time, and not in turns.
    SIDE_BY_SIDE = False
    #: Whether no card has tried it yet: docs/hardware.md, "Experimental".
    EXPERIMENTAL = False
    #: Whether it holds whole devices only, so that the configuration's default share of one is not for it.
    WHOLE_DEVICES = False

    # Before anything is granted.

    def offer(self, kind: str, inventory: Inventory, device: Device, request: Request) -> Offer:
        """Whether it can hold the limit that `request` asks for; only kinds of KINDS are asked for."""
        raise NotImplementedError

    def unasked(self, kind: str, device: Device) -> str | None:
        """How strongly it holds a whole device to itself where no limit is asked for; None: not at all."""
        return None

    def objection(self, device: Device, request: Request) -> str | None:
        """Why a request that names this backend cannot be served by `device`, beside what `offer` tells."""
        return None

    def notes(self, request: Request) -> list[str]:
        """What to tell whoever asks (`xpu explain`) of limits that it would hold."""
        return []

    # The life of a container.

    def folder_size(self, grant: Grant) -> int:
        """The bytes that `prepare` needs in the grant's folder (folders.py); 0: it makes nothing there."""
        return 0

    def prepare(self, grant: Grant, request: Request) -> None:
        """Makes what must be there before the container is: in the grant's folder, which goes with the
        grant. `request` is for what the ledger does not book, such as `sched` and `priority`."""

    def contribution(self, inventory: Inventory, grant: Grant) -> Contribution | None:
        """What it puts into the container; None: nothing. A grant of number 0 is not booked."""
        return None

    def impose(self, inventory: Inventory, grant: Grant) -> None:
        """Puts the grant's limits into force on the container; none is where that fails.

        The container exists, and no process of its own runs yet. `grant.cgroup` is its folder in cgroup v2,
        "" where it has none of its own.
        """

    def open(self, inventory: Inventory, grant: Grant) -> Change:
        """Opens the limits of a running container, to change them."""
        raise ApplyError(
            f"limits that are held by {self.NAME} cannot change while the container runs",
            "start it again with another XPU_MEM or XPU_CORES",
        )

    def must_lift(self, grant: Grant) -> bool:
        """Whether limits of the grant may be in force although its container has ended.

        It is asked as long as the container's cgroup is there: limits belong to that, or to the grant's
        folder, and end with them. So the end of most containers imports no backend.
        """
        return False

    def lift(self, inventory: Inventory, grant: Grant, unless: Callable[[], bool]) -> None:
        """Lifts the limits that `must_lift` tells of, where `unless`, asked last, does not object: the cgroup
        may be the container's next life's by then. What cannot be lifted any more is no error."""

    def ended(self, uuid: str) -> None:
        """No container needs what this backend keeps for the device with this UUID: it stops that, and
        removes the folder (per_device.py).

        Called under the device's lock, which `impose` takes as well, once the last ledger row is gone; also
        where a call was killed that made it, and again where an end was. DeviceError where it cannot be.
        """

    # While it runs, for people.

    def problem(self, grant: Grant) -> XpuError | None:
        """What is wrong with what holds the limits of a running container, for `xpu ps` and `xpu doctor`,
        with what to do; None where nothing is."""
        return self.damage(grant)

    def damage(self, grant: Grant) -> XpuError | None:
        """The part of `problem` that costs next to nothing to find out, for who looks every second: what has
        become of the grant's own files."""
        return None

    def note_of_change(self, kind: str, before: int, after: int) -> str:
        """What to tell whoever has changed a limit that it holds, besides that it is changed; "": nothing."""
        return ""

    def in_force(self, inventory: Inventory, grant: Grant, position: int, kind: str) -> InForce | None:
        """What is in force; None where that is not known."""
        return None

    def account(self, grant: Grant) -> list[ProcessUsage]:
        """What each process has of each device, by the backend's own account; OSError."""
        return []

    def compute(self, grant: Grant) -> list[Compute]:
        """What the container has used of each device's time, by position; OSError. Shorter than the grant
        where it does not measure, or where a part of it is gone."""
        return []

    def policy(self, grant: Grant, position: int) -> Policy | None:
        """How a device's time is shared, where this backend holds a cap on cores; None: there is no choice,
        or it is not known."""
        return None

    def details(self, grant: Grant, *, holds: bool) -> list[Detail]:
        """What `xpu inspect` tells of the container besides; `holds`: whether this backend holds any limit of
        it (else keys are told all the same, for scripts)."""
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
    """Bytes of the slice's device; where that is no longer there, what is booked."""
    from xpu_runtime.vendors.inventory import find

    device = find(inventory, slice_.device_uuid)
    return slice_.memory_bytes if device is None else device.memory_bytes
