"""Accounts for the tests of this folder; see accounts.py."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import GIB

from .accounts import Account, Place


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """The folder of this session's accounts."""
    folder = Path(tempfile.mkdtemp(prefix="xpu-account-"))
    folder.chmod(0o755)
    yield Place(folder)
    shutil.rmtree(folder)


@pytest.fixture
def account(place: Place) -> Iterator[Callable[..., Account]]:
    """`account(GIB)` has one device with that limit."""
    made = Account(place)

    def make(*limits: int | None, slots: int = 64, cores: int | None = None) -> Account:
        made.make(*(limits or (GIB,)), slots=slots, cores=cores)
        return made

    yield make
    for process in made.processes:
        process.close()
