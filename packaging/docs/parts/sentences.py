"""Sentences of pages that have a value of the code, so that lint compares them with it. They have no marks.

A value stands as `{path.of.the.constant}` below xpu_runtime; after a colon comes its unit, if it is another
than the code's.
"""

from __future__ import annotations

import pkgutil
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[3]
_UNITS = {"": 1, "ms": 1_000_000, "minutes": 60, "MiB": 1 << 20}
_PLUGIN, _EXTENDER, _OVERVIEW = "kubernetes.device_plugin", "kubernetes.extender", "observe.overview"
SENTENCES = {
    "docs/concepts/agent.md": (
        "{agent.demand.HOLD_NS:ms} ms after the last sign",
        "At {agent.crosscheck.TOLERANCE_S} s of the device's time",
        "After {agent.crosscheck._PROBATION_S} s without debt",
        "has {agent.crosscheck.TOLERANCE_S} s of the device's time anew",
        "starts it again after {agent.side_process.AGAIN_S} s",
        "(`{observe.agent_status.LOCK}` in the run folder)",
    ),
    "docs/concepts/limits.md": (
        "memory from {limits.unaccounted.ALLOWANCE:MiB} MiB a process",
        "from {limits.unaccounted_time.ALLOWANCE} % of the card",
        "| memory, NVIDIA R{limits.backends.library._OLDEST_DRIVER} or newer |",
    ),
    "docs/concepts/security.md": (
        "at most {agent.command_service._COMMAND_S} seconds, and {agent.command_service._MOST} run at a time",
    ),
    "docs/how-to/install.md": ("NVIDIA R{limits.backends.library._OLDEST_DRIVER} or newer",),
    "docs/how-to/operate.md": ("(`xpu ps` after {observe.driver_questions._DRIVER_S} s)",),
    "docs/kubernetes.md": (
        f"and after {{{_EXTENDER}.groups.HOLD_S}} s",
        f"{{{_EXTENDER}.groups.AGAIN_S}} s after the last question about its group",
        f"after {{{_EXTENDER}.groups.VAIN_S}} s where Coscheduling's tries",
        f"more than {{{_EXTENDER}.service._LONGEST_BODY:MiB}} MiB",
        "At most {kubernetes.resources.MOST_CONTAINERS} containers of a pod may ask",
        "after {kubernetes.node_setup.keeper._REPLACED_S} s, unless the next pod has installed it",
    ),
    "docs/reference/commands.md": ("its first {observe.containers.SHORTEST_START} characters",),
    "docs/reference/errors.md": (
        "| {cli.main._OneLine.exit_code} | all | an error",
        "| {cli.main.click.UsageError.exit_code} | `xpu` | the command line is wrong",
        "| {ledger.vocabulary.Meaning.exit_status} | `xpu explain`, `xpu set` | refused",
        "waited {limits.resize._WAIT_S} s for the first",
        "Our file beside `config.toml`, `{engines.containerd.reader.DROP_IN}`,",
        "(cores: only of NVIDIA's devices, from R{limits.backends.library._OLDEST_DRIVER} on)",
    ),
    "docs/reference/events.md": ("the last {ledger.events.MOST} are kept",),
    "docs/reference/kubernetes.md": (
        f"after {{{_EXTENDER}.groups.HOLD_S}} s at the latest",
        f"the other leads after up to {{{_EXTENDER}.leader_election.Times.lease}} s",
        f"A bind waits for {{{_EXTENDER}.binding.BIND_S}} s;",
        f"does not see the cluster's changes for {{{_EXTENDER}.informer.BLIND_S}} s",
        f"looks for these pods for {{{_EXTENDER}.preemption.MOST_S}} s",
        f"writes its own again within {{{_PLUGIN}.reports.REFRESH_S}} s",
    ),
    "docs/reference/metrics.md": (
        "until nobody has asked for {agent.collector._IDLE_S:minutes} minutes",
        "within {agent.collector.Collector.longest_s} seconds",
        "`{agent.metrics_service.SOCKET}` in the run folder",
        "to {agent.metrics_service._MOST_CLIENTS} clients at a time",
        "each with {http_server.Listener.request_s} seconds for its request",
        f"the latest {{{_OVERVIEW}._MOST_EVENTS}} events and {{{_OVERVIEW}._MOST_EVENTS}} refusals",
        "a sample each {agent.history._EVERY_S} seconds for {agent.history._KEPT_S:minutes} minutes, in"
        " {agent.history._MOST_BYTES:MiB} MiB at most",
        f"{{{_OVERVIEW}._MOST_DEVICES}} devices and {{{_OVERVIEW}._MOST_SLICES}} slices at most",
        "is replaced: after {agent.collector._OLDEST_S:minutes} minutes",
        "and after {agent.collector._IDLE_S:minutes} minutes without a scrape",
        "Ids are cut at {observe.exposition._LONGEST} characters",
    ),
    "docs/reference/variables.md": (
        "their beginnings of at least {vendors.inventory.SHORTEST_START} characters",
    ),
    "src/xpu_runtime/cli/explain.py": ("0 granted, {ledger.vocabulary.Meaning.exit_status} refused",),
    "src/xpu_runtime/cli/set.py": ("0 changed, {ledger.vocabulary.Meaning.exit_status} refused",),
}


class _Values(string.Formatter):
    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return pkgutil.resolve_name(f"xpu_runtime.{field_name}"), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        return value if isinstance(value, str) else f"{value / _UNITS[format_spec]:,g}"


def missing() -> Iterator[tuple[str, str]]:
    """The files without one of their sentences, each with the sentence by the code."""
    for name, templates in SENTENCES.items():
        text = " ".join((_REPOSITORY / name).read_text(encoding="utf-8").split())
        for template in templates:
            sentence = _Values().format(template)
            if sentence not in text:
                yield name, sentence
