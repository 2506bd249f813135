"""The results as a table for docs/compute.md, and as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from share.measure import Native, Result
from share.scenarios import Scenario

_HEAD = (
    "scenario",
    "container",
    "due %",
    "got %",
    "mean error",
    "worst",
    "of due %",
    "idle %",
    "Jain",
    "p99 launch",
    "behind",
)


def duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def _row(fields: Sequence[str]) -> str:
    return "| " + " | ".join(fields) + " |"


def markdown(judged: Sequence[tuple[Scenario, Result]], command: str, said: str) -> str:
    """A row a container. `said`: on what it was measured."""
    lines = [
        f"Made by `{command}` on {said}.",
        "",
        _row(_HEAD),
        _row(["---"] * 2 + ["---:"] * (len(_HEAD) - 2)),
    ]
    for scenario, result in judged:
        for number, (container, one) in enumerate(zip(scenario.containers, result.outcomes, strict=True)):
            own = [scenario.name, f"{result.idle:.1f}", f"{result.jain:.3f}"] if number == 0 else [""] * 3
            fields = [
                own[0],
                container.name,
                f"{one.expected:.1f}",
                f"{one.got:.1f}",
                f"{one.mean_error:.2f}",
            ]
            worst = f"{one.worst:.2f}" + (f" ({one.window:.0f} s)" if one.window > 2.5 else "")
            fields += [worst, f"{one.throughput:.1f}", own[1], own[2]]
            fields += [duration(one.p99_ns), duration(one.behind * 1e9) if len(result.outcomes) > 1 else ""]
            lines.append(_row(fields))
    return "\n".join(lines) + "\n"


def document(
    judged: Sequence[tuple[Scenario, Result]], natives: Mapping[str, Native], command: str, said: str
) -> str:
    """JSON: shares in percent of the card, errors in points, times in seconds or as their name says."""
    scenarios = []
    for scenario, result in judged:
        containers = []
        for container, one in zip(scenario.containers, result.outcomes, strict=True):
            containers.append(
                {
                    "load": container.load.name,
                    "cores": container.cores,
                    "sched": container.sched,
                    "priority": container.priority,
                    "memory": container.memory,
                    **asdict(one),
                }
            )
        found = {"name": scenario.name, "seconds": scenario.seconds, "idle": result.idle, "jain": result.jain}
        scenarios.append({**found, "containers": containers})
    alone = {name: {**asdict(one), "demand": one.demand} for name, one in natives.items()}
    return (
        json.dumps({"command": command, "on": said, "native": alone, "scenarios": scenarios}, indent=1) + "\n"
    )
