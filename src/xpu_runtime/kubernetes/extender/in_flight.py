"""Pods that kube-scheduler has asked about and is about to bind.

It binds beside its next question: by the time at which it asks about a pod, it has decided where the one
before goes, and that may not have been told yet. Answered at once, both would be sent to the last place there
is, and the second bind be refused: one in five, where sixty nodes were filled to the last. So a question
waits for a bind that must be on its way, which is a millisecond or two, and no longer than MOST_S. Knows no
node.
"""

from __future__ import annotations

import threading
import time

#: Seconds that one pod's bind is waited for; some pods wait for a volume first, or are not bound at all.
MOST_S = 0.1


class InFlight:
    """Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: By UID, until when it is waited for.
        self._until: dict[str, float] = {}

    def begin(self, uid: str) -> None:
        """kube-scheduler has the answer with a place for it, and may bind it next."""
        with self._changed:
            self._until[uid] = time.monotonic() + MOST_S

    def end(self, uid: str) -> None:
        """It has its place, or is not to have one."""
        with self._changed:
            if self._until.pop(uid, None) is not None:
                self._changed.notify_all()

    def wait(self, uid: str) -> None:
        """Before something is said of the pod: until there is no other that may be bound next."""
        with self._changed:
            self._until.pop(uid, None)
            # With two schedulers there may always be one.
            latest = time.monotonic() + MOST_S
            while True:
                now = time.monotonic()
                self._until = {each: until for each, until in self._until.items() if until > now}
                if not self._until or now >= latest:
                    return
                self._changed.wait(min(latest, *self._until.values()) - now)
