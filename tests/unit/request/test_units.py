"""Amounts of memory: accepted and refused texts. A printed amount is read back as the same amount."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.request.units import MIB, Memory, as_variable, parse_memory, show, show_apart, show_exactly

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


@pytest.mark.parametrize(
    ("amount", "unit", "text"),
    [
        (20 * GIB, "", "20G"),
        (4100 * MIB, "", "4100M"),
        (3 * GIB // 2, "", "1.5G"),
        (GIB - 1, "", "1023.9M"),
        (GIB, "", "1G"),
        (GIB + 1, "", "1.0G"),
        (17072495001, "", "15.9G"),
        (16281 * MIB, "", "16281M"),
        (16281 * MIB, "G", "15.8G"),
        (512 * MIB, "G", "512M"),
        (MIB, "G", "1M"),
        (MIB - 1, "G", "1023.9K"),
        (1023, "G", "1023B"),
        (4 * GIB, "M", "4096M"),
        (4 * GIB, "T", "4G"),
        (1 << 40, "T", "1T"),
        (0, "", "0M"),
        (0, "G", "0G"),
    ],
)
def test_an_amount_is_shown_in_the_unit_of_the_request(amount: int, unit: str, text: str) -> None:
    assert show(amount, unit) == text


def test_an_amount_of_any_size_is_shown() -> None:
    assert show_apart(15 * GIB, 9 * 10**18 * GIB) == ("15G", f"{9 * 10**18}G")
    assert show_exactly(1 << 90, "M") == f"{1 << 70}M"


@pytest.mark.parametrize(
    "asked", ["20G", "15.9G", "1.25G", "1.125T", "4096M", "4100M", "0.1G", "1.3M", "7K", "50%"]
)
def test_a_requested_amount_is_shown_as_it_was_written(asked: str) -> None:
    memory = parse_memory(asked)
    shown = memory.text()
    assert parse_memory(shown) == memory
    assert shown == {"0.1G": "102.4M"}.get(asked, asked)


@pytest.mark.parametrize(
    ("amount", "asked", "texts"),
    [
        (16281 * MIB, "20G", ("15.8G", "20G")),
        (16 * GIB - MIB, "16G", ("15.9G", "16G")),
        (1300 * MIB, "1.2G", ("1300M", "1228.8M")),
        (4096 * MIB, "4096M", ("4096M", "4096M")),
        (4 * GIB, "4294967297B", ("4294967296B", "4294967297B")),
        (12345678 << 10, "12345678.5K", ("12345678K", "12345678.5K")),
    ],
)
def test_amounts_that_differ_look_different_in_one_sentence(
    amount: int, asked: str, texts: tuple[str, str]
) -> None:
    memory = parse_memory(asked)
    assert show_apart(amount, memory.on(0), memory.unit) == texts


def test_amounts_in_different_spellings_are_equal() -> None:
    assert parse_memory("4G") == parse_memory("4096M") != parse_memory("4097M")
    assert hash(parse_memory("4G")) == hash(parse_memory("4096M"))
    assert parse_memory("50%") == parse_memory("50.0%") != parse_memory("51%")
