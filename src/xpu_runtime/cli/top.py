"""`xpu top`: devices and containers at work, live: their requests, shares and waits.

live.py reads, top_page.py draws.
"""

from __future__ import annotations

import time
from typing import TypedDict

import click

from xpu_runtime.cli.terminal import screen
from xpu_runtime.cli.terminal.table import print_json, print_lines
from xpu_runtime.cli.top_page import ORDERS, key_of, lines, page
from xpu_runtime.errors import XpuError
from xpu_runtime.observe import live
from xpu_runtime.observe.names import Names
from xpu_runtime.observe.reading import Reading

#: Bounds of --interval, in seconds.
_SHORTEST_S, _LONGEST_S = 0.1, 60


def _seconds(context: click.Context, param: click.Parameter, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0
    if not _SHORTEST_S <= seconds <= _LONGEST_S:  # nor is nan
        raise click.BadParameter(f"{value[:60]!r}: give seconds, from {_SHORTEST_S} to {_LONGEST_S}")
    return seconds


@click.command()
@click.option(
    "--once",
    is_flag=True,
    help="Print one reading and end; this is the default without a terminal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one reading as JSON, for scripts.")
@click.option(
    "--interval",
    callback=_seconds,
    default="1.0",
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two readings; each shows the use in this time.",
)
def top(once: bool, as_json: bool, interval: float) -> None:
    """Show what devices and containers do, live.

    \b
      GOT    the share of the device that the container got, as a bar with a mark
             at its cap; without a cap, from the driver's samples. A share above
             the cap is time that others left unused.
      MAY    the share that `xpu agent` allows it now; a dash without an agent: it
             has its cap
      SCHED, PRIO   XPU_SCHED and XPU_PRIORITY
      WAITS  a launch waited for its turn
      MEMORY   memory in use, and its limit

    NAME is as in `xpu ps`. A dash means unknown. A narrow window leaves columns out, and names them. Keys: q
    ends, s sorts by another column.

    \b
    Example:
      xpu top
      xpu top --json | jq '.devices[].containers[] | select(.waits).container_id'
    """
    if as_json or once or not screen.can_watch():
        reading = live.readings(interval)()
        _complain(reading)
        if as_json:
            print_json(_plain(reading))
        else:
            width = screen.size().columns if screen.is_terminal() else None
            print_lines(lines(reading, ORDERS[0], width, bars=screen.can_draw()))
        return
    _watch(interval)


def _watch(interval: float) -> None:
    source = live.Live(Names())
    order = 0
    try:
        reading: Reading | XpuError = live.try_reading(source)
        due = time.monotonic() + min(interval, 0.5)
        with screen.Screen() as terminal:
            while True:
                terminal.draw(page(reading, ORDERS[order], screen.size(), bars=screen.can_draw()))
                key = terminal.key(max(0.0, due - time.monotonic()))
                if key in screen.ENDS:
                    return
                if key == "s":
                    order = (order + 1) % len(ORDERS)
                if time.monotonic() >= due:
                    reading = live.try_reading(source)
                    due = time.monotonic() + interval
    except KeyboardInterrupt:
        pass
    finally:
        source.close()


class TopContainerJson(TypedDict):
    """A container on a device."""

    container_id: str
    #: The engine's name of it; null: not known.
    name: str | None
    #: Cap in percent of the device's time; null: no cap.
    cores: int | None
    #: Percent of the device's time between the two readings (GOT); null: not known.
    cores_got_percent: float | None
    #: Percent that `xpu agent` allows now (MAY); null: no agent runs, or there is no cap.
    cores_allowed_percent: float | None
    #: `fixed`, `burst` or `weight`; null: no cap.
    cores_sched: str | None
    #: `low`, `normal` or `high`; null: no cap.
    cores_priority: str | None
    #: Whether a launch has waited for its turn between the two readings; null: not known.
    waits: bool | None
    #: Bytes in use; null: not known.
    memory_used_bytes: int | None
    #: The limit in bytes; null: none.
    memory_bytes: int | None
    #: A remark on an unusual state; null: there is none.
    note: str | None


class TopDeviceJson(TypedDict):
    """A device with its containers."""

    #: A MIG device's is `0:1`.
    index: str
    uuid: str
    name: str
    #: Percent of the device's time in use by any process; null: not known.
    busy_percent: float | None
    #: Bytes in use by any process; null: not known.
    memory_used_bytes: int | None
    #: Bytes that containers can have; null: not known.
    memory_bytes: int | None
    containers: list[TopContainerJson]


class TopJson(TypedDict):
    """A reading."""

    #: Whether `xpu agent` runs.
    agent_runs: bool
    devices: list[TopDeviceJson]


def _plain(reading: Reading) -> TopJson:
    return {
        "agent_runs": reading.agent,
        "devices": [
            {
                "index": card.index,
                "uuid": card.uuid,
                "name": card.name,
                "busy_percent": _rounded(card.busy),
                "memory_used_bytes": card.memory,
                "memory_bytes": card.memory_total,
                "containers": [
                    {
                        "container_id": row.container_id,
                        "name": row.name,
                        "cores": row.asked,
                        "cores_got_percent": _rounded(row.got),
                        "cores_allowed_percent": _rounded(row.allowed),
                        "cores_sched": row.sched,
                        "cores_priority": row.priority,
                        "waits": row.waits,
                        "memory_used_bytes": row.memory,
                        "memory_bytes": row.memory_limit,
                        "note": row.note or None,
                    }
                    for row in sorted(card.rows, key=lambda row: key_of(row, "name"))
                ],
            }
            for card in reading.cards
        ],
    }


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)


def _complain(reading: Reading) -> None:
    """Prints the reading's problems on stderr."""
    for problem in reading.problems:
        click.echo(f"xpu: memory in use is not known: {problem}", err=True)
