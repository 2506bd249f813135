"""Sandboxes and the programs in them. They end with the test.

A sandbox (packaging/sandbox.py) shows a program what a container with a slice shows it, without an engine.
Programs in one sandbox share its account. tests/integration has the same in real containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.simulation import Process, build_sanitized
from xpu_runtime.limits import pages
from xpu_simulator.simulator import SimState

from . import calls, nvml_sandbox
from .sandboxes import Make, Sandbox, build, uuids


@pytest.fixture(scope="session")
def interposers() -> Path:
    return build()


@pytest.fixture
def sandbox(
    up: Callable[..., SimState],
    interposers: Path,
    tmp_path: Path,
) -> Make:
    """`sandbox(4 * GIB)` is a sandbox with that limit on each device of the topology. None: no limit.

    `sanitized`: the driver is built with these sanitizers."""
    made = 0

    def make(
        *limits: int | None,
        topology: str = "1xT4-R580",
        libraries: Path | None = None,
        sanitized: str = "",
    ) -> Sandbox:
        nonlocal made
        state = up(topology, **({"native": str(build_sanitized(sanitized))} if sanitized else {}))
        cards = uuids(state.root, sanitized)
        folder = tmp_path / f"pages{made}"
        made += 1
        folder.mkdir()
        wanted = limits or (None,)
        entries = tuple(
            pages.Entry(uuid, wanted[min(at, len(wanted) - 1)], uuid.startswith("MIG-"))
            for at, uuid in enumerate(cards)
        )
        pages.create(str(folder), "a-sandbox", entries)
        return Sandbox(folder, state.root, libraries or interposers)

    return make


@pytest.fixture(params=calls.WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How programs find CUDA's functions."""
    return str(request.param)


@pytest.fixture(params=calls.ALL_WAYS)
def any_way(request: pytest.FixtureRequest) -> str:
    """How programs find CUDA's functions, those for a default stream of each thread among them."""
    return str(request.param)


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """The programs of the test, which end with it."""
    found: list[Process] = []
    yield found
    for process in found:
        process.kill()
        process.popen.communicate()


@pytest.fixture
def caller(sandbox: Make, started: list[Process]) -> calls.Start:
    """`caller(GIB)` starts a program in a new sandbox with that limit, `caller(sandbox)` in a given one. It
    has a context of `device`, unless that is None."""

    def start(*where: Any, device: int | None = 0, **options: Any) -> calls.Program:
        of_sandbox = {name: options.pop(name) for name in ("topology", "libraries") if name in options}
        one = where[0] if isinstance(where[0], Sandbox) else sandbox(*where, **of_sandbox)
        program = calls.Program(one, **options)
        started.append(program)
        if device is not None:
            assert program.start(device) == calls.SUCCESS
        return program

    return start


@pytest.fixture
def worker(started: list[Process]) -> Callable[..., Process]:
    """`worker(sandbox)` starts the worker of the simulator's tests; `before`: a command that runs it."""

    def start(sandbox: Sandbox, *before: str) -> Process:
        started.append(nvml_sandbox.interposed(sandbox, *before))
        return started[-1]

    return start
