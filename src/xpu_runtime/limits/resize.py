"""Changes the limits of a running container: in the ledger, and where they are held.

At no instant, that of a `kill -9` included, does the ledger say less than a backend allows: what shrinks is
put into force before it is booked, and what grows after. Both happen while the ledger is locked and read
it anew, so that of two changes at once, or of one and the container's end, none mixes with the other. The
lock is held for a bounded time all the same: see `Change` in backend.py. A change that was cut short is
completed by repeating it. Memory and cores go the same way, and no backend is named here. How a device's time
is shared is booked nowhere: it is put into force last, when nothing can be refused any more, and is an event.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from xpu_runtime.errors import ApplyError, DeviceError, XpuError
from xpu_runtime.ledger import survivors
from xpu_runtime.ledger.grants import CORES, KINDS, MEMORY, Grant, Slice, Use
from xpu_runtime.ledger.refusal import Refusal, Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import registry
from xpu_runtime.limits.backend import Change
from xpu_runtime.limits.pages import Policy
from xpu_runtime.limits.usage import Usage
from xpu_runtime.placement import resizing
from xpu_runtime.request.units import Memory
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Device, Inventory, find

#: A limit of a grant: the position of its slice, and its kind.
_Limit = tuple[int, str]


class Wanted(Value):
    """What each slice is to get; None: it keeps what it has."""

    memory: Memory | None = None
    #: Percent.
    cores: int | None = None
    #: How the devices' time is shared: request.SCHEDS and PRIORITIES.
    sched: str | None = None
    priority: str | None = None

    def shares(self) -> bool:
        """Whether it changes how the devices' time is shared."""
        return self.sched is not None or self.priority is not None

    def kinds(self) -> list[str]:
        """The kinds of limits that change."""
        return [kind for kind, value in zip(KINDS, (self.memory, self.cores)) if value is not None]


def resize(
    inventory: Inventory,
    grant: Grant,
    positions: tuple[int, ...],
    wanted: Wanted,
    *,
    oversubscribe: float,
    usage: Usage | None,
    clear: Callable[[list[Grant]], None],
) -> Grant:
    """Gives the slices of `grant` at `positions` the limits of `wanted` each, or none of them; the new grant.

    Refused where a device has not enough free, or where the container uses more than that by `usage` (None:
    whatever it uses); XpuError where there is no limit to change, or where it cannot be changed. `clear` does
    what `enforce.clear` does, for dead containers that were met with: in the end, as it may take long.
    """
    if grant.state != "running":
        raise ApplyError(f"container {grant.container_id} is still being created", "try again when it runs")
    limits = [(position, kind) for position in positions for kind in wanted.kinds()]
    shared = [(position, CORES) for position in positions if wanted.shares()]
    for position, kind in dict.fromkeys((*limits, *shared)):
        _check(inventory, grant.slices[position], kind)
    dead: list[Grant] = []
    try:
        with _Backends(inventory, grant, [*limits, *shared]) as backends, Ledger() as ledger:
            change = _Resize(inventory, limits, wanted, oversubscribe, backends)
            for position, _ in shared:
                now, policy = _policies(grant, position, wanted)
                change.share(grant, position, now, policy)
            if usage is not None and wanted.memory is not None:
                change.in_use = {p: usage.larger(grant, p) for p in positions}
                change.problems = usage.problems
            after = _put_into_force(ledger, grant.id, change, dead)
    finally:
        if dead:
            clear(dead)
    if after is None:
        raise ApplyError(f"container {grant.container_id} has ended", "see `xpu ps`")
    return after


def _check(inventory: Inventory, slice_: Slice, kind: str) -> None:
    """XpuError where this slice has no limit that could be changed."""
    where = f"GPU {slice_.device_index}"
    device = find(inventory, slice_.device_uuid)
    if slice_.limit(kind) is None:
        raise _no_limit(slice_, device, kind)
    if kind == CORES and slice_.holder(kind) == registry.NONE:
        raise ApplyError(
            f"the cap of {slice_.cores}% on the cores of {where} is booked and nothing on this node holds "
            "it: it cannot change while the container runs",
            "start the container again with another XPU_CORES",
        )
    if device is None:
        raise DeviceError(f"{where} ({slice_.device_uuid}) is no longer there", "see `xpu devices`")


def _policies(grant: Grant, position: int, wanted: Wanted) -> tuple[Policy, Policy]:
    """How the time of the device at `position` is shared, and will be; ApplyError without a choice."""
    slice_ = grant.slices[position]
    holder = registry.holder(slice_, CORES)
    now = None if holder is None else holder.policy(grant, position)
    if now is None:
        raise ApplyError(
            f"the cap on the cores of GPU {slice_.device_index} is held by {slice_.holder(CORES)}, "
            "which has neither --sched nor --priority",
            "change --cores alone",
        )
    return now, now.replace(sched=wanted.sched or now.sched, priority=wanted.priority or now.priority)


def _no_limit(slice_: Slice, device: Device | None, kind: str) -> ApplyError:
    if kind == CORES:
        return ApplyError(
            f"the container has no cap on the cores of GPU {slice_.device_index}",
            "start it again with XPU_CORES",
        )
    if device is not None and device.is_partition:
        return ApplyError(
            f"the container has all of {device.label}, whose memory the hardware fixes",
            "start it again on a partition of another size",
        )
    return ApplyError(
        f"the container has no memory limit on GPU {slice_.device_index}: the whole device is its own",
        "start it again with XPU_MEM",
    )


def _put_into_force(ledger: Ledger, number: int, change: _Resize, dead: list[Grant]) -> Grant | None:
    """Books the change and puts it into force; the new grant, None where its container has ended. `dead` gets
    the grants of dead containers that the ledger has removed."""
    try:
        after, removed = ledger.resize(number, change.book)
    except BaseException as error:
        if not _restore(ledger, number, change, dead) and not isinstance(error, XpuError):
            raise ApplyError(
                "the change was interrupted, and limits that it had lowered could not be put back",
                "they are tighter than what is booked: run the same command again, or set them back",
            ) from error
        raise
    dead += removed
    if after is not None:
        survivors.renew(after, ledger.path)  # before more than it said until now is in force
        if change.grown or change.policies:
            after, removed = _raise(ledger, number, change)
            dead += removed
    return after


def _restore(ledger: Ledger, number: int, change: _Resize, dead: list[Grant]) -> bool:
    """Puts what has shrunk back to what is booked, after a change that failed; whether all of it. Each limit
    by itself: where a driver does not answer, those that others hold are put back all the same."""
    is_whole = True
    for limit in change.shrunk:

        def put_back(now: Grant, _: dict[str, Use], limit: _Limit = limit) -> dict[_Limit, int]:
            return change.enforce(now, [limit])

        try:
            dead += ledger.resize(number, put_back)[1]
        except XpuError:
            is_whole = False  # it stays tighter than what is booked
    return is_whole


def _raise(ledger: Ledger, number: int, change: _Resize) -> tuple[Grant | None, list[Grant]]:
    """Puts into force what has grown, as the ledger has it now, and how time is shared."""
    try:
        return ledger.resize(
            number, lambda now, _: change.enforce(now, change.grown, change.policies), change.text
        )
    except XpuError as error:
        what = "the larger limit is booked and not yet" if change.grown else "how time is shared is not"
        raise ApplyError(
            f"{what} in force: {error}",
            "run the same command again, or set the limit back",
        ) from error


class _Resize:
    """One change, as the ledger's transaction calls it."""

    def __init__(
        self,
        inventory: Inventory,
        limits: list[_Limit],
        wanted: Wanted,
        oversubscribe: float,
        backends: _Backends,
    ) -> None:
        self._inventory = inventory
        self._limits = limits
        self._wanted = wanted
        self._oversubscribe = oversubscribe
        self._backends = backends
        #: Bytes in use by position, below which no limit goes (None: not known); empty: it may.
        self.in_use: dict[int, int | None] = {}
        #: Why it is not known.
        self.problems: list[str] = []
        #: By position: what is put into force last.
        self.policies: list[tuple[int, Policy]] = []
        #: What of them is new, for the event.
        self.text = ""
        self.shrunk: list[_Limit] = []
        self.grown: list[_Limit] = []

    def share(self, grant: Grant, position: int, now: Policy, policy: Policy) -> None:
        """Changes how the time of the device at `position` is shared, in the end."""
        self.policies.append((position, policy))
        if policy != now:
            gpu = f"GPU {grant.slices[position].device_index}"
            said = f"{gpu}: shared as {policy.sched}, at {policy.priority} priority"
            self.text = "; ".join(filter(None, [self.text, said]))

    def book(self, now: Grant, uses: dict[str, Use]) -> dict[_Limit, int]:
        """What to book of each limit; what is less than before is in force on return."""
        self._backends.locked()
        values = {each: self._value(now.slices[each[0]], each[1], uses) for each in self._limits}
        for (position, kind), value in values.items():
            slice_ = now.slices[position]
            if value >= (slice_.limit(kind) or 0):
                self.grown.append((position, kind))
                continue
            if kind == MEMORY:
                self._refuse_below(slice_, uses, value, self._known_use(slice_, position))
            self.shrunk.append((position, kind))
            self._backends.set(position, kind, value)
            if kind == MEMORY and position in self.in_use:
                # From here on it cannot grow past the limit; it may have before.
                self._refuse_below(slice_, uses, value, self._backends.in_use(position, kind))
        return values

    def enforce(
        self, now: Grant, limits: list[_Limit], policies: list[tuple[int, Policy]] | None = None
    ) -> dict[_Limit, int]:
        """Puts into force what the ledger says now, and `policies`; nothing is booked."""
        self._backends.locked()
        for position, kind in limits:
            self._backends.set(position, kind, now.slices[position].limit(kind) or 0)
        for position, policy in policies or ():
            self._backends.share(position, policy)
        return {}

    def _value(self, slice_: Slice, kind: str, uses: dict[str, Use]) -> int:
        device, use = self._device(slice_), uses[slice_.device_uuid]
        outcome: int | Refusal
        if kind == CORES:
            assert self._wanted.cores is not None
            outcome = resizing.resize_cores(device, slice_, use, self._wanted.cores)
        else:
            assert self._wanted.memory is not None
            outcome = resizing.resize(device, slice_, use, self._wanted.memory, self._oversubscribe)
        if isinstance(outcome, Refusal):
            raise Refused(outcome)
        return outcome

    def _refuse_below(self, slice_: Slice, uses: dict[str, Use], amount: int, used: int) -> None:
        unit = self._wanted.memory.unit if self._wanted.memory else ""
        use = uses[slice_.device_uuid]
        refusal = resizing.below_use(self._device(slice_), slice_, use, amount, used, unit)
        if refusal is not None:
            raise Refused(refusal)

    def _known_use(self, slice_: Slice, position: int) -> int:
        amount = self.in_use.get(position, 0)
        if amount is None:
            why = f" ({self.problems[0]})" if self.problems else ""
            raise DeviceError(
                f"what the container uses of GPU {slice_.device_index} is not known{why}",
                "give --force to set the limit all the same",
            )
        return amount

    def _device(self, slice_: Slice) -> Device:
        device = find(self._inventory, slice_.device_uuid)
        assert device is not None  # _check
        return device


class _Backends:
    """What holds the limits that change, opened before the ledger is locked: opening can take long."""

    def __init__(self, inventory: Inventory, grant: Grant, limits: list[_Limit]) -> None:
        self._inventory = inventory
        self._grant = grant
        self._limits = limits
        self._open = ExitStack()
        self._changes: dict[_Limit, Change] = {}

    def __enter__(self) -> _Backends:
        try:
            opened: dict[str, Change] = {}
            for position, kind in self._limits:
                backend = registry.holder(self._grant.slices[position], kind)
                if backend is None:
                    continue
                if backend.NAME not in opened:
                    change = backend.open(self._inventory, self._grant)
                    opened[backend.NAME] = self._open.enter_context(change)
                self._changes[position, kind] = opened[backend.NAME]
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def locked(self) -> None:
        """The ledger is locked from here on: what the backends are asked has an end."""
        for change in set(self._changes.values()):
            change.locked()

    def set(self, position: int, kind: str, value: int) -> None:
        """Puts a limit into force at once; XpuError. One that nothing holds is only booked."""
        change = self._changes.get((position, kind))
        if change is not None:
            change.set(position, kind, value)

    def share(self, position: int, policy: Policy) -> None:
        """Changes how a device's time is shared at once; XpuError."""
        self._changes[position, CORES].set_policy(position, policy)

    def in_use(self, position: int, kind: str) -> int:
        """What the backend itself has counted, now; 0 where it does not count."""
        change = self._changes.get((position, kind))
        return change.in_use(position, kind) if change is not None else 0
