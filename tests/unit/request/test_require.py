"""XPU_REQUIRE: spaces separate alternatives, commas separate conditions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.request.require import parse, unmet

T4 = {"cuda": "12.4", "driver": "550.90.07", "arch": "7.5", "brand": "tesla"}


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("cuda>=12.0", True),
        ("cuda>=12.4", True),
        ("cuda>12.4", False),
        ("cuda=12.4.0", True),
        ("cuda!=12.4", False),
        ("cuda>=13.0", False),
        ("driver>=535", True),
        ("driver<=550.90.7.0", True),
        ("driver>550.90", True),
        ("driver<551", True),
        ("driver<550", False),
        ("arch>=8.0", False),
        ("brand=tesla", True),
        ("brand=Tesla", True),
        ("brand!=tesla", False),
        ("cuda>=13.0 brand=tesla", True),
        ("cuda>=13.0,brand=tesla", False),
        ("cuda>=13.0 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=550,driver<551", True),
    ],
)
def test_conditions_hold_or_not(text: str, met: bool) -> None:
    assert (unmet((parse(text),), T4) is None) is met


def test_an_unmet_requirement_is_named_with_the_known_facts() -> None:
    told = unmet((parse("cuda>=13.0"),), T4)
    assert told is not None
    assert "cuda>=13.0" in told
    assert "cuda 12.4" in told


def test_an_unknown_fact_meets_no_condition() -> None:
    assert unmet((parse("arch>=1.0"),), {**T4, "arch": ""}) is not None
    assert unmet((parse("driver!=1"),), {**T4, "driver": "of a beta"}) is not None


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except ValueError as error:
        assert str(error)
