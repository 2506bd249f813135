"""The questions to the agent's processes: the served figures, and the driver's samples.

The askers bound their time: metrics_service.py and comparison.py.
"""

from __future__ import annotations

from collections.abc import Callable

from xpu_runtime.agent.history import SAMPLE
from xpu_runtime.agent.metrics_service import DATA, FIGURES
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.observe.samples import Utilization
from xpu_runtime.vendors import discovery, registry

#: Seconds until the ledger's figures are given up too; the client waits for them besides.
_UNREAD_S = 2.0
_NOTHING = b"# TYPE xpu_up gauge\nxpu_up 0.0\n# TYPE xpu_agent_up gauge\nxpu_agent_up 1.0\n"


def answers_of(log: Callable[[str], None]) -> Callable[[bytes], bytes]:
    """Makes a page or a sample for a question; `log` takes the problems."""
    # Heavy, and needed only once somebody asks.
    from xpu_runtime.observe.node_metrics import NodeMetrics, served
    from xpu_runtime.observe.overview import Overview

    metrics = NodeMetrics()
    shown = Overview(metrics)
    answers = {FIGURES: served(metrics, log), DATA: shown.data, SAMPLE: shown.sample}
    return lambda question: answers[question]()


def metrics_without_driver(why: str) -> bytes:
    """The ledger's counts. Made in a process of its own: it needs modules that the serving process lacks."""
    from xpu_runtime.linux import deadline  # only ever where a driver hangs

    def text() -> bytes:
        from xpu_runtime.observe.node_metrics import NodeMetrics

        return NodeMetrics().text_without(XpuError(why))

    answer = deadline.one(text, _UNREAD_S)
    return answer.values[0] if answer.values else _NOTHING


def open_driver(log: Callable[[str], None]) -> Callable[[], Utilization]:
    """The driver's samples; `log` takes the names of containers without any."""
    return registry.utilization(
        discovery.load(load()),
        tell=lambda why: log(f"the driver's samples do not check what some containers report: {why}"),
    )
