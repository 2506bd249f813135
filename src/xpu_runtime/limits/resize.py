"""Changes the limits of a running container: in the ledger, and in the backends.

The order: plan by the ledger; put smaller limits into force; book, if the larger ones still fit; put larger
limits into force. So at no instant, not even at a `kill -9`, does the ledger book less than a backend allows,
and a start in between gets what the ledger has free. The ledger is locked while it is read and booked alone:
a driver that hangs keeps no container from its start or end. Of two changes at once, the second waits for the
first by a lock of their own. A change that was interrupted leaves limits tighter than the booked ones:
repeating it completes it, and so does any other change of the same limits. `xpu gc` gives back the slices of
ended containers.

Memory and cores go the same way, and this module names no backend. The sharing of a device's time is not
booked: it is put into force last, when nothing can be refused any more, and an event records it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from xpu_runtime import paths
from xpu_runtime.errors import ApplyError, DeviceError, XpuError
from xpu_runtime.ledger import cgroup_records
from xpu_runtime.ledger.grants import CORES, KINDS, MEMORY, Grant, Slice, Use
from xpu_runtime.ledger.refusal import Refusal, Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import registry
from xpu_runtime.limits.backend import Change
from xpu_runtime.limits.pages import Policy
from xpu_runtime.limits.usage import Usage
from xpu_runtime.linux.files import Lock
from xpu_runtime.placement import resizing
from xpu_runtime.request.units import Memory
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Device, Inventory, find

#: A limit of a grant: the position of its slice, and its kind.
_Limit = tuple[int, str]
#: As Ledger.resize calls it.
_Choose = Callable[[Grant, dict[str, Use]], dict[_Limit, int]]
#: Held by the one change that is under way; and how long another waits for it: a driver that hangs may be
#: asked, and asked again to restore the lowered limits.
_LOCK, _WAIT_S = "set.lock", 30.0


class Wanted(Value):
    """The new limits of each slice; None: as before."""

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

    Refused if a device has not enough free, or if the container's use by `usage` is larger (None: do not
    check); XpuError if there is no limit to change, or if it cannot change. `clear` stands for
    `enforce.clear`, for dead containers found on the way: called at the end, as it may take long.
    """
    if grant.state != "running":
        raise ApplyError(f"container {grant.container_id} is still being created", "try again when it runs")
    limits = [(position, kind) for position in positions for kind in wanted.kinds()]
    shared = [(position, CORES) for position in positions if wanted.shares()]
    for position, kind in dict.fromkeys((*limits, *shared)):
        _check(inventory, grant.slices[position], kind)
    dead: list[Grant] = []
    try:
        with _Backends(inventory, grant, [*limits, *shared]) as backends, Ledger() as ledger, _alone():
            change = _Resize(inventory, limits, wanted, oversubscribe, backends)
            for position, _ in shared:
                now, policy = _policies(grant, position, wanted)
                change.share(grant, position, now, policy)
            if usage is not None and wanted.memory is not None:
                change.in_use = {p: usage.larger(grant, p) for p in positions}
                change.problems = usage.problems
            after = _carry_out(ledger, grant.id, change, dead)
    finally:
        if dead:
            clear(dead)
    if after is None:
        raise ApplyError(f"container {grant.container_id} has ended", "see `xpu ps`")
    return after


def _check(inventory: Inventory, slice_: Slice, kind: str) -> None:
    """XpuError if this slice has no limit that could be changed."""
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
            "which supports neither --sched nor --priority",
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


@contextmanager
def _alone() -> Iterator[None]:
    """Waits until no other change is under way; ApplyError if one takes too long."""
    path = paths.in_run_dir(_LOCK)
    lock = Lock(path, _WAIT_S)
    try:
        lock.__enter__()
    except TimeoutError as error:
        what = f"another change of limits is under way: {path} was {error.strerror}"
        raise ApplyError(what, "repeat this one") from error
    except OSError as error:
        raise ApplyError(f"cannot lock {path}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _carry_out(ledger: Ledger, number: int, change: _Resize, dead: list[Grant]) -> Grant | None:
    """The new grant, None where its container has ended. `dead` gets the grants of dead containers that the
    ledger has removed."""

    def booked(choose: _Choose, text: str = "") -> Grant | None:
        after, removed = ledger.resize(number, choose, text)
        dead.extend(removed)
        return after

    if booked(change.plan) is None:
        return None
    try:
        change.lower()
        after = booked(change.book)
    except BaseException as error:
        if not _restore(booked, change) and not isinstance(error, XpuError):
            raise ApplyError(
                "the change was interrupted, and limits that it had lowered could not be put back",
                "they are tighter than the booked limits: run the same command again, or set them back",
            ) from error
        if isinstance(error, XpuError) and _has_ended(booked):
            return None
        raise
    if after is None:
        return None
    cgroup_records.renew(after, ledger.path)  # before more than it said until now is in force
    try:
        change.raise_limits()
    except XpuError as error:
        if _has_ended(booked):
            return None
        what = "the larger limit is booked and not yet" if change.grown else "how time is shared is not"
        raise ApplyError(
            f"{what} in force: {error}",
            "run the same command again, or set the limit back",
        ) from error
    return booked(_nothing, change.text) if change.text else after


def _nothing(now: Grant, uses: dict[str, Use]) -> dict[_Limit, int]:
    return {}


def _has_ended(booked: Callable[[_Choose], Grant | None]) -> bool:
    try:
        return booked(_nothing) is None
    except XpuError:
        return False  # it is not known


def _restore(booked: Callable[[_Choose], Grant | None], change: _Resize) -> bool:
    """Puts lowered limits back to the booked values, after a change that failed; returns whether all
    succeeded. Each limit by itself: if one driver does not answer, the others' limits are put back all the
    same."""
    if not change.shrunk:
        return True
    try:
        now = booked(_nothing)  # the change may be booked already
    except XpuError:
        return False
    if now is None:
        return True  # its container has ended
    is_whole = True
    for limit in change.shrunk:
        try:
            change.enforce(now, limit)
        except XpuError:
            is_whole = False  # it stays tighter than the booked limit
    return is_whole


class _Resize:
    """One change. `plan` and `book` run in the ledger's transactions, and call no driver."""

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
        #: By position; put into force last.
        self.policies: list[tuple[int, Policy]] = []
        #: The new policies in words, for the event.
        self.text = ""
        self.shrunk: list[_Limit] = []
        self.grown: list[_Limit] = []
        #: As planned.
        self._now: Grant
        self._uses: dict[str, Use] = {}
        self._values: dict[_Limit, int] = {}

    def share(self, grant: Grant, position: int, now: Policy, policy: Policy) -> None:
        """Changes how the time of the device at `position` is shared, in the end."""
        self.policies.append((position, policy))
        if policy != now:
            gpu = f"GPU {grant.slices[position].device_index}"
            said = f"{gpu}: shared as {policy.sched}, at {policy.priority} priority"
            self.text = "; ".join(filter(None, [self.text, said]))

    def plan(self, now: Grant, uses: dict[str, Use]) -> dict[_Limit, int]:
        """Decides the new limits; books nothing. Refused."""
        self._now, self._uses = now, uses
        self._values = {each: self._value(now.slices[each[0]], each[1], uses) for each in self._limits}
        return {}

    def lower(self) -> None:
        """Puts smaller limits into force. Refused if more is in use."""
        for (position, kind), value in self._values.items():
            slice_ = self._now.slices[position]
            if value >= (slice_.limit(kind) or 0):
                self.grown.append((position, kind))
                continue
            if kind == MEMORY:
                self._refuse_below(slice_, value, self._known_use(slice_, position))
            self.shrunk.append((position, kind))
            self._backends.set(position, kind, value)
            if kind == MEMORY and position in self.in_use:
                # From here on it cannot grow past the limit; it may have before.
                self._refuse_below(slice_, value, self._backends.in_use(position, kind))

    def book(self, now: Grant, uses: dict[str, Use]) -> dict[_Limit, int]:
        """The values to book; Refused if a larger limit does not fit any more."""
        for position, kind in self.grown:
            self._value(now.slices[position], kind, uses)
        return self._values

    def raise_limits(self) -> None:
        """Puts larger limits into force, and the sharing of time."""
        for limit in self.grown:
            self._backends.set(*limit, self._values[limit])
        for position, policy in self.policies:
            self._backends.share(position, policy)

    def enforce(self, now: Grant, limit: _Limit) -> None:
        """Puts a limit into force as the ledger says it now."""
        position, kind = limit
        self._backends.set(position, kind, now.slices[position].limit(kind) or 0)

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

    def _refuse_below(self, slice_: Slice, amount: int, used: int) -> None:
        unit = self._wanted.memory.unit if self._wanted.memory else ""
        use = self._uses[slice_.device_uuid]
        refusal = resizing.below_use(self._device(slice_), slice_, use, amount, used, unit)
        if refusal is not None:
            raise Refused(refusal)

    def _known_use(self, slice_: Slice, position: int) -> int:
        amount = self.in_use.get(position, 0)
        if amount is None:
            why = f" ({self.problems[0]})" if self.problems else ""
            raise DeviceError(
                f"the container's use of GPU {slice_.device_index} is not known{why}",
                "give --force to set the limit all the same",
            )
        return amount

    def _device(self, slice_: Slice) -> Device:
        device = find(self._inventory, slice_.device_uuid)
        assert device is not None  # _check
        return device


class _Backends:
    """The backends of the limits that change, opened before other changes are locked out: opening can take
    long."""

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

    def set(self, position: int, kind: str, value: int) -> None:
        """Puts a limit into force at once; XpuError. One that nothing holds is only booked."""
        change = self._changes.get((position, kind))
        if change is not None:
            change.set(position, kind, value)

    def share(self, position: int, policy: Policy) -> None:
        """Changes how a device's time is shared at once; XpuError."""
        self._changes[position, CORES].set_policy(position, policy)

    def in_use(self, position: int, kind: str) -> int:
        """The backend's own count, now; 0 if it does not count."""
        change = self._changes.get((position, kind))
        return change.in_use(position, kind) if change is not None else 0
