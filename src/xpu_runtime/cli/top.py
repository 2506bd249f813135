"""`xpu top`: devices and containers at work, live: what each asked for, what it gets, who waits.

Only draws what live.py reads.
"""

from __future__ import annotations

import time
from typing import Any

import click

from xpu_runtime.cli import live, screen
from xpu_runtime.cli.live import Card, Reading, Row
from xpu_runtime.cli.screen import Line
from xpu_runtime.cli.table import memory, print_json, share
from xpu_runtime.errors import XpuError

#: Of a bar of a device, and of a container's.
_CARD_BAR, _BAR = 30, 24
_EIGHTHS = " ▏▎▍▌▋▊▉"
#: What `s` goes through.
_ORDERS = ("got", "asked", "memory", "name")
#: Of --interval, in seconds.
_SHORTEST_S, _LONGEST_S = 0.1, 60
#: Beyond its cap by so many points is more than noise.
_NOISE = 2.0


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
    "--once", is_flag=True, help="Print one reading and end; so it does where stdout is no terminal."
)
@click.option("--json", "as_json", is_flag=True, help="Print one reading as JSON, for scripts.")
@click.option(
    "--interval",
    callback=_seconds,
    default="1.0",
    show_default=True,
    metavar="SECONDS",
    help="Between two readings; use is told of that time.",
)
def top(once: bool, as_json: bool, interval: float) -> None:
    """Show what devices and containers do, live.

    For each container: the share of the device that it asked for and the one it got, as a bar with a mark at
    the cap; how time is shared (XPU_SCHED) and who goes first (XPU_PRIORITY); WAITS where a launch waited for
    its turn; memory in use, of its limit. Use above the cap is what others have left. Keys: q ends, s sorts
    by another column.

    \b
    Example:
      xpu top
      xpu top --json | jq '.devices[].containers[] | select(.waits).container_id'
    """
    if as_json or once or not (click.get_text_stream("stdin").isatty() and _is_terminal()):
        reading = live.readings(interval)()
        live.complain(reading)
        if as_json:
            print_json(_plain(reading))
        else:
            for line in lines(reading, _ORDERS[0], bars=screen.can_draw()):
                click.echo(screen.text_of(line, None, screen.coloured()))
        return
    _watch(interval)


def _is_terminal() -> bool:
    return click.get_text_stream("stdout").isatty()


def _watch(interval: float) -> None:
    source = live.Live()
    order = 0
    try:
        reading: Reading | XpuError = live.try_reading(source)
        due = time.monotonic() + min(interval, 0.5)
        with screen.Screen() as terminal:
            while True:
                terminal.draw(_page(reading, _ORDERS[order]))
                key = terminal.key(max(0.0, due - time.monotonic()))
                if key in ("q", "Q", "\x1b", "\x04"):
                    return
                if key == "s":
                    order = (order + 1) % len(_ORDERS)
                if time.monotonic() >= due:
                    reading = live.try_reading(source)
                    due = time.monotonic() + interval
    except KeyboardInterrupt:
        pass
    finally:
        source.close()


def _page(reading: Reading | XpuError, order: str) -> list[Line]:
    if isinstance(reading, XpuError):
        return [[("xpu top", "bold")], [], [(str(reading), "red")], [], [("q ends", "dim")]]
    found = lines(reading, order, bars=screen.can_draw())
    height = screen.size().rows
    last: Line = [(f"q ends   s sorts: by {order}", "dim")]
    if len(found) + 2 > height:
        hidden = len(found) - (height - 1)
        return [*found[: height - 1], [(f"{hidden} more lines: make the window higher   ", "yellow"), *last]]
    return [*found, [], last]


def lines(reading: Reading, order: str, *, bars: bool) -> list[Line]:
    """The whole page for people; without `bars` only with characters that every terminal has."""
    rows = [row for card in reading.cards for row in card.rows]
    waiting = sum(row.waits for row in rows)
    shared = any(row.sched not in (None, "fixed") or row.priority not in (None, "normal") for row in rows)
    head: Line = [("xpu top", "bold"), (f"   {_count(len(reading.cards), 'GPU')}", "")]
    head += [(f"   {_count(len({row.container_id for row in rows}), 'container')}", "")]
    head += [(f"   {waiting} waiting", "yellow" if waiting else "dim")]
    if reading.agent:
        head += [("   agent: runs", "dim")]
    elif shared:
        head += [("   agent: does not run, so that all have their caps and no more", "red")]
    else:
        head += [("   agent: does not run", "dim")]
    page = [head]
    width = max([len("CONTAINER"), *(len(row.container_id[:12]) for row in rows)])
    for card in reading.cards:
        page += [[], _head(card, bars)]
        if card.rows:
            page.append([(_columns(width), "dim")])
        for row in sorted(card.rows, key=lambda row: _key(row, order)):
            page.append(_line(row, width, bars))
            if row.note:
                page.append([("    " + row.note, "red")])
    return page


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _key(row: Row, order: str) -> tuple[float, str]:
    amounts = {"got": row.got, "asked": row.asked, "memory": row.memory, "name": 0}
    return -(amounts[order] or 0), row.container_id


def _head(card: Card, bars: bool) -> Line:
    busy = card.busy or 0.0
    style = "green" if busy < 90 else "cyan"
    asked = sum(row.asked or 0 for row in card.rows)
    line: Line = [(f"GPU {card.index:<3}", "bold"), (f" {card.name[:24]:<18} ", "")]
    line += [*_bar(busy, _CARD_BAR, style, bars), (f" {share(card.busy):>4} in use", "bold")]
    line += [(f"   {asked}% asked   memory {memory(card.memory)}/{memory(card.memory_total)}", "")]
    return line


def _columns(width: int) -> str:
    return (
        f"  {'CONTAINER':<{width}}  {'ASKED':>5}  {'GOT':>6}  {'':<{_BAR}}  {'MAY':>4}  "
        f"{'SCHED':<6}  {'PRIO':<6}  WAITS  MEMORY"
    )


def _line(row: Row, width: int, bars: bool) -> Line:
    got = row.got or 0.0
    style = "red" if row.note else "green"
    if row.asked is not None and got > row.asked + _NOISE and not row.note:
        style = "cyan"  # lent
    line: Line = [(f"  {row.container_id[:12]:<{width}}  ", "")]
    line += [(f"{share(row.asked):>5}  ", ""), ("-".rjust(6) if row.got is None else f"{got:5.1f}%", "bold")]
    line.append(("  ", ""))
    line += _bar(got, _BAR, style, bars, row.asked)
    line += [(f"  {share(row.allowed):>4}", "dim"), (f"  {row.sched or '-':<6}", "")]
    priority = {"high": "bold", "low": "dim"}.get(row.priority or "", "")
    line += [(f"  {row.priority or '-':<6}", priority)]
    line += [("  " + ("●" if bars else "*").center(5) if row.waits else "       ", "yellow")]
    line += [(f"  {memory(row.memory)}/{memory(row.memory_limit)}", "")]
    return line


def _bar(percent: float, width: int, style: str, bars: bool, cap: int | None = None) -> Line:
    """A bar of `width` characters, to an eighth of one, with a mark at `cap` percent."""
    eighths = round(min(max(percent, 0.0), 100.0) * width * 8 / 100)
    full, rest = divmod(eighths, 8) if bars else (round(eighths / 8), 0)
    text = ("█" if bars else "#") * full + (_EIGHTHS[rest] if rest else "")
    ground = text.ljust(width, "·" if bars else ".")
    if cap is None:
        return [(text, style), (ground[len(text) :], "dim")]
    at = min(width - 1, cap * width // 100)
    filled = min(at, len(text))
    line: Line = [(text[:filled], style), (ground[filled:at], "dim"), ("│" if bars else "|", "bold")]
    return [*line, (text[at + 1 :], style), (ground[max(at + 1, len(text)) :], "dim")]


def _plain(reading: Reading) -> dict[str, Any]:
    """For scripts: shares in percent of the device, memory in bytes, null for what is not known."""
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
                    for row in sorted(card.rows, key=lambda row: _key(row, "name"))
                ],
            }
            for card in reading.cards
        ],
    }


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)
