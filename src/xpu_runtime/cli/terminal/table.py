"""Tables for people, JSON and templates for scripts, and the form of amounts in all of them.

On a terminal a table is as wide as the window: cells are cut, or columns left out, the least important first,
and a line says so. Without a terminal, and with --wide, everything is shown. This module knows no command.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from xpu_runtime.cli.terminal import screen
from xpu_runtime.cli.terminal.screen import Line, columns_of, fitting, printable
from xpu_runtime.errors import XpuError
from xpu_runtime.limits import sharing
from xpu_runtime.request.units import show
from xpu_runtime.value import Value

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
wide_option = click.option("--wide", is_flag=True, help="Show all columns in full, even in a narrow window.")

GAP = "  "
_CUT = ".."
#: No text to print has it.
_FILLER = "\0"
#: Narrower than this no table makes sense.
_NARROWEST = 20


class Column(Value):
    """A column: its head, a text for each row, and how it fits into a narrow window."""

    head: str
    cells: Sequence[str]
    #: The fewest characters to which it may be cut; 0: it is shown whole or not at all.
    least: int = 0
    #: A text is cut in the middle, because its two ends tell it apart from others.
    keeps_end: bool = False
    #: The style of each text, one of screen.STYLES; none: plain.
    styles: Sequence[str] = ()
    #: The column that replaces this one if there is no room for it.
    short: Column | None = None
    is_number: bool = False

    @property
    def width(self) -> int:
        return max(map(columns_of, (self.head, *self.cells)))

    @property
    def narrowest(self) -> int:
        return min(self.width, max(self.least, len(self.head))) if self.least else self.width


def width_of_window(wide: bool) -> int | None:
    """Columns of the terminal that is written to; None: there is none, or it does not matter."""
    return None if wide or not screen.is_terminal() else max(screen.size().columns, _NARROWEST)


def width_of(columns: Sequence[Column]) -> int:
    """The width of a table in which nothing is cut."""
    return sum(each.width + len(GAP) for each in columns) - len(GAP)


def lines(columns: Sequence[Column], left_out: Sequence[str], width: int | None) -> list[Line]:
    """The columns as lines of styled text, two spaces apart. `left_out`: heads in the order in which they go
    where `width` has no room."""
    shown, missing = _fitting([_printable(each) for each in columns], left_out, width)
    over = 0 if width is None else width_of(shown) - width
    widths = []
    for each in shown:
        less = max(0, min(over, each.width - each.narrowest))
        over -= less
        widths.append(each.width - less)
    heads = [(_filled(each, each.head, wide), "") for each, wide in zip(shown, widths)]
    found = [_line(heads)]
    for row in range(len(columns[0].cells)):
        cells = []
        for each, wide in zip(shown, widths):
            style = each.styles[row] if each.styles else ""
            cells.append((_filled(each, cut(each.cells[row], wide, each.keeps_end), wide), style))
        found.append(_line(cells))
    if missing and columns[0].cells:
        found += wrapped(f"--wide also shows {', '.join(dict.fromkeys(missing))}", width, style="dim")
    return found


def _printable(column: Column) -> Column:
    short = _printable(column.short) if column.short is not None else None
    return column.replace(cells=[printable(text) for text in column.cells], short=short)


def _fitting(
    columns: list[Column], left_out: Sequence[str], width: int | None
) -> tuple[list[Column], list[str]]:
    """The columns that fit, and the heads of those that do not."""
    missing: list[str] = []
    for head in left_out:
        at = next((at for at, each in enumerate(columns) if each.head == head), None)
        if width is None or sum(each.narrowest + len(GAP) for each in columns) - len(GAP) <= width:
            break
        if at is not None:
            short = columns[at].short
            columns = [*columns[:at], *([short] if short is not None else []), *columns[at + 1 :]]
            missing.append(head)
    return columns, missing


def cut(text: str, width: int, keeps_end: bool) -> str:
    """The text, cut to the width: its beginning, or with `keeps_end` its two ends."""
    if columns_of(text) <= width:
        return text
    kept = width - len(_CUT)
    end = fitting(text[::-1], kept * 2 // 3 if keeps_end else 0)[::-1]
    while end and not columns_of(end[0]):  # an accent whose letter is gone
        end = end[1:]
    return fitting(text, kept - columns_of(end)) + _CUT + end


def _filled(column: Column, text: str, width: int) -> str:
    filling = " " * (width - columns_of(text))
    return filling + text if column.is_number else text + filling


def _line(cells: list[tuple[str, str]]) -> Line:
    line: Line = []
    for text, style in cells:
        line += [*([(GAP, "")] if line else []), (text, style)]
    text, style = line[-1]
    return [*line[:-1], (text.rstrip(), style)]


def wrapped(text: str, width: int | None, *, hang: int = 0, style: str = "", word: str = "") -> list[Line]:
    """A text as lines no longer than `width`, those after the first indented by `hang`; `style` is that of
    the first `word` in it, or of all."""
    text = printable(text)
    texts = [text] if width is None else _folded(text, width, min(hang, width // 2))
    if not word:
        return [[(each, style)] for each in texts]
    before, found, after = texts[0].partition(word)
    return [[(before, ""), (found, style), (after, "")], *([(each, "")] for each in texts[1:])]


def _folded(text: str, width: int, hang: int) -> list[str]:
    if any(columns_of(each) != 1 for each in text):
        # textwrap counts letters: a wide one is two for it, of which the second may begin a line.
        text = "".join(each + _FILLER * (columns_of(each) - 1) for each in text)
        width -= 1
    first, rest = text[:hang], text[hang:]
    found = textwrap.wrap(
        rest, width, initial_indent=first, subsequent_indent=" " * hang, break_on_hyphens=False
    )
    return [each.replace(_FILLER, "") for each in found or [first]]


#: Seconds between two looks of --watch.
_WATCH_S = 2.0

watch_option = click.option(
    "--watch", is_flag=True, help=f"Show it again every {_WATCH_S:.0f} s, until you press q."
)


def watched(page: Callable[[int], list[Line]]) -> None:
    """Shows a page again and again, as --watch does; `page` gets the window's width. An error appears in
    place of the page."""
    if not screen.can_watch():
        raise click.UsageError(
            "--watch needs a terminal that can be drawn on; for scripts there are --json and --format."
        )

    def whole(window: screen.Size) -> list[Line]:
        try:
            found = page(window.columns)
        except XpuError as error:
            found = [*wrapped(str(error), window.columns, style="red"), []]
        return [*found, [("q ends", "dim")]]

    screen.watch(whole, _WATCH_S)


def print_lines(found: Sequence[Line]) -> None:
    """Prints lines on stdout, in colours if stdout takes them."""
    colours = screen.coloured()
    for line in found:
        click.echo(screen.text_of(line, None, colours).rstrip(), color=colours)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, two spaces apart; nothing is cut."""
    columns = [Column(head, [str(row[at]) for row in rows]) for at, head in enumerate(heads)]
    print_lines(lines(columns, (), None))


def memory(amount: int | None) -> str:
    """Bytes, or a dash for unknown or unlimited."""
    return "-" if amount is None else show(amount)


def used_of(used: int | None, limit: int | None, unaccounted: int | None = None) -> str:
    """`1.5G/4G`, or a dash for unknown; `1.5G/4G (2G unaccounted)` where the account lacks that much."""
    beyond = f" ({show(unaccounted)} unaccounted)" if unaccounted else ""
    return ("-" if used is None else f"{show(used)}/{memory(limit)}") + beyond


def percent(amount: int | None) -> str:
    """A percentage, or a dash for none."""
    return "-" if amount is None else f"{amount}%"


def share(percentage: float | None, unaccounted: float | None = None) -> str:
    """A measured percentage, or a dash for unknown; `0% (95% unaccounted)` where the account lacks that."""
    beyond = f" ({unaccounted:.0f}% unaccounted)" if unaccounted else ""
    return ("-" if percentage is None else f"{percentage:.0f}%") + beyond


def cores(entry: Mapping[str, Any]) -> str:
    """The cap on cores, or how the device's time is shared without one; a dash where it is not shared."""
    if entry["cores"] is not None:
        return percent(entry["cores"])
    return {sharing.TURNS: "equal turns", sharing.SIDE_BY_SIDE: sharing.SIDE_BY_SIDE}.get(
        entry["cores_shared"], "-"
    )


def strengths(entry: Mapping[str, Any]) -> str:
    """`hard/soft`: how strongly memory and cores are held; a dash where there is no limit."""
    return "/".join(entry[f"{kind}_strength"] or "-" for kind in ("memory", "cores"))


def enforced(entry: Mapping[str, Any]) -> str:
    """`memory: driver (hard), cores: unenforced`; a dash where there is no limit."""
    texts = []
    for kind in ("memory", "cores"):
        strength, backend = entry[f"{kind}_strength"], entry[f"{kind}_backend"]
        if strength:
            texts.append(f"{kind}: {strength if strength == 'unenforced' else f'{backend} ({strength})'}")
    return ", ".join(texts) or "-"
