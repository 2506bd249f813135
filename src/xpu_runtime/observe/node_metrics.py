"""The node's metrics for Prometheus: as `xpu metrics` prints and `xpu agent` serves them.

live.py reads, exposition.py writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from xpu_runtime.config.load import load
from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import proc
from xpu_runtime.observe import exposition
from xpu_runtime.observe.live import NEXT_S, Live
from xpu_runtime.observe.names import Names
from xpu_runtime.observe.reading import Reading
from xpu_runtime.request import quotas
from xpu_runtime.request.quotas import Quota

#: Seconds over which the first reading measures shares.
_INTERVAL_S = 0.2
#: For this long a reading counts as a present one.
_FRESH_S = 0.9


class NodeMetrics:
    """The metrics, for repeated questions; shares are of the time between two of them. Reading may hang with
    the driver: use it in a process that can be given up."""

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._live: Live | None = None
        #: When it was taken, and the last reading.
        self._last: tuple[float, Reading] | None = None
        self._counted = exposition.Counted()
        #: The problems of the last reading, and the error if there was no reading.
        self.problems: list[str] = []
        self.error: XpuError | None = None

    def text(self) -> bytes:
        """XpuError if there is nothing at all to report."""
        try:
            reading = self.read()
            missing = reading.missing
            self.error = XpuError(missing, "see `xpu doctor`") if missing else None
        except XpuError as error:
            return self.text_without(error)
        return self._written(reading)

    def text_without(self, error: XpuError) -> bytes:
        """As `text`, where devices and slices could not be read."""
        self.error = error
        return self._written(None)

    def _written(self, reading: Reading | None) -> bytes:
        with Ledger() as ledger:
            totals = ledger.totals()
            used = [(quota, ledger.counted(quota.name)) for quota in _quotas()]
        found, problems = exposition.text(reading, totals, used, self._counted)
        # A container's id may be in them.
        self.problems = [proc.printable(each) for each in [*(reading.problems if reading else ()), *problems]]
        return found

    def close(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = self._last = None

    @property
    def is_open(self) -> bool:
        return self._live is not None

    def read(self) -> Reading:
        """XpuError if the configuration or the driver cannot be read. Questions at the same time get the same
        reading: use cannot be measured over no time."""
        if self._live is not None and self._live.is_outdated():
            self.close()
        if self._last is not None and time.monotonic() - self._last[0] < _FRESH_S:
            return self._last[1]
        if self._live is not None:
            reading = self._live.read(NEXT_S)
        else:
            # An engine that hangs is waited for a second, each half a minute.
            self._live = Live(Names(), may_hang=True)
            reading = self._live.first(self._interval_s)
        self._last = time.monotonic(), reading
        return reading


def _quotas() -> tuple[Quota, ...]:
    """Empty if the configuration cannot be read; the reading of devices then reports that error."""
    try:
        return quotas.every(load().policy_quotas)
    except ConfigError:
        return ()


def served(metrics: NodeMetrics, log: Callable[[str], None]) -> Callable[[], bytes]:
    """As `xpu agent` serves them: failures go to `log`, once each."""
    told: set[str] = set()

    def page() -> bytes:
        text = metrics.text()
        now = {*metrics.problems, *([str(metrics.error)] if metrics.error else [])}
        for problem in sorted(now - told):
            log(f"metrics: {problem}")
        told.clear()
        told.update(now)
        return text

    return page
