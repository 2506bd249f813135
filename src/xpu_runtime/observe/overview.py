"""The data of `xpu agent`'s page: devices, their slices, the latest events and refusals, as JSON.

All of it is bounded, in number and in length: the page asks every few seconds. Names by containers' authors
and engines are text, cut and made printable here, and never markup in the page (agent/page.html).
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from xpu_runtime import version
from xpu_runtime.errors import XpuError
from xpu_runtime.finding import printable
from xpu_runtime.ledger import events, vocabulary
from xpu_runtime.ledger.events import Event, Totals
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.observe import agent_status
from xpu_runtime.observe.names import Names
from xpu_runtime.observe.node_metrics import NodeMetrics
from xpu_runtime.observe.reading import Card, Reading, Row
from xpu_runtime.vendors import marks, registry
from xpu_runtime.vendors.vendor import Sensors

_MOST_DEVICES, _MOST_SLICES, _MOST_EVENTS = 64, 256, 50
#: Characters, of a name or id, and of a reason.
_LONGEST, _LONGEST_REASON = 128, 2000
#: Events that are read at a time.
_PIECE = 500


class Overview:
    """Makes it, again and again, of readings by `metrics`."""

    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics
        self._names = Names()
        self._latest = _Latest()

    def sample(self) -> bytes:
        """The present sample for the history, in a line. On a node without slices a closed driver stays
        closed."""
        if not self._metrics.is_open:
            with Ledger() as ledger:
                if not ledger.grants():
                    return _line(_sample(None))
        return _line(_sample(self._metrics.read()))

    def data(self) -> bytes:
        """The sample in a line, and the page's data in another; XpuError if the ledger cannot be read."""
        problems: list[str] = []
        try:
            reading: Reading | None = self._metrics.read()
        except XpuError as error:
            reading = None
            problems.append(str(error))
        with Ledger() as ledger:
            self._latest.read(ledger)
            totals, grants = ledger.totals(), ledger.grants()
        ids = {event.container_id for event in self._latest.listed if event.name is None}
        self._names.learn(grants, ids - {""})
        devices = [] if reading is None else _devices(reading, self._names.of, problems)
        problems += [*filter(None, [reading.missing]), *reading.problems] if reading else ()
        shown = {
            "node": _text(socket.gethostname()),
            "version": version.VERSION,
            "time": round(time.time(), 1),
            "agent_runs": agent_status.ask() is not None if reading is None else reading.agent,
            "problems": [_text(each, _LONGEST_REASON) for each in problems[:10]],
            "devices": devices,
            "not_shown": _not_shown(reading, devices),
            "totals": _totals(totals),
            "events": [_event(each, self._names) for each in self._latest.events],
            "refusals": [_event(each, self._names) for each in self._latest.refusals],
        }
        return (_line(_sample(reading)) if reading else b"") + b"\n" + _line(shown)


class _Latest:
    """The latest events and refusals, the newest first."""

    def __init__(self) -> None:
        self._last, self._time = 0, 0.0
        self.events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        #: Containers that did not start.
        self.refusals: deque[Event] = deque(maxlen=_MOST_EVENTS)

    @property
    def listed(self) -> list[Event]:
        return [*self.events, *self.refusals]

    def _forget(self) -> None:
        self._last, self._time = 0, 0.0
        self.events.clear()
        self.refusals.clear()

    def read(self, ledger: Ledger) -> None:
        """Those that have come since the last time."""
        if sum(ledger.totals().kinds.values()) < self._last:  # another ledger: the old one was removed
            self._forget()
        while found := ledger.history(self._last, self._time, most=_PIECE):
            if found[0].id <= self._last:  # one with as many events
                self._forget()
            self._last, self._time = found[-1].id, found[-1].time
            self.events.extendleft(found)
            self.refusals.extendleft(each for each in found if each.kind in (events.REFUSED, events.FAILED))


def _sample(reading: Reading | None) -> dict[str, Any]:
    """None: there are no slices. Lists, not objects: there are many."""
    cards = reading.cards[:_MOST_DEVICES] if reading else ()
    rows = [(card, row) for card, most in zip(cards, _room(cards)) for row in card.rows[:most]]
    return {
        "time": round(time.time(), 1),
        # UUID, percent of its time in use.
        "devices": [[card.uuid, _rounded(card.busy)] for card in cards],
        # Key, UUID of the device, memory used and asked for, cores got and asked for.
        "slices": [
            [_key(row), card.uuid, row.memory, row.memory_limit, _rounded(row.got), row.asked]
            for card, row in rows
        ],
    }


def _devices(
    reading: Reading, name_of: Callable[[Grant], str | None], problems: list[str]
) -> list[dict[str, Any]]:
    found = []
    sensors = registry.sensors(reading.inventory, problems)
    for card, most in zip(reading.cards, _room(reading.cards[:_MOST_DEVICES])):
        device, drained, reserved = card.device, card.why_drained, card.reservation
        told = sensors.get(card.uuid, Sensors())
        found.append(
            {
                "index": card.index,
                "uuid": card.uuid,
                "name": _text(card.name),
                "is_here": device is not None,
                "fault": _text(device.fault) if device and device.fault else None,
                "drained": None if drained is None else _text(marks.as_drained(drained), 300),
                "reserved": None if reserved is None else _text(marks.as_reserved(reserved), 300),
                "busy_percent": _rounded(card.busy),
                "memory_bytes": card.memory_total,
                "memory_reported_bytes": told.memory_used_bytes,
                "temperature_celsius": told.temperature_celsius,
                "power_watts": _rounded(told.power_watts),
                # Totals of all slices, whether or not they are listed.
                "slices_total": len(card.rows),
                "memory_asked_bytes": sum(row.memory_limit for row in card.rows),
                "memory_used_bytes": card.memory,
                "cores_asked": sum(row.asked or 0 for row in card.rows),
                "slices": [_slice(row, name_of(row.grant)) for row in card.rows[:most]],
            }
        )
    return found


def _room(cards: Sequence[Card]) -> list[int]:
    """How many slices of each are listed: all of those that have few, and as many of each of the others."""
    room, left = [0] * len(cards), _MOST_SLICES
    by_count = sorted(range(len(cards)), key=lambda number: len(cards[number].rows))
    for done, number in enumerate(by_count):
        room[number] = min(len(cards[number].rows), left // (len(cards) - done))
        left -= room[number]
    return room


def _slice(row: Row, name: str | None) -> dict[str, Any]:
    slice_ = row.grant.slices[row.position]
    return {
        "key": _key(row),
        "container_id": _text(row.container_id),
        "name": None if name is None else _text(name, 260),
        "since": round(row.grant.created),
        "state": row.grant.state,
        "memory_bytes": row.memory_limit,
        "memory_is_limit": slice_.limited,
        "memory_used_bytes": row.memory,
        "memory_held": slice_.holding.memory_strength,
        "cores": row.asked,
        "cores_got_percent": _rounded(row.got),
        "cores_held": slice_.holding.cores_strength,
        "sched": row.sched,
        "priority": row.priority,
        "waits": row.waits,
        "note": _text(row.note, 300) or None,
    }


def _event(event: Event, names: Names) -> dict[str, Any]:
    name = names.of_event(event)
    return {
        "id": event.id,
        "time": round(event.time, 1),
        "event": event.kind,
        "container_id": _text(event.container_id) or None,
        "name": None if name is None else _text(name, 260),
        "devices": [part.as_dict() for part in event.devices[:_MOST_DEVICES]],
        "reason": _text(event.text, _LONGEST_REASON) or None,
    }


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        "events": {**dict.fromkeys(vocabulary.KINDS, 0), **totals.kinds},
        "refusals": totals.refusals,
    }


def _not_shown(reading: Reading | None, devices: list[dict[str, Any]]) -> dict[str, int]:
    """How many there are beyond those."""
    cards: tuple[Card, ...] = reading.cards if reading else ()
    slices = sum(len(card.rows) for card in cards) - sum(len(each["slices"]) for each in devices)
    return {"devices": len(cards) - len(devices), "slices": slices}


def _key(row: Row) -> str:
    """A slice's key, as long as the ledger's file exists."""
    return f"{row.grant.id}.{row.position}"


def _text(words: str, longest: int = _LONGEST) -> str:
    return printable(words[:longest])


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
