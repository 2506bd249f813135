"""config/config.yaml, the schema and the Config class say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.config.compile import default_file, load_schema, read_config, schema_file, setting_names
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.request.units import parse_memory


def test_the_default_file_sets_every_attribute_to_its_default() -> None:
    config, lines, problems = read_config(default_file())
    assert problems == []
    assert config == DEFAULTS
    assert list(lines) == list(Config().as_dict())


def test_the_schema_has_the_attributes_of_config_and_no_others() -> None:
    assert list(setting_names()) == list(Config().as_dict())


def test_the_schema_is_a_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(Path(schema_file()).read_text()))


@pytest.mark.parametrize("key", sorted(setting_names().values()))
def test_every_key_of_the_default_file_has_a_comment_right_above_it(key: str) -> None:
    lines = Path(default_file()).read_text().splitlines()
    *section, name = key.split(".")
    start = lines.index(f"{section[0]}:") + 1 if section else 0
    place = next(i for i, line in enumerate(lines) if i >= start and line.strip().startswith(f"{name}:"))
    assert lines[place - 1].strip().startswith("#")


def _leaves(schema: dict[str, Any]) -> list[dict[str, Any]]:
    below = [leaf for inner in schema.get("properties", {}).values() for leaf in _leaves(inner)]
    return below or [schema]


def test_every_value_in_the_schema_says_what_is_allowed_and_what_it_is_for() -> None:
    for leaf in _leaves(load_schema()):
        assert leaf["x-allowed"] and leaf["description"]


@given(st.from_regex(load_schema()["properties"]["policy"]["properties"]["max_memory"]["pattern"]))
def test_every_amount_that_the_schema_accepts_is_one_that_requests_can_be_measured_by(text: str) -> None:
    assert parse_memory(text).on(1 << 34) > 0
