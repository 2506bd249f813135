"""`xpu metrics`: the node's figures for Prometheus, once; and as `xpu agent` serves them.

What is read is live.py's to know, and how it is written exposition.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from xpu_runtime.cli import asking, exposition
from xpu_runtime.cli.live import NEXT_S, Live, Reading
from xpu_runtime.cli.names import Names
from xpu_runtime.config.load import load
from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import files, proc
from xpu_runtime.request import quotas
from xpu_runtime.request.quotas import Quota

#: What containers get is told of so many seconds: the first time, and where each command is the first.
_INTERVAL_S, _INTERVAL_ONCE_S = 0.2, 1.0
#: And until then there are no figures.
_LONGEST_ONCE_S = 20.0
#: For so long a reading is one of now.
_FRESH_S = 0.9


@click.command(short_help="Print the node's figures for Prometheus.")
@click.option(
    "--output",
    metavar="FILE",
    help="Write FILE, in one step, for node_exporter's textfile collector: name it *.prom.",
)
def metrics(output: str | None) -> None:
    """Print what devices, slices and events are now, in Prometheus' text format.

    It takes a second, of which it tells what containers get. Where `xpu agent` runs it serves the same, on a
    socket and, if the configuration says so, on a port of this machine. Where devices and slices cannot be
    read there is xpu_up 0, and what the ledger counts; the exit status is 1.

    \b
    Example:
      xpu metrics
      xpu metrics --output /var/lib/prometheus/node-exporter/xpu.prom
      curl --unix-socket /run/xpu/metrics.sock http://localhost/metrics
    """
    figures = Figures(_INTERVAL_ONCE_S)
    answer = asking.one(lambda: (figures.text(), figures.problems, figures.error), _LONGEST_ONCE_S)
    if answer.values:
        text, problems, error = answer.values[0]
    else:
        error = XpuError(answer.error, answer.todo)
        text, problems = figures.text_without(error), figures.problems
    if output is None:
        click.echo(text, nl=False)
    else:
        files.write_atomic(output, text, 0o644)
    for problem in problems:
        click.echo(f"xpu: {problem}", err=True)
    if error is not None:
        raise error


class Figures:
    """What there is to tell, again and again; of the time between two questions. Reading may hang with the
    driver: for a process that is given up then."""

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._live: Live | None = None
        #: When it was taken, and the last reading.
        self._last: tuple[float, Reading] | None = None
        self._counted = exposition.Counted()
        #: Of the last time: what could not be read of the node, and why nothing could.
        self.problems: list[str] = []
        self.error: XpuError | None = None

    def text(self) -> bytes:
        """XpuError where there is nothing at all to tell."""
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
        """Whether it has a driver open."""
        return self._live is not None

    def read(self) -> Reading:
        """XpuError where the configuration or the driver cannot be read. All that ask at the same time get
        the same one: what is used cannot be told of no time."""
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
    """None where the configuration cannot be read, as nothing of the devices can be then, which says why."""
    try:
        return quotas.every(load().policy_quotas)
    except ConfigError:
        return ()


def served(figures: Figures, log: Callable[[str], None]) -> Callable[[], bytes]:
    """As `xpu agent` serves them: what cannot be read is told to `log`, once."""
    told: set[str] = set()

    def page() -> bytes:
        text = figures.text()
        now = {*figures.problems, *([str(figures.error)] if figures.error else [])}
        for problem in sorted(now - told):
            log(f"metrics: {problem}")
        told.clear()
        told.update(now)
        return text

    return page
