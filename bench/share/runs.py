"""Runs loads on a node: one alone without a limit, for its maximum, or a scenario's containers together."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from share import logs, measure
from share.loads import Load
from share.measure import Native, Result
from share.node import Node, NodeError, Started
from share.scenarios import SHARED_MEMORY, Container, Scenario

TAIL = 0.3  # seconds that loads go on after the judged time
PATIENCE = 60  # seconds for containers to get ready
#: Seconds that starting and removing containers takes, about.
AROUND = 2.0
LAWS = ("ours", "none", "tokens")


def run_native(node: Node, load: Load, card: int, seconds: float) -> Native:
    least = max(seconds, 6 * load.kernel_ns / 1e9)
    ((found,), _) = _together(node, Scenario(load.name, (Container(load),), least), card, "none")
    return measure.native(found, least, load.saturates)


def run(node: Node, scenario: Scenario, card: int, natives: Sequence[Native], law: str) -> Result:
    """`law`: ours, the product's limits; tokens, the open peer's in the load itself; none."""
    found, changed = _together(node, scenario, card, law)
    return measure.judge(scenario, found, natives, changed)


def length(scenario: Scenario) -> float:
    """Seconds that it takes, about."""
    return scenario.warm_up + scenario.seconds + TAIL + AROUND


def _together(node: Node, scenario: Scenario, card: int, law: str) -> tuple[list[list[logs.Log]], float]:
    """The logs of each container's processes, and the time of the change (seconds of CLOCK_MONOTONIC).

    NodeError if one does not start, or fails.
    """
    containers, seconds = scenario.containers, scenario.warm_up + scenario.seconds + TAIL
    shared = node.folder / f"logs-{time.monotonic_ns()}"
    shared.mkdir()
    paths = [
        [shared / f"{number}.{process}" for process in range(container.load.processes)]
        for number, container in enumerate(containers)
    ]
    every = [path for group in paths for path in group]
    try:
        started = []
        with contextlib.ExitStack() as stack:
            for number, container in enumerate(containers):
                words = ["/usr/bin/share-load", *container.load.words, f"log=/share/{number}", "go=/share/go"]
                words += [f"seconds={seconds}", *node.calibration]
                if law == "tokens" and container.cores:
                    words += ["law=tokens", f"cap={container.cores}"]
                request = _request(container, law, alone=len(containers) == 1)
                started.append(stack.enter_context(node.start(card, words, request, shared)))
            _wait_for(node, started, every, logs.READY, PATIENCE)
            begin = time.monotonic_ns() + 100_000_000
            (shared / "go.part").write_text(str(begin))
            (shared / "go.part").rename(shared / "go")
            changed = _make_change(node, scenario, started, begin) if law == "ours" else math.inf
            _wait_for(node, started, every, logs.DONE, seconds + PATIENCE)
        return [[logs.read(path) for path in group] for group in paths], changed
    finally:
        shutil.rmtree(shared)


def _make_change(node: Node, scenario: Scenario, started: Sequence[Started], begin: int) -> float:
    """The time from which the change holds; infinite if there is none."""
    if scenario.change is None:
        return math.inf
    node.pause(begin / 1e9 + scenario.warm_up + scenario.change.after - time.monotonic())
    started[scenario.change.place].set_cores(scenario.change.cores)
    return time.monotonic()


def _request(container: Container, law: str, *, alone: bool) -> dict[str, str]:
    """The container's request. It has no cap if the product's caps are not on trial."""
    request = {}
    memory = container.memory or (None if alone else SHARED_MEMORY)
    if memory:
        request["XPU_MEM"] = memory
    if law == "ours" and container.cores is not None:
        request["XPU_CORES"] = str(container.cores)
        if container.sched != "fixed":
            request["XPU_SCHED"] = container.sched
        if container.priority != "normal":
            request["XPU_PRIORITY"] = container.priority
    return request


def _wait_for(
    node: Node, started: Sequence[Started], paths: Sequence[Path], wanted: int, seconds: float
) -> None:
    end = time.monotonic() + seconds
    for polls in itertools.count(1):
        states = [logs.state(path) for path in paths]
        failures = [text or "it ended" for state, text in states if state == logs.FAILED]
        if failures:
            raise NodeError(f"a load failed: {failures[0]}")
        if all(state >= wanted for state, _ in states):
            return
        if polls % 20 == 0:
            # It may have ended before it had a log, or been killed.
            ended = [one for one in started if not one.running()]
            if ended and min(logs.state(path)[0] for path in paths) < wanted:
                raise NodeError(f"a load ended: {ended[0].output().strip() or 'it was killed'}")
        if time.monotonic() > end:
            late = [path.name for path, (state, _) in zip(paths, states, strict=True) if state < wanted]
            raise NodeError(f"loads {', '.join(late)} are late after {seconds:.0f} s")
        node.pause(0.05)
