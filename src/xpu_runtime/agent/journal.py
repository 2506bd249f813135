"""Passes the events of slices and devices to systemd's journal, with fields, or to syslog.

The events are in the ledger's file (ledger/events.py), written with the changes themselves. The agent passes
on the new ones, so that a container's start pays nothing for it. The run folder keeps the number of the last
one: an agent that is killed in between passes some on twice. Events that left the ledger before an agent ran
(events.MOST newer ones) are not passed on; a line says so. The protocol: "Native Journal Protocol" on
systemd.io.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from xpu_runtime import jsonlite, paths
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import events, waiting
from xpu_runtime.ledger.events import Event
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import files
from xpu_runtime.messages import send_to_system_log
from xpu_runtime.request.units import show

_JOURNAL, _SYSLOG = "/run/systemd/journal/socket", "/dev/log"
_TOLD = "events.told"
#: Seconds that a look may wait for the ledger: the rounds wait with it.
_LEDGER_S = 0.0
#: A file's time stamp has the clock's ticks: two changes can have the same.
_TICK_NS = 1_000_000_000
#: Seconds until a look after two that could pass on nothing; twice as many each time, up to the last.
_AGAIN_S, _LONGEST_AGAIN_S = 0.5, 30.0
#: In one look; more come with the next one.
_MOST = 200
#: syslog(3).
_WARNING, _INFO = 4, 6
#: docs/reference/events.md is made from these: which kinds are warnings, and the fields of an entry.
WARNED_OF = (events.REFUSED, events.FAILED, events.REAPED, events.HELD)
FIELDS: tuple[tuple[str, str, Callable[[Event], str]], ...] = (
    ("XPU_EVENT", "The kind.", lambda of: of.kind),
    ("XPU_EVENT_ID", "The number; begins with 1 in a new ledger.", lambda of: str(of.id)),
    ("XPU_EVENT_TIME", "When it happened, in seconds since 1970.", lambda of: f"{of.time:.6f}"),
    ("XPU_CONTAINER_ID", "The whole id of the container.", lambda of: of.container_id),
    ("XPU_CONTAINER_NAME", "The name that the engine gave it.", lambda of: of.name or ""),
    ("XPU_REASON", "Why, in words.", lambda of: of.text),
)
#: The fields of each device, one device after the other.
FIELDS_OF_DEVICE: tuple[tuple[str, str, Callable[[events.Part], str | int | None]], ...] = (
    ("XPU_DEVICE", "The UUID of a device.", lambda of: of.uuid),
    (
        "XPU_MEMORY_BYTES",
        "Memory of the slice on it; absent for all of the device.",
        lambda of: of.memory_bytes,
    ),
    ("XPU_CORES", "Cap in percent of that device's time; absent without one.", lambda of: of.cores),
)
_LONGEST = 8000
#: SQLite's largest row number.
_MOST_EVENTS = (1 << 63) - 1


class Journal:
    """Only the holder of the agent's lock makes one."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._path = paths.in_run_dir("ledger.db")
        #: Number and time of the last event that was passed on. The time shows that a ledger was made anew.
        self._last, self._time = _read()
        self._seen: tuple[int, ...] = ()
        self._was_heard = False
        self._problem = ""
        self._not_before = self._pause = 0.0

    def look(self) -> None:
        """Passes on new events; costs a look at a file if there are none. Never waits, and never fails."""
        if time.monotonic() < self._not_before:
            return
        before = self._last, self._time
        try:
            self._look()
            self._pause = 0.0
        except XpuError:
            pass  # a start has the ledger: the next look has it
        except BlockingIOError:  # the journal's queue is full, or it is being started again
            self._wait(before)
        except Exception as error:  # sharing time goes on
            self._wait(before)
            problem = f"events are not passed on to the journal: {error!r}"
            if problem != self._problem:
                self._problem = problem
                self._log(problem)

    def _wait(self, before: tuple[int, float]) -> None:
        """If no journal takes events, none may for long: rounds must not read the ledger each time."""
        if (self._last, self._time) != before:
            self._pause = 0.0
            return
        self._not_before = time.monotonic() + self._pause
        self._pause = min(max(2 * self._pause, _AGAIN_S), _LONGEST_AGAIN_S)

    def _look(self) -> None:
        is_heard = os.path.exists(_JOURNAL) or os.path.exists(_SYSLOG)
        if is_heard and not self._was_heard:
            self._seen = ()  # a later listener gets it then
        self._was_heard = is_heard
        if not is_heard:
            return
        try:
            there = os.stat(self._path)
        except OSError:
            return
        now = (there.st_ino, there.st_size, there.st_mtime_ns)
        if now == self._seen:
            return
        waiting.allow(_LEDGER_S)
        with Ledger(as_is=True) as ledger:
            new = ledger.history(self._last, self._time, most=_MOST)
        before = self._last, self._time
        try:
            for event in new:
                self._pass_on(event)
                self._last, self._time = event.id, event.time
        finally:
            if (self._last, self._time) != before:
                _write(self._last, self._time)
        # A new stamp is not remembered: more events may come in the same tick of the clock.
        if len(new) < _MOST and time.time_ns() - there.st_mtime_ns > _TICK_NS:
            self._seen = now

    def _pass_on(self, event: Event) -> None:
        """BlockingIOError: the journal's queue is full."""
        # In a ledger that was made anew, numbers begin again.
        gone = event.id - 1 - (self._last if event.id > self._last else 0)
        if event.is_whole:
            _tell(event)
        else:  # to wait for a version that can read it would keep back all that come after it
            self._log(f"event {event.id} is not passed on to the journal: another version has written it")
        if gone:
            self._log(f"{gone} events are not passed on to the journal: newer ones have taken their places")


def _read() -> tuple[int, float]:
    try:
        last, when = jsonlite.loads(files.read(paths.in_run_dir(_TOLD), 100).decode("ascii"))
        return min(max(int(last), 0), _MOST_EVENTS), float(when)
    except (OSError, ValueError, TypeError, OverflowError):
        return 0, 0.0


def _write(last: int, when: float) -> None:
    try:
        files.write_atomic(paths.in_run_dir(_TOLD), jsonlite.dumps([last, when]).encode(), 0o600)
    except OSError:
        pass  # a full disk: they are passed on twice


def _tell(event: Event) -> None:
    """BlockingIOError: the queue of the journal, or of syslog, is full, or it is being started again."""
    warned_of = event.kind in WARNED_OF
    line = _line(event)
    fields = {
        "MESSAGE": line,
        "PRIORITY": str(_WARNING if warned_of else _INFO),
        "SYSLOG_IDENTIFIER": "xpu",
        **{name: value(event) for name, _, value in FIELDS},
    }
    pairs = [pair for pair in fields.items() if pair[1]]
    for part in event.devices:
        found = ((name, value(part)) for name, _, value in FIELDS_OF_DEVICE)
        pairs += [(name, str(value)) for name, value in found if value is not None]
    # A field ends with its line: a container's name must not begin another.
    content = "".join(f"{name}={_one_line(value)}\n" for name, value in pairs)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(content.encode("utf-8", "replace"), _JOURNAL)
        except ConnectionRefusedError:
            raise BlockingIOError from None
        except FileNotFoundError:  # there is none
            try:
                send_to_system_log("warning" if warned_of else "info", line)
            except (ConnectionRefusedError, FileNotFoundError):
                raise BlockingIOError from None


def _line(event: Event) -> str:
    who = f"container {event.container_id[:12]} " if event.container_id else ""
    who += f"({event.name}) " if event.name else ""
    what = [_of(part) for part in event.devices]
    told = event.text.removeprefix(f"{event.kind}: ")  # a refusal says so itself
    return _one_line(f"{who}{event.kind}: {'; '.join(filter(None, [*what, told]))}".rstrip(": "))


def _of(part: events.Part) -> str:
    amounts = [show(part.memory_bytes)] if part.memory_bytes is not None else []
    amounts += [f"{part.cores}% of the cores"] if part.cores is not None else []
    return f"{part.uuid}: {', '.join(amounts)}" if amounts else part.uuid


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST])
