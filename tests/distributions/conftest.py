"""Roots of Debian's releases, one for each test: `root("trixie")`. They hold this repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from .root import Root


@pytest.fixture
def root() -> Iterator[Callable[..., Root]]:
    """Enters roots with Root's arguments, and closes them when the test ends."""
    entered: list[Root] = []

    def enter(suite: str, *, packages: Sequence[str] = (), network: bool = True) -> Root:
        entered.append(Root(suite, packages=packages, network=network))
        return entered[-1]

    yield enter
    for each in entered:
        each.close()
