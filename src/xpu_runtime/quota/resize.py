"""Changes the memory limit of a running container: in the ledger, and where it is held.

At no instant, that of a `kill -9` included, does the ledger say less than a backend allows: what shrinks is
put into force before it is booked, and what grows after. Both happen while the ledger is locked and read
it anew, so that of two changes at once, or of one and the container's end, none mixes with the other. The
lock is held for a bounded time all the same: the driver is asked by another process (apart.py). A change that
was cut short is completed by repeating it.
"""

from __future__ import annotations

from contextlib import ExitStack

from xpu_runtime.devices.inventory import Device, Inventory, find
from xpu_runtime.errors import ApplyError, DeviceError, XpuError
from xpu_runtime.ledger import placement, survivors
from xpu_runtime.ledger.grants import Grant, Slice, Use
from xpu_runtime.ledger.refusal import Refusal, Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.quota import apart, choose, driver, folders, library, limits, pages
from xpu_runtime.quota.usage import Figures
from xpu_runtime.request.units import Memory


def resize(
    found: Inventory,
    grant: Grant,
    positions: tuple[int, ...],
    wanted: Memory,
    *,
    oversubscribe: float,
    force: bool,
) -> Grant:
    """Gives the slices of `grant` at `positions` a limit of `wanted` each, or none of them; the new grant.

    Refused where a device has not enough free, or, unless `force`, where the container uses more than
    `wanted`; XpuError where there is no limit to change, or where it cannot be changed.
    """
    if grant.state != "running":
        raise ApplyError(f"container {grant.container_id} is still being created", "try again when it runs")
    for position in positions:
        _check(found, grant.slices[position])
    with _Backends(found, grant, positions) as backends, Ledger() as ledger:
        change = _Change(found, positions, wanted, oversubscribe, backends)
        if not force:
            figures = Figures(found)
            change.in_use = {p: figures.larger(grant, p) for p in positions}
            change.problems = figures.problems
        try:
            after, dead = ledger.resize(grant.id, change.book)
        except BaseException:
            _restore(found, ledger, grant.id, change)
            raise
        limits.clear(found, dead)
        if after is not None:
            survivors.keep(after, ledger.path)  # before more than it said until now is in force
        if after is not None and change.grown:
            after, dead = _raise(ledger, grant.id, change)
            limits.clear(found, dead)
    if after is None:
        raise ApplyError(f"container {grant.container_id} has ended", "see `xpu ps`")
    return after


def _check(found: Inventory, part: Slice) -> None:
    """XpuError where this slice has no limit that could be changed."""
    where = f"GPU {part.device_index}"
    if not part.limited:
        if part.device_uuid.startswith("MIG-"):
            raise ApplyError(
                f"the container has all of MIG device {part.device_index}, whose memory the hardware fixes",
                "start it again on a MIG device of another size",
            )
        raise ApplyError(
            f"the container has no memory limit on {where}: the whole device is its own",
            "start it again with XPU_MEM",
        )
    if part.holding.memory_backend not in (choose.NONE, driver.NAME, library.NAME):
        raise ApplyError(
            f"the memory limit on {where} is held by {part.holding.memory_backend}, where it cannot change"
        )
    if find(found, part.device_uuid) is None:
        raise DeviceError(f"{where} ({part.device_uuid}) is no longer there", "see `xpu devices`")


def _restore(found: Inventory, ledger: Ledger, number: int, change: _Change) -> None:
    """Puts what has shrunk back to what is booked, after a change that failed."""
    if change.shrunk:
        try:
            _, dead = ledger.resize(number, lambda now, _: change.enforce(now, change.shrunk))
            limits.clear(found, dead)
        except XpuError:
            pass  # the limit stays tighter than what is booked, and the first error is told


def _raise(ledger: Ledger, number: int, change: _Change) -> tuple[Grant | None, list[Grant]]:
    """Puts into force what has grown, as the ledger has it now."""
    try:
        return ledger.resize(number, lambda now, _: change.enforce(now, change.grown))
    except XpuError as error:
        raise ApplyError(
            f"the larger limit is booked and not yet in force: {error}",
            "run the same command again, or set the limit back",
        ) from error


class _Change:
    """One change, as the ledger's transaction calls it."""

    def __init__(
        self,
        found: Inventory,
        positions: tuple[int, ...],
        wanted: Memory,
        oversubscribe: float,
        backends: _Backends,
    ) -> None:
        self._found = found
        self._positions = positions
        self._wanted = wanted
        self._oversubscribe = oversubscribe
        self._backends = backends
        #: Bytes in use by position, below which no limit goes (None: not known); empty: it may.
        self.in_use: dict[int, int | None] = {}
        #: Why it is not known.
        self.problems: list[str] = []
        self.shrunk: list[int] = []
        self.grown: list[int] = []

    def book(self, now: Grant, uses: dict[str, Use]) -> dict[int, int]:
        """The bytes to book by position; what is less than before is in force on return."""
        self._backends.locked()
        amounts = {p: self._amount(now.slices[p], uses) for p in self._positions}
        for position, amount in amounts.items():
            part = now.slices[position]
            if amount >= part.memory_bytes:
                self.grown.append(position)
                continue
            self._refuse_below(part, uses, amount, self._known_use(part, position))
            self.shrunk.append(position)
            self._backends.set_limit(position, amount)
            if position in self.in_use:
                # From here on it cannot grow past the limit; it may have before.
                self._refuse_below(part, uses, amount, self._backends.in_use(position))
        return amounts

    def enforce(self, now: Grant, positions: list[int]) -> dict[int, int]:
        """Puts into force what the ledger says now; nothing is booked."""
        self._backends.locked()
        for position in positions:
            self._backends.set_limit(position, now.slices[position].memory_bytes)
        return {}

    def _amount(self, part: Slice, uses: dict[str, Use]) -> int:
        use = uses[part.device_uuid]
        outcome = placement.resize(self._device(part), part, use, self._wanted, self._oversubscribe)
        if isinstance(outcome, Refusal):
            raise Refused(outcome)
        return outcome

    def _refuse_below(self, part: Slice, uses: dict[str, Use], amount: int, used: int) -> None:
        use = uses[part.device_uuid]
        refusal = placement.below_use(self._device(part), part, use, amount, used, self._wanted.unit)
        if refusal is not None:
            raise Refused(refusal)

    def _known_use(self, part: Slice, position: int) -> int:
        amount = self.in_use.get(position, 0)
        if amount is None:
            why = f" ({self.problems[0]})" if self.problems else ""
            raise DeviceError(
                f"what the container uses of GPU {part.device_index} is not known{why}",
                "give --force to set the limit all the same",
            )
        return amount

    def _device(self, part: Slice) -> Device:
        device = find(self._found, part.device_uuid)
        assert device is not None  # _check
        return device


class _Backends:
    """What holds the limits of one grant's slices, opened before the ledger is locked.

    For opening takes long at times: NVML's start, or a lease that a container has put on its quota page.
    """

    def __init__(self, found: Inventory, grant: Grant, positions: tuple[int, ...]) -> None:
        self._found = found
        self._grant = grant
        self._names = {grant.slices[position].holding.memory_backend for position in positions}
        self._open = ExitStack()
        self._page: pages.OpenQuota | None = None
        self._driver: apart.Apart | None = None

    def __enter__(self) -> _Backends:
        if library.NAME in self._names:
            place = folders.of(self._grant)
            try:
                self._page = self._open.enter_context(pages.OpenQuota(place))
            except OSError as error:
                raise ApplyError(
                    f"cannot open the quota page in {place}: {error.strerror}", "start the container again"
                ) from error
        if driver.NAME in self._names:
            if not self._grant.cgroup:
                raise ApplyError("the container has no cgroup v2 folder: its memory limit cannot be set")
            self._driver = self._open.enter_context(apart.Apart(self._found))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def locked(self) -> None:
        """The ledger is locked from here on: what the driver is asked has an end."""
        if self._driver is not None:
            self._driver.allow(apart.LOCKED_S)

    def set_limit(self, position: int, limit: int) -> None:
        """Puts a limit in bytes into force at once; XpuError."""
        backend, device = self._of(position)
        if backend == library.NAME:
            assert self._page is not None
            self._page.set_limit(position, limit)
        elif self._driver is not None and backend == driver.NAME:
            self._driver.set_limit(device.uuid, self._grant.cgroup, limit)

    def in_use(self, position: int) -> int:
        """What the backend itself has counted, now; 0 where it does not count."""
        backend, device = self._of(position)
        if backend == library.NAME:
            try:
                account = pages.slots(folders.of(self._grant), len(self._grant.slices))
            except OSError:
                return 0
            return min(sum(pages.held(account, position).values()), device.memory_bytes)
        if self._driver is not None and backend == driver.NAME:
            return self._driver.in_use(device.uuid, self._grant.cgroup)
        return 0

    def _of(self, position: int) -> tuple[str | None, Device]:
        part = self._grant.slices[position]
        device = find(self._found, part.device_uuid)
        assert device is not None  # _check
        return part.holding.memory_backend, device
