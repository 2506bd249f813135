"""Amounts of memory: what is read, what is refused, and that printing and reading agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.request.units import MIB, Memory, as_variable, parse_memory, show

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4G", 4 * GIB),
        ("4g", 4 * GIB),
        ("4GB", 4 * GIB),
        ("4Gi", 4 * GIB),
        ("4GiB", 4 * GIB),
        ("4096M", 4 * GIB),
        ("4096MiB", 4 * GIB),
        ("1.5G", 3 * GIB // 2),
        ("0.5g", GIB // 2),
        ("1T", 1 << 40),
        ("512K", 512 << 10),
        ("1048576B", MIB),
        (" 4 G ", 4 * GIB),
    ],
)
def test_every_form_of_an_amount_is_read(text: str, amount: int) -> None:
    assert parse_memory(text) == Memory(bytes=amount)


WRONG = """4096 4X G -4G 4,5G 4..5G .5G 4.G 0G 0.0M 4GG 4IB 4BB 4BIB G4 1e3M 0x10M \u0664G 4G4
99999999999999999999G nan% 0% 101% -1% % 5%% inf"""


@pytest.mark.parametrize("text", ["", " ", *WRONG.split()])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_memory(text)


def test_a_bare_number_is_refused_for_its_missing_unit() -> None:
    with pytest.raises(ValueError, match="has no unit"):
        parse_memory("4096")


@given(st.text(max_size=12))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        memory = parse_memory(text)
    except ValueError:
        return
    assert memory.on(16 * GIB) > 0


@given(st.integers(1, 1 << 50))
def test_a_printed_variable_is_read_back_and_never_asks_for_more(amount: int) -> None:
    again = parse_memory(as_variable(amount)).bytes
    assert again is not None
    assert again <= amount
    assert amount - again < MIB


@given(st.integers(1, 100), st.integers(MIB, 1 << 40))
def test_a_share_is_whole_mebibytes_and_no_more_than_its_part(percent: int, device: int) -> None:
    amount = parse_memory(f"{percent}%").on(device)
    if percent == 100:
        assert amount == device
    else:
        assert amount % MIB == 0
        assert MIB <= amount <= max(device * percent / 100, MIB)


def test_amounts_are_shown_exactly_to_a_tenth() -> None:
    assert show(4 * GIB) == "4096 MiB"
    assert show(4 * GIB + MIB // 2) == "4096.5 MiB"
