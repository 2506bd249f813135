"""Tables and lines for a terminal on which a letter is not always one column wide."""

from __future__ import annotations

import pytest

from xpu_runtime.cli.terminal import screen
from xpu_runtime.cli.terminal.table import Column, cut, lines, wrapped

FAN = "風扇壊れた"  # each two columns
ACCENT = "e\u0301"  # one column, two letters


def text_of(line: screen.Line) -> str:
    return screen.text_of(line, None, False)


@pytest.mark.parametrize(("text", "columns"), [("fan", 3), (FAN, 10), (ACCENT, 1), ("", 0), ("a風", 3)])
def test_columns_are_those_of_a_terminal(text: str, columns: int) -> None:
    assert screen.columns_of(text) == columns


@pytest.mark.parametrize("width", range(4, 12))
@pytest.mark.parametrize("keeps_end", [True, False])
def test_a_cut_text_fits(width: int, keeps_end: bool) -> None:
    for text in (FAN, FAN + "x", "x" + FAN, ACCENT * 12, FAN + ACCENT * 5, "abcdefghijkl"):
        shown = cut(text, width, keeps_end)
        assert screen.columns_of(shown) <= width
        assert shown == text or ".." in shown
        assert "..\u0301" not in shown


@pytest.mark.parametrize("width", [20, 21, 33])
def test_a_folded_text_fits_and_nothing_of_it_is_lost(width: int) -> None:
    text = f"drained: {FAN * 20} and {ACCENT * 30} more words after it, {FAN}{ACCENT * 5}"
    found = [text_of(line) for line in wrapped(text, width, hang=2)]
    assert all(screen.columns_of(line) <= width for line in found)
    assert "".join("".join(found).split()) == "".join(text.split())


def test_columns_stand_below_each_other() -> None:
    table = [Column("WHY", [FAN, "fan"]), Column("WHO", ["a", "b"])]
    assert [text_of(line) for line in lines(table, (), 80)] == [
        "WHY         WHO",
        f"{FAN}  a",
        "fan         b",
    ]


def test_a_line_is_cut_to_the_window() -> None:
    assert screen.text_of([("a", ""), (FAN, "red"), ("end", "")], 6, False) == "a風扇"
    assert screen.text_of([("a", ""), (FAN, "red"), ("end", "")], 14, False) == f"a{FAN}end"
