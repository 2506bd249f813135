"""The CUDA interposer: its functions, and how programs find them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import GIB
from support.exports import exported

from ..calls import OUT_OF_MEMORY, SUCCESS, Start
from ..sandboxes import Make

VERSIONS = [2000, 3020, 4000, 7000, 10000, 11020, 11040, 12000, 12050, 13000]


def base(name: str) -> str:
    """The name without version and stream flag."""
    return re.sub(r"(_v\d+)?(_pt[sd]z|_ptds)?$", "", name)


@pytest.mark.parametrize("topology", ["1xT4-R470", "1xT4-R535", "1xT4-R580"])
def test_a_look_up_by_name_finds_the_interposers_variant_where_it_has_one(
    sandbox: Make, caller: Start, interposers: Path, topology: str
) -> None:
    one = sandbox(1 * GIB, topology=topology)
    names, interposed = exported(one.driver / "libcuda.so.1"), exported(interposers / "libcuda.so.1")
    user = caller(one, INTERPOSED=" ".join(interposed), EXPORTED=" ".join(names), device=None)
    asked = sorted({base(name) for name in names | interposed} | {"cuNoSuchThing"})
    assert user.handed_out(asked, VERSIONS, [0, 1, 2]) == []


def test_the_newer_look_up_works_where_the_driver_has_only_the_older(caller: Start) -> None:
    user = caller(1 * GIB, topology="1xT4-R470", way="lookup")
    assert user.alloc(1 * GIB)[0] == SUCCESS
    assert user.alloc(1)[0] == OUT_OF_MEMORY
