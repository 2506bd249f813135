"""What the node's devices and containers do now, for `xpu top`: a reading at a time, as values.

Containers tell their use themselves, in pages that they can write; where the driver tells it of a device's
processes, the device's own use is what the driver says. The driver is asked in another process, so that one
that hangs stops nothing here. What it looks like is top.py's to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from xpu_runtime.agent import samples, status
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import sharing
from xpu_runtime.limits.pages import Compute
from xpu_runtime.limits.usage import Usage, processes
from xpu_runtime.value import Value
from xpu_runtime.vendors import discovery, registry
from xpu_runtime.vendors.inventory import Inventory


class Row(Value):
    """One slice of a container. Shares in percent of the device, memory in bytes; None: not known or none."""

    container_id: str
    asked: int | None
    got: float | None
    #: What it may have now, as the agent has it.
    allowed: float | None
    sched: str | None
    priority: str | None
    #: A launch has waited for its turn since the last reading.
    waits: bool
    memory: int | None
    memory_limit: int
    #: What is unusual: why it is held more strictly, or that nothing could be measured.
    note: str = ""


class Card(Value):
    """One device, and the slices on it."""

    index: str
    uuid: str
    name: str
    #: Percent of its time in use; None: not known.
    busy: float | None
    memory: int | None
    memory_total: int
    rows: tuple[Row, ...]


class Reading(Value):
    """The node at one time."""

    agent: bool
    cards: tuple[Card, ...]
    problems: tuple[str, ...] = ()


class Live:
    """Takes readings; what was used is told from the second on."""

    def __init__(self) -> None:
        """XpuError where the configuration or the driver cannot be read."""
        self._inventory: Inventory = discovery.load(load())
        self._samples = samples.Samples(lambda: registry.utilization(self._inventory), lambda _: None)
        self._before: dict[tuple[int, int], tuple[int, Compute]] = {}
        self._samples.ask()

    def close(self) -> None:
        self._samples.close()

    def read(self) -> Reading:
        with Ledger() as ledger:
            grants = ledger.grants()
        utilization = self._samples.answer()
        self._samples.ask()
        now = {key: (when, used) for key, when, used in sharing.readings(grants)}
        before, self._before = self._before, now
        agent = status.ask()
        told = _told(agent)
        usage = Usage(self._inventory)
        by_card: dict[str, list[Row]] = {device.uuid: [] for device in self._inventory.devices}
        for grant in grants:
            pids = set(processes(grant) or ()) if utilization else set()
            for position, slice_ in enumerate(grant.slices):
                key = (grant.id, position)
                got = waits = None
                if key in now and key in before:
                    (then, was), (when, used) = before[key], now[key]
                    got = sharing.share(was, used, when - then)
                    waits = used.waits != was.waits
                of_driver = (utilization or {}).get(slice_.device_uuid)
                percent = got.percent if got else None
                if got is None and of_driver is not None:
                    percent = 100 * min(1.0, sum(busy for pid, busy in of_driver.items() if pid in pids))
                by_card.setdefault(slice_.device_uuid, []).append(
                    _row(grant, position, usage, percent, bool(waits), got, told)
                )
        cards = tuple(self._card(uuid, rows, utilization) for uuid, rows in by_card.items())
        return Reading(agent is not None, cards, tuple(usage.problems))

    def _card(self, uuid: str, rows: list[Row], utilization: samples.Utilization | None) -> Card:
        device = next((each for each in self._inventory.devices if each.uuid == uuid), None)
        known = [row.got for row in rows if row.got is not None]
        by_rows = min(100.0, sum(known)) if known else None
        of_driver = (utilization or {}).get(uuid)
        by_driver = None if of_driver is None else 100 * min(1.0, sum(of_driver.values()))
        # The driver's samples are late, and sometimes there are none.
        busy = max((each for each in (by_driver, by_rows) if each is not None), default=None)
        used = [row.memory for row in rows if row.memory is not None]
        return Card(
            str(plain_index(device.index)) if device else "?",
            uuid,
            device.name if device else "not on this node (any more)",
            busy,
            sum(used) if len(used) == len(rows) else None,
            device.memory_bytes if device else 0,
            tuple(rows),
        )


Told = dict[tuple[str, int], tuple[float, str]]


def _told(agent: dict[str, object] | None) -> Told:
    """The share that each slice may have now, and why it is held more strictly, as the agent tells it."""
    found: Told = {}
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
    percent: float | None,
    waits: bool,
    got: sharing.Got | None,
    told: Told,
) -> Row:
    slice_ = grant.slices[position]
    policy = sharing.policy(grant, position)
    allowed, note = told.get((grant.container_id[:127], position), (None, ""))
    if note:
        note = f"held more strictly: {note}"
    elif got is not None and got.unmeasured:
        note = "cannot be measured now: guesses hold its cap"
    return Row(
        grant.container_id,
        slice_.cores,
        percent,
        allowed,
        policy.sched if policy else None,
        policy.priority if policy else None,
        waits,
        usage.in_use(grant, position),
        slice_.memory_bytes,
        note,
    )


def readings(interval_s: float) -> Callable[[], Reading]:
    """A function that takes one reading of the last `interval_s`, for scripts."""

    def once() -> Reading:
        live = Live()
        try:
            live.read()
            time.sleep(interval_s)
            return live.read()
        finally:
            live.close()

    return once


def complain(reading: Reading) -> None:
    """What could not be read, on stderr."""
    for problem in reading.problems:
        click.echo(f"xpu: memory in use is not known: {problem}", err=True)


def try_reading(live: Live) -> Reading | XpuError:
    """A reading, or why there is none now: a full screen goes on, and shows it."""
    try:
        return live.read()
    except XpuError as error:
        return error
