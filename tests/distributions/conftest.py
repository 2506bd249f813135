"""Roots of Debian's releases, each for one test: `root("trixie")`, and this repository in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from .root import Root


@pytest.fixture
def root() -> Iterator[Callable[..., Root]]:
    """Enters roots, and closes them when the test ends; arguments as Root's."""
    entered: list[Root] = []

    def enter(suite: str, *, packages: Sequence[str] = (), network: bool = True) -> Root:
        entered.append(Root(suite, packages=packages, network=network))
        return entered[-1]

    yield enter
    for each in entered:
        each.close()
