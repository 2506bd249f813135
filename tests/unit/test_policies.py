"""How time is shared has words in requests, the configuration and the pages, and numbers in the agent: they
are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support import REPOSITORY
from xpu_runtime.agent import policy
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.limits import pages
from xpu_runtime.request import request


def schema_of(key: str) -> Any:
    schema = json.loads((REPOSITORY / "config/config.schema.json").read_text())
    return schema["properties"]["cores"]["properties"][key]


def test_the_agents_numbers_are_the_places_of_the_pages_words() -> None:
    scheds = {"fixed": policy.FIXED, "burst": policy.BURST, "weight": policy.WEIGHT}
    assert scheds == {word: number for number, word in enumerate(pages.SCHEDS)}
    priorities = {"normal": policy.NORMAL, "low": policy.LOW, "high": policy.HIGH}
    assert priorities == {word: number for number, word in enumerate(pages.PRIORITIES)}


def test_requests_and_the_configuration_use_the_words_of_the_page() -> None:
    assert set(request.SCHEDS) == set(schema_of("sched")["enum"]) == set(pages.SCHEDS)
    assert set(request.PRIORITIES) == set(schema_of("priority")["enum"]) == set(pages.PRIORITIES)


def test_a_slice_that_asks_for_nothing_needs_no_agent() -> None:
    assert (DEFAULTS.cores_sched, DEFAULTS.cores_priority) == (pages.SCHEDS[0], pages.PRIORITIES[0])
    assert not pages.needs_agent(DEFAULTS.cores_sched, DEFAULTS.cores_priority)
    assert not pages.needs_agent(None, None)


@pytest.mark.parametrize(
    ("sched", "priority"), [("burst", "normal"), ("weight", None), ("fixed", "low"), (None, "high")]
)
def test_other_policies_need_the_agent(sched: str | None, priority: str | None) -> None:
    assert pages.needs_agent(sched, priority)
