"""`xpu kubernetes status`, by its options, of an API server's answers; and `xpu kubernetes uninstall`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from xpu_runtime.cli.kubernetes import kubernetes
from xpu_runtime.cli.terminal import table

from .conftest import Answers

GIB = 1 << 30
_DAEMONSET = "/apis/apps/v1/namespaces/xpu-system/daemonsets/xpu-node"


def _node(name: str, **more: Any) -> dict[str, Any]:
    devices = [
        {"uuid": "GPU-0", "index": "0", "model": "Tesla T4", "memory": 15 * GIB, "cores": 100, "healthy":
        True,
         "why": "", "others": {"memory": 2 * GIB, "cores": 10, "whole": False}},
        {"uuid": "GPU-1", "index": "1", "model": "Tesla T4", "memory": 15 * GIB, "cores": 100, "healthy":
        False,
         "why": "Xid 79"},
    ]  # fmt: skip
    text = json.dumps({"v": 1, "driver": "580.1", "placement": "extender", "devices": devices, **more})
    return {"metadata": {"name": name, "annotations": {"yoyoworks.com/xpu-devices": text}}}


def _list(*items: Any) -> tuple[int, Any]:
    return 200, {"items": list(items), "metadata": {"resourceVersion": "1"}}


def _run(kubeconfig: Path, *words: str) -> Any:
    return CliRunner(mix_stderr=False).invoke(
        kubernetes, [words[0], "--kubeconfig", str(kubeconfig), *words[1:]], catch_exceptions=False
    )


def test_a_row_for_each_card_with_what_fits_there(answers: Answers, kubeconfig: Path) -> None:
    held = {"uid-1": [["GPU-0", 4 * GIB, 30]]}
    answers.answers["GET", "/api/v1/nodes"] = _list(_node("n1", reserved=held), {"metadata": {"name": "cpu"}})
    answers.answers["GET", "/api/v1/pods"] = _list()

    done = _run(kubeconfig, "status")

    assert done.exit_code == 0
    head, first, second = (line.split() for line in done.stdout.splitlines())
    assert head[:3] == ["NODE", "CARD", "MODEL"]
    assert first[:2] + first[-7:] == ["n1", "0", "10%", "9/15", "GiB", "60%", "9", "GiB,", "60%"]
    assert second[:2] + second[-5:] == ["n1", "1", "-/15", "GiB", "-", "Xid", "79"]


def test_a_pod_that_its_node_refused_is_named_and_its_amounts_are_not_free(
    answers: Answers, kubeconfig: Path
) -> None:
    pods = [
        {
            "metadata": {"uid": f"uid-{number}", "namespace": "team", "name": f"p{number}"},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "main", "resources": {"limits": {"yoyoworks.com/xpu-mem": "1"}}}],
            },
        }
        for number in range(10)
    ]
    answers.answers["GET", "/api/v1/nodes"] = _list(_node("n1", reserved={"uid-9": [["GPU-0", GIB, 0]]}))
    answers.answers["GET", "/api/v1/pods"] = _list(*pods)

    done = _run(kubeconfig, "status")
    (node,) = json.loads(_run(kubeconfig, "status", "--json").stdout)["nodes"]

    assert " 3/15 GiB " in done.stdout
    assert "node n1 has nothing reserved for team/p0, team/p1, " in done.stderr
    assert "team/p3 and 5 more (not yet, or refused" in done.stderr
    assert (node["cards"][0]["pods"], len(node["waiting"])) == (10, 9)


def test_json_has_the_same_for_scripts(answers: Answers, kubeconfig: Path) -> None:
    answers.answers["GET", "/api/v1/nodes"] = _list(_node("n1"))
    answers.answers["GET", "/api/v1/pods"] = _list()

    done = _run(kubeconfig, "status", "--json")

    (node,) = json.loads(done.stdout)["nodes"]
    assert (node["name"], node["driver"], node["placement"], node["problem"]) == (
        "n1",
        "580.1",
        "extender",
        None,
    )
    first, second = node["cards"]
    assert first["free_memory_bytes"] == 13 * GIB
    assert (first["free_cores"], first["others_memory_bytes"], first["whole"]) == (90, 2 * GIB, False)
    assert (second["free_memory_bytes"], second["why"]) == (0, "Xid 79")


def _at_80_columns(
    names: list[str], answers: Answers, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    cards = [
        {"uuid": f"GPU-{at}", "index": str(at), "model": "NVIDIA A100-SXM4-80GB", "memory": 80 * GIB,
         "cores": 100, "healthy": True, "why": "", "others": {"memory": 2 * GIB, "cores": 10}}
        for at in range(8)
    ]  # fmt: skip
    answers.answers["GET", "/api/v1/nodes"] = _list(*(_node(name, devices=cards) for name in names))
    answers.answers["GET", "/api/v1/pods"] = _list()
    monkeypatch.setattr(table, "width_of_window", lambda wide: None if wide else 80)
    return str(_run(kubeconfig, "status").stdout).splitlines()


def test_at_80_columns_long_names_are_whole_except_for_their_common_end(
    answers: Answers, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"gpu-worker-eu-west-1a-0{at}.internal.example.com" for at in range(3)]

    shown = _at_80_columns(names, answers, kubeconfig, monkeypatch)

    assert all(len(line) <= 80 for line in shown)
    assert shown[0].split("  ")[0] == "NODE" and "MODEL" not in shown[0] and "OTHERS" not in shown[0]
    assert [line.split()[0] for line in shown[1:25]] == [
        f"gpu-worker-eu-west-1a-0{at // 8}" for at in range(24)
    ]
    assert "78/80 GiB" in shown[1] and shown[1].endswith("78 GiB, 90%")
    assert shown[-1] == "All nodes' names end in .internal.example.com"


def test_names_that_have_nothing_in_common_are_cut_after_all_that_can_be_left_out(
    answers: Answers, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{each}-with-a-name-that-is-longer-than-the-rest.example.{each}" for each in ("one", "another")]

    shown = _at_80_columns(names, answers, kubeconfig, monkeypatch)

    assert all(len(line) <= 80 for line in shown)
    assert "PODS" not in shown[0] and "end in" not in shown[-1]
    first, last = shown[1].split()[0], shown[-2].split()[0]
    assert last.startswith("one-with-a") and last.endswith(".example.one") and ".." in last
    assert first.startswith("another-w") and first.endswith(".example.another")


def test_where_no_pod_comes_it_is_said_of_each_card_and_a_silent_node_gets_a_line(
    answers: Answers, kubeconfig: Path
) -> None:
    silent = {"metadata": {"name": "n2", "labels": {"yoyoworks.com/xpu.runtime": "true"}}}
    cordoned = {**_node("n1"), "spec": {"unschedulable": True}}
    answers.answers["GET", "/api/v1/nodes"] = _list(cordoned, silent)
    answers.answers["GET", "/api/v1/pods"] = _list()

    done = _run(kubeconfig, "status")
    both = json.loads(_run(kubeconfig, "status", "--json").stdout)["nodes"]

    _, first, second = (line.split() for line in done.stdout.splitlines())
    assert (first[-4:], second[-5:]) == (
        ["-/15", "GiB", "-", "cordoned"],
        ["-/15", "GiB", "-", "Xid", "79"],
    )
    says = "it has the runtime, and its device plugin has not reported yet"
    assert done.stderr == f"xpu: node n2: {says}\n"
    assert [(each["why"], each["problem"]) for each in both] == [("cordoned", None), (None, says)]
    assert [card["why"] for card in both[0]["cards"]] == ["cordoned", "Xid 79"]


def test_nodes_that_count_memory_in_different_units_get_a_line(answers: Answers, kubeconfig: Path) -> None:
    answers.answers["GET", "/api/v1/pods"] = _list()
    answers.answers["GET", "/api/v1/nodes"] = _list(_node("n1"), _node("n2", memory_unit=256 << 20))
    different = _run(kubeconfig, "status")
    answers.answers["GET", "/api/v1/nodes"] = _list(_node("n1"), _node("n2"))
    alike = _run(kubeconfig, "status")

    units = "256 MiB on n2; 1 GiB on n1"
    assert (
        different.stderr == f"xpu: nodes count memory in different units ({units}): see docs/kubernetes.md\n"
    )
    assert alike.stderr == ""


def test_where_nothing_is_known_it_says_so(answers: Answers, kubeconfig: Path) -> None:
    answers.answers["GET", "/api/v1/nodes"] = _list({"metadata": {"name": "cpu"}})
    answers.answers["GET", "/api/v1/pods"] = _list()

    done = _run(kubeconfig, "status")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "no node has xpu's device plugin" in done.stderr


def test_uninstall_waits_until_the_daemonset_is_gone(answers: Answers, kubeconfig: Path) -> None:
    answers.answers["DELETE", _DAEMONSET] = 200, {}

    done = _run(kubeconfig, "uninstall")

    assert done.exit_code == 0
    assert "is gone" in done.stdout
    assert answers.asked[0][:2] == ("DELETE", f"{_DAEMONSET}?propagationPolicy=Foreground")


def test_uninstall_says_how_many_nodes_are_not_done(answers: Answers, kubeconfig: Path) -> None:
    answers.answers["DELETE", _DAEMONSET] = 200, {}
    answers.answers["GET", _DAEMONSET] = 200, {"status": {"currentNumberScheduled": 3}}

    done = CliRunner(mix_stderr=False).invoke(
        kubernetes, ["uninstall", "--kubeconfig", str(kubeconfig), "--timeout", "1"]
    )

    assert done.exit_code != 0
    assert "nodes left: 3" in done.stdout
    assert "3 nodes are not finished" in str(done.exception)
