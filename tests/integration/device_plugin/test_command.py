"""The command: one plugin on a node, its metrics, and its errors."""

from __future__ import annotations

import urllib.request

from support.stand_in_kubelet import Kubelet, until

from ..agent_http import free_port
from .plugin import MAIN, MEMORY, Plugin, pod


def test_two_plugins_on_a_node_are_one_too_many(plugin: Plugin, kubelet: Kubelet) -> None:
    plugin.start()
    plugin.code = MAIN.replace(
        "; ", "; from xpu_runtime.cli.kubernetes import device_plugin as p; p._EARLIER_S = 1; "
    )
    assert "another device plugin runs on this node" in plugin.refused()


def test_metrics_and_health_are_served(plugin: Plugin, kubelet: Kubelet) -> None:
    port = free_port()
    plugin.start("--metrics", f"127.0.0.1:{port}")
    pod(plugin.api, "a", {MEMORY: "4"})
    kubelet.allocate("a", MEMORY, 4)
    kubelet.pre_start("a", MEMORY)

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    assert page("/healthz") == "ok\n"
    lines = until(
        lambda: (
            'xpu_kubernetes_ids{resource="yoyoworks.com/xpu-mem",state="given"} 4.0' in page("/metrics")
            and page("/metrics").splitlines()
        ),
        "the metrics say what was given",
    )
    for line in (
        'xpu_kubernetes_calls_total{call="allocate",outcome="ok"} 1.0',
        'xpu_kubernetes_ids{resource="yoyoworks.com/xpu-mem",state="healthy"} 60.0',
        'xpu_kubernetes_pods{state="reserved"} 1.0',
        'xpu_kubernetes_up{part="api"} 1.0',
        'xpu_kubernetes_up{part="drivers"} 1.0',
        "xpu_kubernetes_registered 1.0",
    ):
        assert line in lines


def test_without_grpc_the_error_says_what_to_install(plugin: Plugin) -> None:
    plugin.code = f"import sys; sys.modules['grpc'] = None; {MAIN}"
    said = plugin.refused()
    assert said.startswith("xpu: the device plugin needs gRPC (")
    # On no index: by its name pip would not find it.
    assert "xpu-container-runtime[" not in said
    assert "the DaemonSet" in said and said.endswith("`pip install '.[kubernetes]'`\n")


def test_a_name_that_is_not_the_configured_one_is_refused(plugin: Plugin) -> None:
    plugin.configure(node_name="n2")
    said = f"the node's name is n1, and kubernetes.node_name in {plugin.config} is n2"
    assert said in plugin.refused()
