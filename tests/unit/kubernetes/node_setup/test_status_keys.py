"""`xpu kubernetes status --keys`: which keys of assignments nodes have and pods were placed with, of an API
server's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from support import kubernetes_objects
from support.kubernetes_api import ApiServer
from support.kubernetes_objects import node
from xpu_runtime.cli.kubernetes import kubernetes
from xpu_runtime.request.assignment import Assignment, Share, sign

pytestmark = pytest.mark.usefixtures("kubeconfig")


def _pod(name: str, assignment: str, node: str = "n1", asks: bool = True) -> dict[str, Any]:
    signed = {"yoyoworks.com/xpu-assignment": assignment}
    amounts = {"mem": 4} if asks else {}
    made = kubernetes_objects.pod(name, annotations=signed, bound=node, **amounts)
    made["metadata"]["uid"] = name
    return made


def _signed(key: str) -> str:
    return sign(Assignment("uid", "n1", 1.0, {"main": (Share("GPU-0", 1, None),)}), key, bytes(32))


def _has(api_server: ApiServer, nodes: list[Any], pods: list[Any]) -> None:
    for kind, things in (("nodes", nodes), ("namespaces/ml/pods", pods)):
        for each in things:
            api_server.put(f"/api/v1/{kind}/{each['metadata']['name']}", each)


def _run(*words: str) -> Any:
    return CliRunner(mix_stderr=False).invoke(
        kubernetes, ["status", "--keys", *words], catch_exceptions=False
    )


def test_a_key_that_a_node_lacks_and_one_that_a_pod_still_needs_are_seen(api_server: ApiServer) -> None:
    n1 = node("n1", 0, keys=["old", "new"], signed={"c": "gone"})
    nodes = [n1, node("n2", 0, keys=["old"]), {"metadata": {"name": "cpu"}}, node("n3", 0, placement="node")]
    pods = [_pod("b", _signed("old")), _pod("a", _signed("old")), _pod("c", _signed("gone"))]
    pods += [_pod("waits", _signed("old"), node=""), _pod("odd", "v1.\x1b[2J.e30.m"), _pod("none", "")]
    _has(api_server, nodes, pods)

    lines = [line.split() for line in _run().stdout.splitlines()]

    assert lines == [
        ["KEY", "NODES", "PODS", "MISSING", "ON"],
        ["old", "2", "2", "-"],
        ["new", "1", "0", "n2"],
        ["gone", "0", "1", "n1,", "n2"],
    ]
    first, *_ = json.loads(_run("--json").stdout)["keys"]
    assert first == {"id": "old", "nodes": ["n1", "n2"], "missing": [], "pods": ["ml/a", "ml/b"]}


def test_the_node_reports_a_pods_slices_whatever_its_author_writes_into_the_annotation(
    api_server: ApiServer,
) -> None:
    reserved = {uid: [["GPU-0", 1, None]] for uid in ("bare", "forged", "placed-by-node")}
    n1 = node(
        "n1", 0, keys=["new"], reserved=reserved, signed={"bare": "old", "forged": "old", "gone": "old"}
    )
    pods = [_pod("bare", ""), _pod("forged", _signed("other")), _pod("placed-by-node", "")]
    # These have nothing yet: a pod that was just placed, and a pod without a valid signature.
    pods += [_pod("new", _signed("new")), _pod("refused", _signed("own"))]
    pods.append(_pod("asks-for-nothing", _signed("new"), asks=False))
    _has(api_server, [n1], pods)

    told = json.loads(_run("--json").stdout)["keys"]

    assert [(each["id"], each["pods"]) for each in told] == [
        ("new", ["ml/new"]),
        ("old", ["ml/bare", "ml/forged"]),
    ]


def test_where_no_node_tells_of_a_key_it_says_so(api_server: ApiServer) -> None:
    _has(api_server, [node("n3", 0, placement="node", keys=[])], [])

    done = _run()

    assert (done.exit_code, done.stdout) == (0, "")
    assert "no node reports a key" in done.stderr
