"""docs/reference/kubernetes.md: labels and events, and the times and ports in its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from xpu_runtime.kubernetes.device_plugin import reports
from xpu_runtime.kubernetes.device_plugin.node import LABEL
from xpu_runtime.kubernetes.extender import binding, groups, informer, leader_election, preemption

from .markdown import items
from .source import SOURCES, described

_TEMPLATES = SOURCES.parents[1] / "packaging/kubernetes/chart/templates"
_TIMES = {
    "hold": groups.HOLD_S,
    "lease": leader_election.Times().lease,
    "bind": binding.BIND_S,
    "blind": informer.BLIND_S,
    "preemption": preemption.MOST_S,
    "refresh": reports.REFRESH_S,
}


def labels() -> str:
    """The labels of a node, with their writers."""
    written = [
        ("you", "", described("kubernetes/node_setup/keeper.py", "THEIRS")),
        ("`xpu-node`", "", described("kubernetes/node_setup/keeper.py", "WRITTEN")),
        ("the device plugin", LABEL, described("kubernetes/device_plugin/node.py", "LABELS")),
    ]
    return items(
        (f"**`{prefix}{name}`** (by {writer})", text)
        for writer, prefix, found in written
        for name, text in found
    )


def events() -> str:
    """The device plugin's events on pods."""
    found = described("kubernetes/device_plugin/pod.py", "REASONS")
    return items((f"**`{reason}`**", text) for reason, text in found)


def _time(name: str) -> str:
    return f"{_TIMES[name]:g} s"


def _port(of: str) -> str:
    """The port of the metrics in the manifest of this name."""
    text = (_TEMPLATES / f"{of}.yaml").read_text(encoding="utf-8")
    (found,) = re.findall(r"name: metrics, containerPort: (\d+)", text)
    return str(found)


IN_TEXT: dict[str, Callable[[], str]] = {
    **{f"seconds-of-{name}": partial(_time, name) for name in _TIMES},
    **{f"port-of-{name}": partial(_port, name) for name in ("node", "extender")},
}
