"""Each code of a refusal has its meaning."""

from __future__ import annotations

from typing import get_args

from xpu_runtime.ledger.vocabulary import CODES, Code


def test_each_code_has_a_meaning() -> None:
    assert list(CODES) == list(get_args(Code))
