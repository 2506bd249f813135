"""How tests are spread over pytest-xdist's workers, if a run has some (`make test`: pytest -n 2).

A worker gets all tests of a file, or of a folder whose tests share engines or a machine. Tests of different
files run at the same time, so a test must look only at its own things. A test that measures time, or changes
something that the machine has only once, is marked `alone`: no other worker's test runs meanwhile. Without
workers this module changes nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from typing import Any

import pytest

from . import REPOSITORY

#: Each of these folders is one worker's.
FOLDERS = (
    "tests/integration/engines",
    "tests/integration/launcher",
    "tests/kubernetes",
    "tests/machine",
)
#: In this folder, all tests whose parameters begin with one of these releases are one worker's.
RELEASES = "tests/distributions/"
NAMES = ("bullseye", "bookworm", "trixie", "forky")
#: The slowest tests begin first, so that no worker is left with one in the end.
FIRST: tuple[str, ...] = (
    "tests/distributions",
    "tests/machine",
    "tests/integration/engines",
    "tests/packages",
    # Not earlier: `make test` builds its programs at the same time.
    "tests/kubernetes",
)
LOCKS = REPOSITORY / "build" / "tests"


def scope_of(nodeid: str) -> str:
    """The file, folder, or release whose tests one worker gets together."""
    file, _, parameters = nodeid.partition("[")
    file = file.split("::", 1)[0]
    release = parameters.rstrip("]").split("-")[0]
    if file.startswith(RELEASES) and release in NAMES:
        return RELEASES + release
    return next((folder for folder in FOLDERS if file.startswith(f"{folder}/")), file)


def _rank(nodeid: str) -> int:
    return next((at for at, start in enumerate(FIRST) if nodeid.startswith(start)), len(FIRST))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: no test of another worker may run at the same time")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "load":
        return None  # the caller has chosen another way
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    # xdist would begin with the files that have the most tests.
    config.option.loadscopereorder = False
    return Scheduler(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the tests; every worker must come to the same order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Holds a lock while a test runs with its fixtures: a shared one, or an exclusive one for `alone`.

    This is around pytest-timeout's hook, so that the wait does not count as the test's own time.
    """
    if not hasattr(item.config, "workerinput"):
        return (yield)
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    running = _open("running")
    try:
        # The one that waits for the lock keeps later ones out; otherwise a test marked `alone` would wait for
        # the end of all others.
        entry = _open("entry")
        fcntl.flock(entry, fcntl.LOCK_EX)
        fcntl.flock(running, kind)
        _close(entry)
        return (yield)
    finally:
        _close(running)


def _open(name: str) -> int:
    LOCKS.mkdir(parents=True, exist_ok=True)
    return os.open(LOCKS / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _close(lock: int) -> None:
    # A forked process of the test may still have the descriptor, so closing ours would not release the lock.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
