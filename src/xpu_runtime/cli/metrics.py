"""`xpu metrics`: the node's figures for Prometheus, once. How they are read and written is observe/'s."""

from __future__ import annotations

import click

from xpu_runtime import textfile
from xpu_runtime.errors import XpuError
from xpu_runtime.linux import files
from xpu_runtime.observe import driver_questions
from xpu_runtime.observe.node_metrics import NodeMetrics

#: Seconds over which containers' use is measured, because each command is the first reading; and the longest
#: time until there are figures.
_INTERVAL_S, _LONGEST_S = 1.0, 20.0


@click.command(short_help="Print this node's metrics in Prometheus' text format.")
@click.option(
    "--output",
    metavar="FILE",
    help="Write FILE, in one step, for node_exporter's textfile collector: name it *.prom.",
)
def metrics(output: str | None) -> None:
    """Print the metrics of this node's devices, slices and events, in Prometheus' text format.

    It takes a second, because it measures the containers' shares. `xpu agent` serves the same on a
    socket and, if the configuration says so, on a port of this machine. If devices and slices cannot be
    read, it prints xpu_up 0 and the ledger's counts. Exit status: 0 devices and slices were read, 1 they
    were not.

    \b
    Example:
      xpu metrics
      xpu metrics --output /var/lib/prometheus/node-exporter/xpu.prom
      curl --unix-socket /run/xpu/metrics.sock http://localhost/metrics
    """
    path = textfile.replaceable(output) if output is not None else None
    metrics = NodeMetrics(_INTERVAL_S)
    answer = driver_questions.one(lambda: (metrics.text(), metrics.problems, metrics.error), _LONGEST_S)
    if answer.values:
        text, problems, error = answer.values[0]
    else:
        error = XpuError(answer.error, answer.todo)
        text, problems = metrics.text_without(error), metrics.problems
    if path is None:
        click.echo(text, nl=False)
    else:
        files.write_atomic(path, text, 0o644)
    for problem in problems:
        click.echo(f"xpu: {problem}", err=True)
    if error is not None:
        raise error
