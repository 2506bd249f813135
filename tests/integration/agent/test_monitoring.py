"""The alerts and the dashboard of packaging/monitoring: run by Prometheus itself, on a node's real figures.

Grafana is not available as a package; its own generated types define a dashboard.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from support import REPOSITORY
from support.sharing_time import Serve, until

from ..agent_http import asked, free_port, listens, on_port
from ..conftest import SLEEP, Bundles, Node
from ..refusals import refused

MONITORING = REPOSITORY / "packaging/monitoring"
RULES = MONITORING / "prometheus-rules.yaml"

#: For each alert: its labels, and series (a minute between two values) that make it fire after half an hour;
#: QUIET has series with these labels that must not.
NODE, DEVICE = 'instance="n1"', 'instance="n1",index="0",uuid="GPU-1"'
SLICE = DEVICE + ',container_id="c1"'
FIRES: dict[str, tuple[str, dict[str, str]]] = {
    "XpuNodeUnreadable": (NODE, {"xpu_up{%s}": "0x40"}),
    "XpuDeviceUnhealthy": (DEVICE, {"xpu_device_healthy{%s}": "1x20 0x20"}),
    "XpuRefusals": (NODE + ',code="memory"', {"xpu_refused_total{%s}": "0+1x40"}),
    "XpuStartsFail": (NODE + ',event="failed"', {"xpu_events_total{%s}": "0x25 1x15"}),
    "XpuStartsSlow": (
        NODE,
        {'xpu_start_seconds_bucket{%s,mode="hook",le="5"}': "0x40"}
        | {'xpu_start_seconds_bucket{%s,mode="hook",le="10"}': "0+1x40"}
        | {'xpu_start_seconds_bucket{%s,mode="hook",le="+Inf"}': "0+1x40"},
    ),
    "XpuSlicesReaped": (NODE + ',event="reaped"', {"xpu_events_total{%s}": "0+1x40"}),
    "XpuSliceNearMemoryLimit": (
        SLICE,
        {"xpu_slice_memory_used_bytes{%s}": "96x40", "xpu_slice_memory_limit_bytes{%s}": "100x40"},
    ),
    "XpuSliceHeldStrictly": (SLICE, {"xpu_slice_held_strictly{%s}": "0x20 1x20"}),
    "XpuAgentDown": (NODE, {"xpu_agent_up{%s}": "0x40"}),
    "XpuPluginNotRegistered": (NODE, {"xpu_kubernetes_registered{%s}": "1x20 0x20"}),
    "XpuPluginDeviceUnhealthy": (DEVICE, {"xpu_kubernetes_device_healthy{%s}": "0x40"}),
    "XpuExtenderNoLeader": ('job="extender"', {'xpu_extender_state{%s,state="leads"}': "0x40"}),
    "XpuExtenderBindsFail": (
        'job="extender"',
        {'xpu_extender_request_seconds_count{%s,verb="bind",result="error"}': "0+1x40"},
    ),
}
#: A job that is gone altogether, and an agent that Prometheus itself asks and does not reach.
FIRES_TOO: dict[str, tuple[str, dict[str, str]]] = {
    "XpuExtenderNoLeader": ('job="extender"', {'xpu_extender_state{%s,state="leads"}': "1x20 _x20"}),
    "XpuAgentDown": (NODE + ',job="xpu"', {"up{%s}": "0x40"}),
}
QUIET: dict[str, dict[str, str]] = {
    "XpuNodeUnreadable": {"xpu_up{%s}": "1x25 0x3 1x12"},
    "XpuDeviceUnhealthy": {"xpu_device_healthy{%s}": "1x40"},
    "XpuRefusals": {"xpu_refused_total{%s}": "0x20 1x10 2x10"},
    "XpuStartsFail": {"xpu_events_total{%s}": "3x40"},
    "XpuStartsSlow": {'xpu_start_seconds_bucket{%s,mode="hook",le="5"}': "0+1x40"}
    | {'xpu_start_seconds_bucket{%s,mode="hook",le="+Inf"}': "0+1x40"},
    "XpuSlicesReaped": {"xpu_events_total{%s}": "0x20 3x20"},
    "XpuSliceNearMemoryLimit": {
        "xpu_slice_memory_used_bytes{%s}": "90x40",
        "xpu_slice_memory_limit_bytes{%s}": "100x40",
    },
    "XpuSliceHeldStrictly": {"xpu_slice_held_strictly{%s}": "0x40"},
    "XpuAgentDown": {"xpu_agent_up{%s}": "1x40"},
    "XpuPluginNotRegistered": {"xpu_kubernetes_registered{%s}": "1x40"},
    "XpuPluginDeviceUnhealthy": {"xpu_kubernetes_device_healthy{%s}": "1x40"},
    "XpuExtenderNoLeader": {'xpu_extender_state{%s,state="leads"}': "1x40"},
    "XpuExtenderBindsFail": {'xpu_extender_request_seconds_count{%s,verb="bind",result="ok"}': "0+1x40"},
}


def alerts() -> dict[str, Any]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def expected(rule: dict[str, Any], text: str) -> dict[str, Any]:
    """The alert as it is sent: its labels, and its texts with their values."""
    labels = dict(re.findall(r'(\w+)="([^"]*)"', text))
    annotations = {
        key: re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], value)
        for key, value in rule["annotations"].items()
    }
    return {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": annotations}


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    rules = alerts()
    assert set(FIRES) == set(QUIET) == set(rules)
    tests = []
    quiet = {name: (FIRES[name][0], series) for name, series in QUIET.items()}
    for cases, fires in ((FIRES, True), (FIRES_TOO, True), (quiet, False)):
        for name, (labels, series) in cases.items():
            found = [expected(rules[name], labels)] if fires else []
            tests.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": key % labels, "values": series[key]} for key in series],
                    "alert_rule_test": [{"eval_time": "35m", "alertname": name, "exp_alerts": found}],
                }
            )
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[Callable[[str], Any]]:
    """A Prometheus that asks one agent each second; returns its API's answer to a path."""
    port = free_port()
    config = folder / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [
                    {"job_name": "xpu", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
                ],
            }
        )
    )
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: listens(port) and asked(port, "/-/ready")[0] == 200, "Prometheus is ready")

        def ask(path: str) -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=30) as answer:
                return json.load(answer)["data"]

        yield ask
    finally:
        process.terminate()
        process.wait()


def test_prometheus_has_something_for_every_panel(
    node: Node, bundles: Bundles, start_agent: Serve, tmp_path: Path
) -> None:
    node.sim("2xT4-R580")
    quota = "name: users, match: {user_namespace: true}, max_slices: 4, max_memory: 20G, max_cores: 200"
    port = on_port(node, start_agent, f"policy: {{quotas: [{{{quota}}}]}}")
    with prometheus(tmp_path, port) as ask:

        def query(text: str) -> Any:
            return ask("query?" + urllib.parse.urlencode({"query": text}))["result"]

        until(lambda: query("xpu_up == 1"), "it is asked")
        # Prometheus sees an increase only at the second value, so the events come after the first one.
        node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", "XPU_VISIBLE_DEVICES=1", args=SLEEP))
        refused(node, bundles("XPU_MEM=12G", "XPU_VISIBLE_DEVICES=1"))
        until(lambda: query("xpu_slice_info") and query("increase(xpu_refused_total[1m]) > 0"), "it was told")

        dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
        (variable,) = (each for each in dashboard["templating"]["list"] if each["type"] == "query")
        assert variable["query"]["query"] == "label_values(xpu_up, instance)"
        (instance,) = ask("label/instance/values?" + urllib.parse.urlencode({"match[]": "xpu_up"}))
        assert instance == f"127.0.0.1:{port}"
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$instance", instance).replace("$__rate_interval", "1m")
                # A slice's share is known from the second reading on.
                until(lambda text=text: query(text), f"{panel['title']}: {text}")  # type: ignore[misc]

        (group,) = ask("rules")["groups"]
        assert {each["name"]: each["health"] for each in group["rules"]} == dict.fromkeys(alerts(), "ok")
        assert [each["labels"]["alertname"] for each in ask("alerts")["alerts"]] == []


def lost(given: Any, kept: Any, where: str = "") -> list[str]:
    """The parts of one JSON value that are missing or different in another."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [
            each
            for key, value in given.items()
            for each in (lost(value, kept[key], f"{where}.{key}") if key in kept else [f"{where}.{key}"])
        ]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [each for number, pair in pairs for each in lost(*pair, f"{where}[{number}]")]
    return [] if given == kept else [where]


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """All that is in it are fields that Grafana has, panels and queries too; and panels do not overlap."""
    register_default_plugins()
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())

    def kept(value: Any) -> Any:
        return json.loads(json.dumps(Dashboard.from_json(value), cls=JSONEncoder))

    assert lost(dashboard, kept(dashboard)) == []
    misspelt = json.loads(json.dumps(dashboard).replace('"legendFormat"', '"legendFromat"', 1))
    assert lost(misspelt, kept(misspelt)) == [".panels[0].targets[0].legendFromat"]
    assert dashboard["title"] and dashboard["schemaVersion"] >= 36 and "id" not in dashboard
    panels = dashboard["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
