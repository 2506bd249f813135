"""Events that a slice is held more strictly, or no longer, written into the ledger when it is free.

The agent's rounds must not wait for the ledger, which starts of containers lock: an event that cannot be
written now is tried again. comparison.py decides about holds.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.events import Part
from xpu_runtime.ledger.store import Ledger

#: Seconds that a try may wait for the ledger: the rounds wait with it.
_LEDGER_S = 0.0
#: The most events that wait for the ledger; older ones are lost.
_MOST = 64


class _Waiting(NamedTuple):
    kind: str
    container_id: str
    part: Part
    text: str
    when: float


class PendingEvents:
    """Those that are not written yet."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque(maxlen=_MOST)

    def add(self, kind: str, container_id: str, part: Part, text: str) -> None:
        """It has happened now."""
        self._waiting.append(_Waiting(kind, container_id, part, text, time.time()))

    def write(self) -> None:
        """Writes as many as possible; does nothing if there are none."""
        if not self._waiting:
            return
        waiting.allow(_LEDGER_S)
        try:
            with Ledger(as_is=True) as ledger:
                while self._waiting:
                    first = self._waiting[0]
                    ledger.note(first.kind, first.container_id, (first.part,), first.text, when=first.when)
                    self._waiting.popleft()
        except XpuError:
            pass  # a start has it, it is made anew, or its disk is full: the next time may do better
