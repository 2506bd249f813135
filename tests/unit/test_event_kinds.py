"""The page for browsers draws each kind of event, and no other."""

from __future__ import annotations

import re

from support import REPOSITORY
from xpu_runtime.ledger.events import POD_RESERVED
from xpu_runtime.ledger.vocabulary import KINDS


def text_of(path: str) -> str:
    return (REPOSITORY / path).read_text()


def found(pattern: str, text: str) -> str:
    """The text between the pattern's brackets; there is one such place."""
    (match,) = re.findall(pattern, text, re.S)
    return str(match)


def test_the_page_for_browsers_has_a_mark_for_each_and_a_tone_for_no_other() -> None:
    page = text_of("src/xpu_runtime/agent/page.html")
    assert set(re.findall(r"([\w-]+)\"?: \"", found(r"const MARKS = \{(.*?)\}", page))) == set(KINDS)
    assert set(re.findall(r"([\w-]+)\"?: \"", found(r"const TONES = \{(.*?)\}", page))) < set(KINDS)


def test_the_page_highlights_an_operators_marks_and_not_pods_reservations() -> None:
    tones = found(r"const TONES = \{(.*?)\}", text_of("src/xpu_runtime/agent/page.html"))
    toned = dict(re.findall(r"([\w-]+)\"?: \"(\w+)\"", tones))
    assert toned["reserved"] == "warn" and POD_RESERVED not in toned
