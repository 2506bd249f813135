"""The two light stand-ins for the standard library: values and JSON behave as the originals."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime import jsonlite
from xpu_runtime.value import Value

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(documents)
def test_json_is_read_and_written_as_the_json_package_does(document: Any) -> None:
    assert jsonlite.loads(json.dumps(document)) == document
    assert json.loads(jsonlite.dumps(document)) == document


@given(st.text())
def test_texts_that_pythons_json_refuses_are_refused(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    except (ValueError, pytest.fail.Exception):
        with pytest.raises(ValueError, match=r"."):
            jsonlite.loads(text)
    else:
        assert jsonlite.loads(text) == expected


@pytest.mark.parametrize(
    "text", ["", "{", "[1] x", "NaN", "[" * 100_000, '{"a":Infinity}', "['a']", "\ufeff{}"]
)
def test_malformed_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        jsonlite.loads(text)


def test_a_value_without_a_json_form_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        jsonlite.dumps(math.nan)
    with pytest.raises(TypeError, match="no JSON form"):
        jsonlite.dumps(object())


class Point(Value):
    x: int
    y: int = 2


class Named(Point):
    name: str = ""


def test_values_are_made_by_position_and_by_name_with_defaults() -> None:
    assert Point(1) == Point(x=1, y=2)
    assert Named(1, 3, "n").as_dict() == {"x": 1, "y": 3, "name": "n"}
    assert repr(Point(1)) == "Point(x=1, y=2)"
    assert len({Point(1), Point(1), Point(2)}) == 2
    assert Point(1) != Named(1)


def test_values_do_not_change() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Point(1).x = 3  # type: ignore[misc]
    assert Point(1).replace(y=5) == Point(1, 5)
    with pytest.raises(TypeError, match="Point has no field 'z'"):
        Point(1).replace(z=5)


@pytest.mark.parametrize("arguments", [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})])
def test_wrong_arguments_are_type_errors(arguments: tuple[tuple[int, ...], dict[str, int]]) -> None:
    positional, named = arguments
    with pytest.raises(TypeError, match="Point"):
        Point(*positional, **named)
