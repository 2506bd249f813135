"""`xpu kubernetes status`, by its options, of an API server's answers; and `xpu kubernetes uninstall`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.kubernetes_api import ApiServer
from support.kubernetes_objects import GIB, Json, device, node, pod
from xpu_runtime.cli.kubernetes import kubernetes
from xpu_runtime.cli.terminal import table

pytestmark = pytest.mark.usefixtures("kubeconfig")
_DAEMONSET = "/apis/apps/v1/namespaces/xpu-system/daemonsets/xpu-node"


def _node(name: str, **more: Any) -> Json:
    others = {"memory": 2 * GIB, "cores": 10, "whole": False}
    cards = [
        device(name, 0, 15 * GIB, uuid="GPU-0", others=others),
        device(name, 1, 15 * GIB, healthy=False, why="Xid 79"),
    ]
    return node(name, cards, **more)


def _has(api_server: ApiServer, *nodes: Json) -> None:
    for each in nodes:
        api_server.put(f"/api/v1/nodes/{each['metadata']['name']}", each)


def _run(*words: str) -> Any:
    return CliRunner(mix_stderr=False).invoke(kubernetes, words, catch_exceptions=False)


def test_a_row_for_each_card_with_what_fits_there(api_server: ApiServer) -> None:
    held = {"uid-1": [["GPU-0", 4 * GIB, 30]]}
    _has(api_server, _node("n1", reserved=held), {"metadata": {"name": "cpu"}})

    done = _run("status")

    assert done.exit_code == 0
    head, first, second = (line.split() for line in done.stdout.splitlines())
    assert head[:3] == ["NODE", "CARD", "MODEL"]
    assert first[:2] + first[-7:] == ["n1", "0", "10%", "9/15", "GiB", "60%", "9", "GiB,", "60%"]
    assert second[:2] + second[-5:] == ["n1", "1", "-/15", "GiB", "-", "Xid", "79"]


def test_a_pod_that_its_node_refused_is_named_and_its_amounts_are_not_free(api_server: ApiServer) -> None:
    pods = [pod(f"p{number}", mem=1, bound="n1") for number in range(10)]
    for each in pods:
        api_server.put(f"/api/v1/namespaces/team/pods/{each['metadata']['name']}", each)
    _has(api_server, _node("n1", reserved={pods[9]["metadata"]["uid"]: [["GPU-0", GIB, 0]]}))

    done = _run("status")
    (found,) = json.loads(_run("status", "--json").stdout)["nodes"]

    assert " 3/15 GiB " in done.stdout
    assert "node n1 has nothing reserved for team/p0, team/p1, " in done.stderr
    assert "team/p3 and 5 more (not yet, or refused" in done.stderr
    assert (found["cards"][0]["pods"], len(found["waiting"])) == (10, 9)


def test_json_has_the_same_for_scripts(api_server: ApiServer) -> None:
    _has(api_server, _node("n1"))

    done = _run("status", "--json")

    (found,) = json.loads(done.stdout)["nodes"]
    facts = [found[name] for name in ("name", "driver", "placement", "problem")]
    assert facts == ["n1", "580.82.07", "extender", None]
    first, second = found["cards"]
    assert first["free_memory_bytes"] == 13 * GIB
    assert (first["free_cores"], first["others_memory_bytes"], first["whole"]) == (90, 2 * GIB, False)
    assert (second["free_memory_bytes"], second["why"]) == (0, "Xid 79")


def _at_80_columns(names: list[str], api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    others = {"memory": 2 * GIB, "cores": 10}
    model = "NVIDIA A100-SXM4-80GB"
    cards = [device("n", at, 80 * GIB, model=model, others=others) for at in range(8)]
    _has(api_server, *(node(name, cards) for name in names))
    monkeypatch.setattr(table, "width_of_window", lambda wide: None if wide else 80)
    return str(_run("status").stdout).splitlines()


def test_at_80_columns_long_names_are_whole_except_for_their_common_end(
    api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"gpu-worker-eu-west-1a-0{at}.internal.example.com" for at in range(3)]

    shown = _at_80_columns(names, api_server, monkeypatch)

    assert all(len(line) <= 80 for line in shown)
    assert shown[0].split("  ")[0] == "NODE" and "MODEL" not in shown[0] and "OTHERS" not in shown[0]
    assert [line.split()[0] for line in shown[1:25]] == [
        f"gpu-worker-eu-west-1a-0{at // 8}" for at in range(24)
    ]
    assert "78/80 GiB" in shown[1] and shown[1].endswith("78 GiB, 90%")
    assert shown[-1] == "All nodes' names end in .internal.example.com"


def test_names_that_have_nothing_in_common_are_cut_after_all_that_can_be_left_out(
    api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{each}-with-a-name-that-is-longer-than-the-rest.example.{each}" for each in ("one", "another")]

    shown = _at_80_columns(names, api_server, monkeypatch)

    assert all(len(line) <= 80 for line in shown)
    assert "PODS" not in shown[0] and "end in" not in shown[-1]
    first, last = shown[1].split()[0], shown[-2].split()[0]
    assert last.startswith("one-with-a") and last.endswith(".example.one") and ".." in last
    assert first.startswith("another-w") and first.endswith(".example.another")


def test_where_no_pod_comes_it_is_said_of_each_card_and_a_silent_node_gets_a_line(
    api_server: ApiServer,
) -> None:
    silent = {"metadata": {"name": "n2", "labels": {"yoyoworks.com/xpu.runtime": "true"}}}
    cordoned = {**_node("n1"), "spec": {"unschedulable": True}}
    _has(api_server, cordoned, silent)

    done = _run("status")
    both = json.loads(_run("status", "--json").stdout)["nodes"]

    _, first, second = (line.split() for line in done.stdout.splitlines())
    assert (first[-4:], second[-5:]) == (
        ["-/15", "GiB", "-", "cordoned"],
        ["-/15", "GiB", "-", "Xid", "79"],
    )
    says = "it has the runtime, and its device plugin has not reported yet"
    assert done.stderr == f"xpu: node n2: {says}\n"
    assert [(each["why"], each["problem"]) for each in both] == [("cordoned", None), (None, says)]
    assert [card["why"] for card in both[0]["cards"]] == ["cordoned", "Xid 79"]


def test_nodes_that_count_memory_in_different_units_get_a_line(api_server: ApiServer) -> None:
    _has(api_server, _node("n1"), _node("n2", memory_unit=256 << 20))
    different = _run("status")
    _has(api_server, _node("n1"), _node("n2"))
    alike = _run("status")

    units = "256 MiB on n2; 1 GiB on n1"
    assert (
        different.stderr == f"xpu: nodes count memory in different units ({units}): see docs/kubernetes.md\n"
    )
    assert alike.stderr == ""


def test_where_nothing_is_known_it_says_so(api_server: ApiServer) -> None:
    _has(api_server, {"metadata": {"name": "cpu"}})

    done = _run("status")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "no node has xpu's device plugin" in done.stderr


def test_uninstall_waits_until_the_daemonset_is_gone(api_server: ApiServer) -> None:
    api_server.put(_DAEMONSET, {})

    done = _run("uninstall")

    assert done.exit_code == 0
    assert "is gone" in done.stdout
    assert api_server.requests[0] == ("DELETE", f"{_DAEMONSET}?propagationPolicy=Foreground")


def test_uninstall_says_how_many_nodes_are_not_done(api_server: ApiServer, kubeconfig: Path) -> None:
    left = {"status": {"currentNumberScheduled": 3}}
    api_server.fault = lambda *_: (200, left)

    done = CliRunner(mix_stderr=False).invoke(
        kubernetes, ["uninstall", "--kubeconfig", str(kubeconfig), "--timeout", "1"]
    )

    assert done.exit_code != 0
    assert "nodes left: 3" in done.stdout
    assert "3 nodes are not finished" in str(done.exception)
