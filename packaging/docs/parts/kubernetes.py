"""docs/reference/kubernetes.md: labels, events and ports."""

from __future__ import annotations

import re

from xpu_runtime.kubernetes.device_plugin.node import LABEL

from .markdown import items
from .source import SOURCES, described

_TEMPLATES = SOURCES.parents[1] / "packaging/kubernetes/chart/templates"


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


def port(of: str) -> str:
    """The port of the metrics in the manifest of this name."""
    text = (_TEMPLATES / f"{of}.yaml").read_text(encoding="utf-8")
    (found,) = re.findall(r"name: metrics, containerPort: (\d+)", text)
    return str(found)
