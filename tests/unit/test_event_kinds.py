"""The page for browsers draws each kind of event, and no other."""

from __future__ import annotations

import re

from support import REPOSITORY
from xpu_runtime.ledger.events import POD_RESERVED
from xpu_runtime.ledger.vocabulary import KINDS


def named(constant: str) -> dict[str, str]:
    """The names and values of a constant of the page."""
    page = (REPOSITORY / "src/xpu_runtime/agent/page.html").read_text()
    (inside,) = re.findall(rf"const {constant} = \{{(.*?)\}}", page, re.S)
    return dict(re.findall(r"([\w-]+)\"?: \"([^\"]+)\"", inside))


def test_the_page_for_browsers_has_a_mark_for_each_and_a_tone_for_no_other() -> None:
    tones = named("TONES")
    assert set(named("MARKS")) == set(KINDS) > set(tones)
    # An operator's marks stand out, pods' reservations do not.
    assert tones["reserved"] == "warn" and POD_RESERVED not in tones
