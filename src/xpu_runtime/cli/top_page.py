"""The look of `xpu top`: a reading as lines of styled text, as wide as the window.

A narrow window leaves out columns, the least important first, and the page names them. Knows neither the
terminal (screen.py) nor the source of a reading (live.py).
"""

from __future__ import annotations

from collections.abc import Callable

from xpu_runtime.cli.terminal.screen import Line, Size, columns_of
from xpu_runtime.cli.terminal.table import cut, memory, share, wrapped
from xpu_runtime.errors import XpuError
from xpu_runtime.limits import pages
from xpu_runtime.observe.reading import Card, Reading, Row
from xpu_runtime.value import Value

#: The columns that `s` steps through.
ORDERS = ("got", "asked", "memory", "name")
#: Width of a device's bar, and of a container's, and their least widths.
_CARD_BAR, _BAR, _SHORTEST_BAR = 30, 24, 8
_EIGHTHS = " ▏▎▍▌▋▊▉"
#: A share this many points beyond its cap is more than noise.
_NOISE = 2.0
_GAP = "  "
#: Columns that go first if the window is too narrow.
_BAR_HEAD = ""
_LEFT_OUT = ("PRIO", "SCHED", "MAY", _BAR_HEAD, "NAME", "ASKED", "MEMORY", "WAITS")
#: The width at which a name is cut.
_NAME = 24

#: In a window of this many rows or fewer, containers take the hints' place.
_FEW_ROWS = 8


class _Style(Value):
    """How all lines of a page are drawn."""

    bars: bool
    #: The width of a container's bar.
    bar: int


class _Column(Value):
    head: str
    width: int
    #: A cell of this width.
    cell: Callable[[Row, _Style], Line]
    is_number: bool = False

    def title(self) -> str:
        """The head, over its cells."""
        return self.head.rjust(self.width) if self.is_number else self.head.ljust(self.width)


def page(reading: Reading | XpuError, order: str, window: Size, *, bars: bool) -> list[Line]:
    """A full screen: as many lines as fit, and the keys."""
    if isinstance(reading, XpuError):
        told = _wrapped(str(reading), "red", window.columns)
        return [[("xpu top", "bold")], [], *told, [], [("q ends", "dim")]]
    found = lines(reading, order, window.columns, bars=bars)
    for problem in reading.problems:
        found += _wrapped(f"memory in use is not known: {problem}", "yellow", window.columns)
    last: Line = [(f"q ends   s sorts: by {order}", "dim")]
    if len(found) + 2 > window.rows and window.rows <= _FEW_ROWS:
        found = lines(reading, order, window.columns, bars=bars, hints=False)
        if len(found) < window.rows:
            return [*found, last]
    if len(found) + 2 > window.rows:
        hidden = _count(len(found) - (window.rows - 1), "more line")
        return [
            *found[: window.rows - 1],
            [(f"{hidden}: make the window higher   ", "yellow"), *last],
        ]
    return [*found, [], last]


def lines(reading: Reading, order: str, width: int | None, *, bars: bool, hints: bool = True) -> list[Line]:
    """All lines for people, none longer than `width`; without `bars` only with characters that every terminal
    has, without `hints` only devices and containers."""
    rows = [row for card in reading.cards for row in card.rows]
    columns, missing, style = _fitting(rows, width, bars)
    page = _title(reading, rows, width, hints)
    if reading.missing:
        page += _wrapped(reading.missing, "red", width)
    if rows and missing and hints:
        page += _wrapped(f"make the window wider for {' '.join(missing)}", "yellow", width)
    heads = _GAP + _GAP.join(each.title() for each in columns)
    for card in reading.cards:
        page += [*([[]] if hints else []), _head(card, width, bars)]
        if card.note:
            page += _wrapped(card.note, "yellow", width, indent=4)
        if card.rows:
            page.append([(heads.rstrip(), "dim")])
        for row in sorted(card.rows, key=lambda row: key_of(row, order)):
            line: Line = []
            for column in columns:
                line += [(_GAP, ""), *column.cell(row, style)]
            page.append(line)
            if row.note:
                page += _wrapped(row.note, "red", width, indent=4)
    return page


def key_of(row: Row, order: str) -> tuple[float, str]:
    amounts = {"got": row.got, "asked": row.asked, "memory": row.memory, "name": 0}
    return -(amounts[order] or 0), row.container_id


def _title(reading: Reading, rows: list[Row], width: int | None, hints: bool) -> list[Line]:
    waiting = sum(row.waits for row in rows)
    shared = any(pages.needs_agent(row.sched, row.priority) for row in rows)
    head: Line = [("xpu top", "bold"), (f"   {_count(len(reading.cards), 'GPU')}", "")]
    head += [(f"   {_count(len({row.container_id for row in rows}), 'container')}", "")]
    head += [(f"   {waiting} waiting", "yellow" if waiting else "dim")]
    if reading.agent:
        agent = ("agent: runs", "dim")
    elif shared:
        agent = ("agent: does not run, so all have only their caps", "red")
    else:
        agent = ("agent: does not run", "dim")
    if width is None or _length(head) + 3 + len(agent[0]) <= width:
        return [[*head, ("   ", ""), agent]]
    return [head, *(_wrapped(*agent, width) if hints else [])]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _length(line: Line) -> int:
    return sum(columns_of(text) for text, _ in line)


def _wrapped(text: str, style: str, width: int | None, indent: int = 0) -> list[Line]:
    return wrapped(" " * indent + text, max(width or 1000, 20), hang=indent, style=style)


def _head(card: Card, width: int | None, bars: bool) -> Line:
    """A device's line: its bar shrinks first, then the requested part goes, then the bar."""
    style = "green" if (card.busy or 0.0) < 90 else "cyan"
    asked = sum(row.asked or 0 for row in card.rows)
    name: Line = [(f"GPU {card.index:<3}", "bold"), (f" {card.name[:24]:<18} ", "")]
    use: Line = [(f" {share(card.busy):>4} in use", "bold")]
    used = f"   memory {memory(card.memory)}/{memory(card.memory_total)}"
    for end in (f"   {asked}% asked{used}", used, ""):
        line: Line = [*use, (end, "")]
        left = _CARD_BAR if width is None else min(_CARD_BAR, width - _length(name) - _length(line))
        if left >= _SHORTEST_BAR:
            return [*name, *_bar(card.busy or 0.0, left, style, bars), *line]
    return [*name, *use]


def _fitting(rows: list[Row], width: int | None, bars: bool) -> tuple[list[_Column], list[str], _Style]:
    """The columns that fit, the heads of those that do not, and how long a container's bar is."""
    name = max([len("CONTAINER"), *(len(row.container_id[:12]) for row in rows)])
    amounts = max([len("MEMORY"), *(len(_memory(row)) for row in rows)])
    columns = [
        _Column("CONTAINER", name, lambda row, style: [(row.container_id[:12].ljust(name), "")]),
        _Column("ASKED", 5, lambda row, style: [(f"{share(row.asked):>5}", "")], True),
        _Column("GOT", 6, lambda row, style: [(_got(row), "bold")], True),
        _Column(_BAR_HEAD, _BAR, _row_bar),
        _Column("MAY", 4, lambda row, style: [(f"{share(row.allowed):>4}", "dim")], True),
        _Column("SCHED", 6, lambda row, style: [(f"{row.sched or '-':<6}", "")]),
        _Column("PRIO", 6, _priority),
        _Column("WAITS", 5, _waits),
        _Column("MEMORY", amounts, lambda row, style: [(_memory(row).ljust(amounts), "")]),
    ]
    if called := max((columns_of(row.name or "") for row in rows), default=0):
        width_of = max(len("NAME"), min(called, _NAME))
        columns.append(_Column("NAME", width_of, lambda row, style: [(_name(row, width_of), "dim")]))
    missing: list[str] = []
    for head in [head for head in _LEFT_OUT if any(each.head == head for each in columns)]:
        over = _width(columns) - width if width is not None else 0
        if over <= (_BAR - _SHORTEST_BAR if _has_bar(columns) else 0):
            break
        columns = [each for each in columns if each.head != head]
        missing.append(head)
    over = max(0, _width(columns) - width) if width is not None and _has_bar(columns) else 0
    shown = [each.replace(width=_BAR - over) if each.head == _BAR_HEAD else each for each in columns]
    return shown, [head for head in missing if head != _BAR_HEAD], _Style(bars, _BAR - over)


def _width(columns: list[_Column]) -> int:
    return sum(len(_GAP) + each.width for each in columns)


def _has_bar(columns: list[_Column]) -> bool:
    return any(each.head == _BAR_HEAD for each in columns)


def _got(row: Row) -> str:
    return "-".rjust(6) if row.got is None else f"{row.got:5.1f}%"


def _memory(row: Row) -> str:
    return f"{memory(row.memory)}/{memory(row.memory_limit)}"


def _name(row: Row, width: int) -> str:
    return cut(row.name or "-", width, keeps_end=True)


def _row_bar(row: Row, style: _Style) -> Line:
    got = row.got or 0.0
    colour = "red" if row.note else "green"
    if row.asked is not None and got > row.asked + _NOISE and not row.note:
        colour = "cyan"  # lent
    return _bar(got, style.bar, colour, style.bars, row.asked)


def _priority(row: Row, style: _Style) -> Line:
    return [(f"{row.priority or '-':<6}", {"high": "bold", "low": "dim"}.get(row.priority or "", ""))]


def _waits(row: Row, style: _Style) -> Line:
    mark = "●" if style.bars else "*"
    return [(mark.center(5) if row.waits else " " * 5, "yellow")]


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
