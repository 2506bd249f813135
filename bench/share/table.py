"""The results as a table for docs/reference/compute-figures.md, and as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from share.measure import Native, Outcome, Result
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
    "given back",
)

#: The caps at which a summary gives the times of launches.
_P99_CAPS = (100, 50)


def duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def _row(fields: Sequence[str]) -> str:
    return "| " + " | ".join(fields) + " |"


def markdown(judged: Sequence[tuple[Scenario, Result]], command: str, said: str) -> str:
    """A row for each container. `said`: the machine and card that it was measured on."""
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
            fields += [duration(one.p99_ns), _given_back(result.outcomes[number : number + 1])]
            lines.append(_row(fields))
    return "\n".join(lines) + "\n"


def summary(
    judged: Sequence[tuple[Scenario, Result]], natives: Mapping[str, Native], command: str, said: str
) -> str:
    """For a page: loads alone by caps, their shares, the worst window, and the time within which 99 of 100
    launch calls returned; then scenarios of several. `natives`: the same loads without a limit."""
    alone: dict[str, dict[int, Outcome]] = {}
    together = []
    for scenario, result in judged:
        container = scenario.containers[0]
        if len(scenario.containers) == 1 and container.sched == "fixed" and container.cores is not None:
            alone.setdefault(container.load.name, {})[container.cores] = result.outcomes[0]
        else:
            together.append((scenario, result))
    lines = [f"`{command}`, on {said}.", ""]
    if alone:
        caps = sorted({cap for outcomes in alone.values() for cap in outcomes})
        lines += [
            "Each load alone, at each cap: got / due if that is less, in percent of the card. In brackets:",
            "the error of the worst window in points.",
            "",
            _row(["load", *(f"{cap} %" for cap in caps)]),
            _row(["---"] + ["---:"] * len(caps)),
        ]
        for name, outcomes in alone.items():
            lines.append(_row([name, *(_cell(outcomes[cap]) if cap in outcomes else "" for cap in caps)]))
        lines += [
            "",
            "The mean error, and the p99 of launching calls: without a limit, and at two caps. Under a cap",
            "they also wait for budget.",
            "",
            _row(["load", "mean error", "p99 without a limit", *(f"p99 at {cap} %" for cap in _P99_CAPS)]),
            _row(["---"] + ["---:"] * (len(_P99_CAPS) + 2)),
        ]
        for name, outcomes in alone.items():
            mean = sum(one.mean_error for one in outcomes.values()) / len(outcomes)
            p99s = [duration(outcomes[cap].p99_ns) if cap in outcomes else "" for cap in _P99_CAPS]
            lines.append(_row([name, f"{mean:.2f}", duration(natives[name].p99_ns), *p99s]))
        lines.append("")
    if together:
        lines += [
            "Several loads, in their order:",
            "",
            _row(["scenario", "due %", "got %", "mean error", "worst", "idle %", "Jain", "given back"]),
            _row(["---"] + ["---:"] * 7),
        ]
        for scenario, result in together:
            many = [
                "/".join(f"{getattr(one, name):.{digits}f}" for one in result.outcomes)
                for name, digits in (("expected", 0), ("got", 1), ("mean_error", 1), ("worst", 1))
            ]
            late = _given_back(result.outcomes)
            lines.append(_row([scenario.name, *many, f"{result.idle:.1f}", f"{result.jain:.3f}", late]))
    return "\n".join(lines) + "\n"


def _given_back(outcomes: Sequence[Outcome]) -> str:
    times = [one.given_back for one in outcomes if one.given_back is not None]
    return f"{max(times) * 1000:.0f} ms" if times else ""


def _cell(one: Outcome) -> str:
    less = one.asked is not None and one.expected < one.asked - 0.5
    due = f"/{one.expected:.1f}" if less else ""
    return f"{one.got:.1f}{due} ({one.worst:.1f})"


def put_into(page: str, name: str, text: str) -> str:
    """The page with the text between its two comments `share: NAME` and `end of share: NAME`.

    ValueError if it has none.
    """
    begin, end = f"<!-- share: {name} -->\n", f"<!-- end of share: {name} -->\n"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no lines {begin.strip()} and {end.strip()}")
    return f"{before}{begin}\n{text}\n{end}{after}"


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
