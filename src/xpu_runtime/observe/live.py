"""The node's devices and containers at work, for `xpu top`: a reading at a time, as values.

Containers report their own use, in pages that they can write; a device's total use is the driver's figure if
there is one. Another process asks the driver, so that one that hangs stops nothing here. top.py draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant, Slice, Use
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import registry as backends
from xpu_runtime.limits import sharing, unaccounted_time
from xpu_runtime.limits.pages import Compute
from xpu_runtime.limits.usage import Usage, processes
from xpu_runtime.observe import agent_status, containers, driver_questions, samples
from xpu_runtime.observe.names import Names
from xpu_runtime.observe.reading import Card, Reading, Row
from xpu_runtime.value import Value
from xpu_runtime.vendors import discovery, marks, registry
from xpu_runtime.vendors.inventory import Inventory
from xpu_runtime.vendors.vendor import WHOLE

#: Seconds that one reading for scripts waits for the driver: until it is open, and once it is.
_FIRST_S, NEXT_S = 5.0, 1.2
#: NVML takes samples each 1/6 to 1 s, and reports them late.
_SAMPLE_S = 2.0


class Live:
    """Takes readings; the use is known from the second on."""

    def __init__(self, names: Names | None = None, *, may_hang: bool = False) -> None:
        """XpuError where the configuration or the driver cannot be read. Without `names`, which take time
        where an engine hangs, rows have none. `may_hang`: the caller is given up where the driver hangs, so
        that no process of its own is needed for asking that."""
        self._inventory: Inventory = (
            discovery.load(load()) if may_hang else driver_questions.inventory(load())
        )
        self._samples: samples.Samples | samples.InProcess
        if may_hang:
            self._samples = samples.InProcess(self._source)
        else:
            self._samples = samples.Samples(self._source, lambda _: None)
        self._may_hang = may_hang
        self._names = names
        self._naming = registry.naming_processes(self._inventory)
        self._before: dict[tuple[int, int], tuple[int, Compute]] = {}
        #: Percent that the driver counted beyond the charged time, in the last reading.
        self._beyond: dict[tuple[int, int], float] = {}
        #: The driver has answered.
        self._is_open = False
        #: By device: the last samples of its processes, and when they were told.
        self._sampled: dict[str, tuple[float, dict[int, float]]] = {}
        self._samples.ask()

    def _source(self) -> Callable[[], samples.Utilization]:
        return registry.utilization(self._inventory, whole=True)

    def close(self) -> None:
        self._samples.close()

    def is_outdated(self) -> bool:
        """Whether the node has other devices or another driver by now; XpuError as for a new one."""
        return discovery.load(load()) != self._inventory

    def first(self, interval_s: float) -> Reading:
        """A reading of the next `interval_s`, if there was none before."""
        self.read(_FIRST_S)
        time.sleep(interval_s)
        return self.read(NEXT_S)

    def read(self, wait_s: float = 0) -> Reading:
        """A reading of the time since the last one.

        The driver's samples are those that it reported at the last question, or, with `wait_s`, those that it
        reports now, within that many seconds.
        """
        utilization = self._waited_for(wait_s) if wait_s else self._told_since()
        with Ledger() as ledger:
            grants, uses = ledger.grants(), ledger.uses()
        if self._names is not None:
            self._names.learn(grants)
        now = {key: (when, used) for key, when, used in sharing.readings(grants)}
        before, self._before = self._before, now
        agent = agent_status.ask()
        shares = _agent_shares(agent)
        devices = self._inventory
        usage = Usage(devices) if self._may_hang else driver_questions.usage(devices, grants, _FIRST_S)
        by_card: dict[str, list[Row]] = {device.uuid: [] for device in self._inventory.devices}
        by_card.update((uuid, []) for uuid in uses if uuid not in by_card)
        for grant in grants:
            damage = _damage(grant)
            for position, slice_ in enumerate(grant.slices):
                key = (grant.id, position)
                waits = False
                if key in now and key in before:
                    (then, was), (when, used) = before[key], now[key]
                    got = self._compared(
                        key, _of_page(sharing.share(was, used, when - then)), grant, slice_, utilization
                    )
                    waits = used.waits != was.waits
                elif key in now or damage:
                    got = _Got(None)
                elif utilization is None:
                    got = _Got(None, _SILENT if wait_s else "")
                else:
                    got = _by_driver(grant, slice_, utilization.get(slice_.device_uuid))
                by_card.setdefault(slice_.device_uuid, []).append(
                    _row(
                        grant,
                        position,
                        usage,
                        got.replace(note=damage or got.note),
                        waits,
                        now[key][1] if key in now else None,
                        shares,
                        self._names.of(grant) if self._names is not None else None,
                    )
                )
        marked = _marks(usage.problems)
        cards = tuple(
            self._card(uuid, rows, utilization, uses.get(uuid, Use()), marked)
            for uuid, rows in by_card.items()
        )
        return Reading(agent is not None, cards, self._inventory, usage)

    def _compared(
        self,
        key: tuple[int, int],
        got: _Got,
        grant: Grant,
        slice_: Slice,
        utilization: samples.Utilization | None,
    ) -> _Got:
        """With a note where the driver counts more: samples are late, so that two readings must show it."""
        counted = _by_driver(grant, slice_, (utilization or {}).get(slice_.device_uuid)).percent
        known = counted is not None and got.percent is not None and sharing.shared(slice_) == sharing.CAP
        beyond = unaccounted_time.beyond(counted, got.percent) if known else 0.0  # type: ignore[arg-type]
        before, self._beyond[key] = self._beyond.get(key, 0.0), beyond
        if not (beyond and before):
            return got
        return got.replace(note=f"{beyond:.0f}% more by the driver's count: a program goes round the cap")

    def _told_since(self) -> samples.Utilization | None:
        told = self._samples.answer()
        self._samples.ask()
        return self._with_last(told) if self._is_of_some_time(told) else None

    def _waited_for(self, seconds: float) -> samples.Utilization | None:
        """For a busy device the driver may need a second until it has samples of processes."""
        until = time.monotonic() + seconds
        told = self._samples.wait(seconds)
        if not self._is_of_some_time(told):
            return None
        while told and self._lacks_samples(told) and (left := until - time.monotonic()) > 0:
            time.sleep(min(0.1, left))
            later = self._samples.wait(max(0.0, until - time.monotonic()))
            # The driver gives a sample once: one device's earlier sample still counts when another's comes.
            for uuid, busy in (later or {}).items():
                if not _sum(busy):
                    busy.update(_processes(told.get(uuid, {})))
            told = later or told
        return told

    def _lacks_samples(self, told: samples.Utilization) -> bool:
        """Whether a device is busy whose samples of processes are still to come."""
        return any(_lacks_samples(busy) for uuid, busy in told.items() if uuid in self._naming)

    def _is_of_some_time(self, told: samples.Utilization | None) -> bool:
        """The first answer is of the time since the driver was opened, which is none."""
        first, self._is_open = not self._is_open, self._is_open or told is not None
        return not first

    def _with_last(self, told: samples.Utilization | None) -> samples.Utilization | None:
        """With the last samples of devices that have no newer ones: the driver takes some each second."""
        now = time.monotonic()
        for uuid, busy in (told or {}).items():
            if _lacks_samples(busy) and now - self._sampled.get(uuid, (0.0, {}))[0] < _SAMPLE_S:
                busy.update(_processes(self._sampled[uuid][1]))
            elif not _lacks_samples(busy):
                self._sampled[uuid] = now, busy
        return told

    def _card(
        self,
        uuid: str,
        rows: list[Row],
        utilization: samples.Utilization | None,
        use: Use,
        marked: marks.Marks | None,
    ) -> Card:
        device = next((each for each in self._inventory.devices if each.uuid == uuid), None)
        known = [row.got for row in rows if row.got is not None]
        by_rows = min(100.0, sum(known)) if known else None
        of_driver = (utilization or {}).get(uuid)
        by_driver = None if not of_driver else 100 * min(1.0, max(of_driver.get(WHOLE, 0.0), _sum(of_driver)))
        # The driver's samples are late, and sometimes there are none.
        busy = max((each for each in (by_driver, by_rows) if each is not None), default=None)
        used = [row.memory for row in rows if row.memory is not None]
        return Card(
            str(plain_index(device.index)) if device else "?",
            uuid,
            device.name if device else "not on this node (any more)",
            busy,
            sum(used) if len(used) == len(rows) else None,
            device.memory_bytes if device else None,
            tuple(rows),
            use,
            device,
            marked if device is not None else None,
        )


def _marks(problems: list[str]) -> marks.Marks | None:
    """The marks; None if they cannot be read, with the reason in `problems`."""
    try:
        return marks.read()
    except XpuError as error:
        problems.append(str(error))
        return None


class _Got(Value):
    """A share in percent, None if it is not known, and the reason."""

    percent: float | None
    note: str = ""


_SILENT = "its share is not known: the driver does not answer"


def _of_page(got: sharing.Got) -> _Got:
    """The use that a slice with a cap has charged in its page."""
    return _Got(got.percent, "cannot be measured now: estimates hold its cap" if got.unmeasured else "")


def _by_driver(grant: Grant, slice_: Slice, busy: dict[int, float] | None) -> _Got:
    """The share of a slice without a cap, by the driver's samples: no page counts it.

    The driver leaves out idle processes, and has none at all before its first sample.
    """
    if sharing.shared(slice_) == sharing.SIDE_BY_SIDE:
        return _Got(None, "its share is not known: to the driver all containers under MPS are one")
    if busy is None:
        return _Got(None, "its share is not known: the driver does not report the use of each process here")
    if not _sum(busy) and (busy.get(WHOLE) or WHOLE not in busy):
        return _Got(None, "its share is not known: the driver has no sample of this device's processes")
    pids = processes(grant)
    if pids is None:
        return _Got(None, "its share is not known: its processes cannot be told from those of others")
    return _Got(100 * min(1.0, sum(busy.get(pid, 0.0) for pid in pids)))


def _lacks_samples(busy: dict[int, float]) -> bool:
    """Whether the device is busy, and the driver has no samples of its processes (yet)."""
    return busy.get(WHOLE, 0.0) > 0 and not _sum(busy)


def _processes(busy: dict[int, float]) -> dict[int, float]:
    return {pid: each for pid, each in busy.items() if pid != WHOLE}


def _sum(busy: dict[int, float]) -> float:
    return sum(_processes(busy).values())


def _damage(grant: Grant) -> str:
    """The damage of the pages that hold the limits of a running container; "" if there is none."""
    told = [damage for backend in backends.known(grant.slices) if (damage := backend.damage(grant))]
    return str(told[0]) if told and containers.is_alive(grant) else ""


AgentShares = dict[tuple[str, int], tuple[float, str]]


def _agent_shares(agent: dict[str, object] | None) -> AgentShares:
    """The share that each slice may have now, and why it is held more strictly, as the agent tells it."""
    found: AgentShares = {}
    devices = agent.get("devices") if agent else None
    for device in devices if isinstance(devices, list) else []:
        for each in device["slices"]:
            if each["share"] is not None:
                key = (each["container_id"], each["position"])
                found[key] = (float(each["share"]), each["held_strictly"] or "")
    return found


def _row(
    grant: Grant,
    position: int,
    usage: Usage,
    got: _Got,
    waits: bool,
    compute: Compute | None,
    shares: AgentShares,
    name: str | None,
) -> Row:
    slice_ = grant.slices[position]
    policy = sharing.policy(grant, position)
    allowed, strict = shares.get((grant.container_id[:127], position), (None, ""))
    return Row(
        grant,
        position,
        grant.container_id,
        slice_.cores,
        got.percent,
        allowed,
        policy.sched if policy else None,
        policy.priority if policy else None,
        waits,
        usage.in_use(grant, position),
        slice_.memory_bytes,
        compute,
        strict,
        f"held more strictly: {strict}" if strict else got.note,
        name,
    )


def readings(interval_s: float) -> Callable[[], Reading]:
    """A function that takes one reading of the last `interval_s`, for scripts."""

    def once() -> Reading:
        live = Live(Names())
        try:
            return live.first(interval_s)
        finally:
            live.close()

    return once


def try_reading(live: Live) -> Reading | XpuError:
    """A reading, or why there is none now: a full screen goes on, and shows it."""
    try:
        return live.read()
    except XpuError as error:
        return error
