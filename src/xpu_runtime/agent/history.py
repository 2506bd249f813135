"""The last hour of the node, for the page: a ring of samples, in the process that serves it.

It lives there, and not in the process that makes samples: that one is replaced once an hour, and when the
driver hangs. A sample is opaque bytes (a JSON value). The ring is bounded in number and in bytes, and ends
with the agent: it is a picture for people, and only the ledger knows the grants.
"""

from __future__ import annotations

import time
from collections import deque

#: The collector's question for a sample.
SAMPLE = b"sample"
#: Seconds between two samples, and for how long one is kept.
_EVERY_S, _KEPT_S = 15.0, 3600.0
#: A sample of 256 slices has some 16 kB, and an hour of them 3.8 MB.
_MOST_BYTES = 4 << 20


class History:
    """Samples of the last hour; with `timed` they are also taken without any client."""

    def __init__(self, *, timed: bool) -> None:
        self._timed = timed
        self._began = time.time()
        self._samples: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._last = time.monotonic() - _EVERY_S

    @property
    def due(self) -> float | None:
        """When the next sample is to be asked for (time.monotonic); None: when somebody looks."""
        return self._last + _EVERY_S if self._timed else None

    def missed(self) -> None:
        """There is no sample of now: the next one is asked for later."""
        self._last = time.monotonic()

    def taken(self, answer: bytes) -> bytes:
        """Keeps the sample that is the first line of an answer, where one is due; the rest of the answer."""
        sample, _, rest = answer.partition(b"\n")
        now = time.monotonic()
        if now - self._last >= _EVERY_S:
            self._last = now
            if sample:
                self._samples.append((now, sample))
                self._bytes += len(sample)
        while self._samples and (now - self._samples[0][0] > _KEPT_S or self._bytes > _MOST_BYTES):
            self._bytes -= len(self._samples.popleft()[1])
        return rest

    def json(self) -> bytes:
        """The samples, oldest first, and since when there can be any, in seconds since the epoch."""
        samples = b",\n".join(sample for _, sample in self._samples)
        return b'{"since":%d,"every_s":%d,"samples":[%s]}\n' % (self._began, _EVERY_S, samples)
