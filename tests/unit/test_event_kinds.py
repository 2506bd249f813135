"""The kinds of events are written down in several places: each has those that there are."""

from __future__ import annotations

import re

from support import REPOSITORY
from xpu_runtime.agent import journal
from xpu_runtime.cli import events as command
from xpu_runtime.ledger.events import KINDS, POD_RESERVED


def text_of(path: str) -> str:
    return (REPOSITORY / path).read_text()


def found(pattern: str, text: str) -> str:
    """What is between the pattern's brackets; there is one such place."""
    (match,) = re.findall(pattern, text, re.S)
    return str(match)


def listed(text: str) -> list[str]:
    return re.findall("[a-z-]+", text)


def test_the_commands_help_has_all() -> None:
    assert listed(found(r"List what has happened: (.*?)\.", command.events.help or "")) == list(KINDS)


def test_the_metrics_page_has_all() -> None:
    line = found(
        r"\| `xpu_events_total` \|[^\n]*as in `xpu events`: ([^\n]*?) \|\n",
        text_of("docs/reference/metrics.md"),
    )
    assert listed(line) == list(KINDS)


def test_the_page_for_browsers_has_a_mark_for_each_and_a_tone_for_no_other() -> None:
    page = text_of("src/xpu_runtime/agent/page.html")
    assert set(re.findall(r"([\w-]+)\"?: \"", found(r"const MARKS = \{(.*?)\}", page))) == set(KINDS)
    assert set(re.findall(r"([\w-]+)\"?: \"", found(r"const TONES = \{(.*?)\}", page))) < set(KINDS)


def test_on_the_page_what_an_operator_keeps_back_stands_out_and_what_a_pod_gets_does_not() -> None:
    tones = found(r"const TONES = \{(.*?)\}", text_of("src/xpu_runtime/agent/page.html"))
    toned = dict(re.findall(r"([\w-]+)\"?: \"(\w+)\"", tones))
    assert toned["reserved"] == "warn" and POD_RESERVED not in toned


def test_the_operations_page_has_all_but_ends_of_what_it_has_and_the_warnings_of_the_journal() -> None:
    page = text_of("docs/how-to/operate.md")
    told = listed(found(r"xpu events --since 1h +# ([^\n]*?); --follow", page))
    assert set(told) == {kind for kind in KINDS if not kind.startswith(("un", "pod-un"))}
    warnings = found(r"`XPU_CORES`\. ([^.]*) are warnings", page).lower().replace(" and ", " ")
    assert set(listed(warnings)) == set(journal._WARNED_OF)
