"""What has happened to slices and devices, told to systemd's journal with fields, or to syslog.

The events themselves are in the ledger's file (ledger/events.py), written with what they tell of. The agent
passes on those that it has not passed on yet, so that a container's start pays nothing for it. What the last
one was is kept in the run folder: an agent that is killed in between passes some on twice, and none never.
The protocol: "Native Journal Protocol" on systemd.io.
"""

from __future__ import annotations

import os
import socket

from xpu_runtime import jsonlite, paths
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import events, waiting
from xpu_runtime.ledger.events import Event
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import files
from xpu_runtime.messages import to_system_log
from xpu_runtime.request.units import show

_JOURNAL = "/run/systemd/journal/socket"
_TOLD = "events.told"
#: Seconds that a look may wait for the ledger: the rounds wait with it.
_LEDGER_S = 0.0
#: In one look; more come with the next one.
_MOST = 200
#: syslog(3).
_WARNING, _INFO = 4, 6
_WARNED_OF = (events.REFUSED, events.FAILED, events.REAPED)
_LONGEST = 8000


class Journal:
    """Made by who holds the agent's lock."""

    def __init__(self) -> None:
        self._path = paths.in_run_dir("ledger.db")
        self._inode, self._last = self._read()
        self._seen: tuple[int, ...] = ()

    def look(self) -> None:
        """Passes on what is new; costs a stat(2) where nothing is. Never waits, and never fails."""
        try:
            there = os.stat(self._path)
        except OSError:
            return
        now = (there.st_ino, there.st_size, there.st_mtime_ns)
        if now == self._seen:
            return
        if there.st_ino != self._inode:  # made anew: its numbers begin anew
            self._inode, self._last = there.st_ino, 0
        waiting.allow(_LEDGER_S)
        try:
            with Ledger(as_is=True) as ledger:
                new = ledger.history(self._last)
        except XpuError:
            return  # a start holds it, or it is made anew: the next look has it
        for event in new[:_MOST]:
            _tell(event)
            self._last = event.id
        if new:
            self._write()
        if len(new) <= _MOST:
            self._seen = now

    def _read(self) -> tuple[int, int]:
        try:
            inode, last = jsonlite.loads(files.read(paths.in_run_dir(_TOLD), 100).decode("ascii"))
            return int(inode), int(last)
        except (OSError, ValueError, TypeError):
            return 0, 0

    def _write(self) -> None:
        try:
            files.write_atomic(
                paths.in_run_dir(_TOLD), jsonlite.dumps([self._inode, self._last]).encode(), 0o600
            )
        except OSError:
            pass  # a full disk: they are passed on twice


def _tell(event: Event) -> None:
    warned_of = event.kind in _WARNED_OF
    line = _line(event)
    fields = {
        "MESSAGE": line,
        "PRIORITY": str(_WARNING if warned_of else _INFO),
        "SYSLOG_IDENTIFIER": "xpu",
        "XPU_EVENT": event.kind,
        "XPU_EVENT_ID": str(event.id),
        "XPU_EVENT_TIME": f"{event.time:.6f}",
        "XPU_CONTAINER_ID": event.container_id,
        "XPU_REASON": event.text,
    }
    pairs = [pair for pair in fields.items() if pair[1]]
    for part in event.devices:
        pairs.append(("XPU_DEVICE", part.uuid))
        if part.memory_bytes is not None:
            pairs.append(("XPU_MEMORY_BYTES", str(part.memory_bytes)))
        if part.cores is not None:
            pairs.append(("XPU_CORES", str(part.cores)))
    # A field ends with its line: what a container is called must not begin another.
    content = "".join(f"{name}={_one_line(value)}\n" for name, value in pairs)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(content.encode("utf-8", "replace"), _JOURNAL)
        except OSError:
            to_system_log("warning" if warned_of else "info", line)


def _line(event: Event) -> str:
    who = f"container {event.container_id[:12]} " if event.container_id else ""
    what = [_of(part) for part in event.devices]
    return _one_line(f"{who}{event.kind}: {'; '.join(filter(None, [*what, event.text]))}".rstrip(": "))


def _of(part: events.Part) -> str:
    amounts = [show(part.memory_bytes)] if part.memory_bytes is not None else []
    amounts += [f"{part.cores}% of the cores"] if part.cores is not None else []
    return f"{part.uuid}: {', '.join(amounts)}" if amounts else part.uuid


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST])
