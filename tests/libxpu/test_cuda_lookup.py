"""The CUDA wrapper: which functions it has, and how programs come by them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from headers import name_of

from sim.exports import listed

from .conftest import GIB, Cell
from .cuda_cell import (
    OUT_OF_MEMORY,
    SUCCESS,
    Start,
    exported,
    program,  # noqa: F401  (fixture)
)
from .test_cuda_functions import decided

Make = Callable[..., Cell]

VERSIONS = [2000, 3020, 4000, 7000, 10000, 11020, 11040, 12000, 12050, 13000]


def base(name: str) -> str:
    """The name without version and stream flag."""
    return re.sub(r"(_v\d+)?(_pt[sd]z|_ptds)?$", "", name)


def test_the_wrapper_has_every_variant_of_what_it_sees_and_no_other(wrappers: Path) -> None:
    seen = set(decided()["wrapped"])
    newest = listed("libcuda")["R615"]
    assert exported(wrappers / "libcuda.so.1") == {name for name in newest if name_of(name) in seen}


@pytest.mark.parametrize("topology", ["1xT4-R470", "1xT4-R535", "1xT4-R580"])
def test_what_is_handed_out_by_name_is_the_wrappers_exactly_where_it_has_that_variant(
    cell: Make,
    program: Start,  # noqa: F811
    wrappers: Path,
    topology: str,
) -> None:
    one = cell(1 * GIB, topology=topology)
    (real,) = Path(one.driver_root).glob("usr/lib/*-linux-gnu/libcuda.so.1")
    names, wrapped = exported(real), exported(wrappers / "libcuda.so.1")
    user = program(one, WRAPPED=" ".join(wrapped), EXPORTED=" ".join(names))
    asked = sorted({base(name) for name in names | wrapped} | {"cuNoSuchThing"})
    assert user.handed_out(asked, VERSIONS, [0, 1, 2]) == []


def test_the_newer_look_up_works_where_the_driver_has_only_the_older(
    cell: Make,
    program: Start,  # noqa: F811
) -> None:
    one = cell(1 * GIB, topology="1xT4-R470")
    user = program(one, "lookup")
    assert user.start() == SUCCESS
    assert user.alloc(1 * GIB)[0] == SUCCESS
    assert user.alloc(1)[0] == OUT_OF_MEMORY
