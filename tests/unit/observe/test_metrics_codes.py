"""The codes by which refused containers are counted are those that there are."""

from __future__ import annotations

import re

from support import REPOSITORY
from xpu_runtime.observe.exposition import CODES


def test_each_code_is_counted_from_the_start_but_that_of_a_change() -> None:
    source = (REPOSITORY / "src/xpu_runtime/ledger/refusal.py").read_text()
    codes = re.findall(r'^ +"([a-z-]+)",', source.partition("Code = Literal[")[2].partition("]")[0], re.M)
    assert set(CODES) | {"below-use"} == set(codes)  # xpu set alone refuses so, which is no event
