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

from . import calls, cuda_sandbox, nvml_sandbox
from .sandboxes import Sandbox, build, uuids


@pytest.fixture(scope="session")
def interposers() -> Path:
    return build()


@pytest.fixture
def sandbox(
    up: Callable[..., SimState],
    interposers: Path,
    tmp_path: Path,
) -> Iterator[Callable[..., Sandbox]]:
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

    yield make


@pytest.fixture(params=cuda_sandbox.WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How programs find CUDA's functions."""
    return str(request.param)


@pytest.fixture(params=calls.WAYS)
def any_way(request: pytest.FixtureRequest) -> str:
    """How programs find CUDA's functions, those for a default stream of each thread among them."""
    return str(request.param)


class Started:
    """The programs of one test. Each runs in a given sandbox, or in a new one with the given limits."""

    def __init__(self, sandbox: Callable[..., Sandbox]) -> None:
        self._sandbox = sandbox
        self._processes: list[Process] = []

    def place(self, where: tuple[Any, ...], options: dict[str, Any]) -> Sandbox:
        """`where` is a sandbox, or the limits of a new one. A new one takes its options out of `options`."""
        if isinstance(where[0], Sandbox):
            found: Sandbox
            (found,) = where
            return found
        new = {name: options.pop(name) for name in ("topology", "libraries") if name in options}
        return self._sandbox(*where, **new)

    def keep(self, process: Process) -> None:
        self._processes.append(process)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.popen.communicate()


@pytest.fixture
def started(sandbox: Callable[..., Sandbox]) -> Iterator[Started]:
    found = Started(sandbox)
    yield found
    found.end()


@pytest.fixture
def program(started: Started) -> cuda_sandbox.Start:
    """`program(GIB)` starts a program in a new sandbox with that limit, `program(sandbox)` in a given one."""

    def start(*where: Any, **options: Any) -> cuda_sandbox.Program:
        one = cuda_sandbox.Program(started.place(where, options), **options)
        started.keep(one)
        return one

    return start


@pytest.fixture
def caller(started: Started) -> calls.Start:
    """The same for a program of calls_program.py. It has a context of `device`, unless that is None."""

    def start(*where: Any, device: int | None = 0, **options: Any) -> calls.Program:
        one = calls.Program(started.place(where, options), **options)
        started.keep(one)
        if device is not None:
            assert one.start(device) == calls.SUCCESS
        return one

    return start


@pytest.fixture
def worker(started: Started) -> Callable[..., Process]:
    """`worker(sandbox)` starts the worker of the simulator's tests; `before`: a command that runs it."""

    def start(sandbox: Sandbox, *before: str) -> Process:
        one = nvml_sandbox.interposed(sandbox, *before)
        started.keep(one)
        return one

    return start
