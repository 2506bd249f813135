"""Events that a slice is held more strictly, or no longer, written into the ledger when it is free.

The agent's rounds must not wait for the ledger, which starts of containers lock: an event that cannot be
written now is tried again. comparison.py decides about holds.
"""

from __future__ import annotations

import time
from collections import deque

from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.events import Part
from xpu_runtime.ledger.store import Ledger

#: Seconds that a try may wait for the ledger: the rounds wait with it.
_LEDGER_S = 0.0
#: The most events that wait for the ledger; older ones are lost.
_MOST = 64


class PendingEvents:
    """Those that are not written yet."""

    def __init__(self) -> None:
        #: Kind, container's id, device, text, and time.
        self._waiting: deque[tuple[str, str, Part, str, float]] = deque(maxlen=_MOST)

    def add(self, kind: str, container_id: str, part: Part, text: str) -> None:
        self._waiting.append((kind, container_id, part, text, time.time()))

    def write(self) -> None:
        """Writes as many as possible; does nothing if there are none."""
        if not self._waiting:
            return
        waiting.allow(_LEDGER_S)
        try:
            with Ledger(as_is=True) as ledger:
                while self._waiting:
                    kind, container_id, part, text, when = self._waiting[0]
                    ledger.note(kind, container_id, (part,), text, when=when)
                    self._waiting.popleft()
        except XpuError:
            pass  # a start has it, it is made anew, or its disk is full: the next time may do better
