"""The admission policy by which xpu-node's pods change only their own node: its CEL is evaluated.

No API server here is new enough for admission policies; cel-python evaluates the same language.
test_manifests shows that the API accepts the policy.
"""

from __future__ import annotations

import functools
from typing import Any

import celpy
import pytest
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from .chart import rendered

#: From 1.30 on an API server sets this to the node of a token's pod (KEP-4193).
ON_NODE = "authentication.kubernetes.io/node-name"


@functools.cache
def _policy() -> dict[str, Any]:
    (found,) = (each for each in rendered() if each["kind"] == "ValidatingAdmissionPolicy")
    spec: dict[str, Any] = found["spec"]
    return spec


def is_allowed(changed: str, username: str, extra: dict[str, list[str]] | None) -> bool:
    """Whether an API server allows a change of the node with that name. All conditions decide whether the
    policy applies, and all validations must agree; an error of either denies (failurePolicy: Fail)."""
    spec = _policy()
    user: dict[str, Any] = {"username": username, **({} if extra is None else {"extra": extra})}
    variables = {
        "request": json_to_cel({"userInfo": user}),
        "object": json_to_cel({"metadata": {"name": changed}}),
    }
    environment = celpy.Environment()

    def holds(expression: str) -> bool:
        return bool(environment.program(environment.compile(expression)).evaluate(variables))

    try:
        if not all(holds(each["expression"]) for each in spec["matchConditions"]):
            return True
        return all(holds(each["expression"]) for each in spec["validations"])
    except CELEvalError:
        return False


@pytest.mark.parametrize("namespace", ["xpu-system", "gpu"])
def test_a_pod_on_a_node_changes_that_node_alone(namespace: str) -> None:
    ours = f"system:serviceaccount:{namespace}:xpu-node"
    assert is_allowed("n1", ours, {ON_NODE: ["n1"], "authentication.kubernetes.io/pod-name": ["xpu-node-x"]})
    assert not is_allowed("n2", ours, {ON_NODE: ["n1"]})


@pytest.mark.parametrize("extra", [None, {}, {ON_NODE: []}, {ON_NODE: ["n1", "n2"]}])
def test_a_token_that_names_no_node_changes_none(extra: dict[str, list[str]] | None) -> None:
    """Tokens from before 1.30 name none, nor do those that somebody makes by hand without a pod."""
    assert not is_allowed("n1", "system:serviceaccount:xpu-system:xpu-node", extra)


@pytest.mark.parametrize(
    "username",
    [
        "system:node:n1",
        "kubernetes-admin",
        "system:serviceaccount:xpu-system:xpu-extender",
        "system:serviceaccount:xpu-system:xpu-node-2",
    ],
)
def test_other_users_are_not_restricted(username: str) -> None:
    assert is_allowed("n2", username, None)
