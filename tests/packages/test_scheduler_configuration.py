"""kube-scheduler's configuration of the extender: the cluster's own scheduler, and the chart's."""

from __future__ import annotations

import re

import pytest
import yaml

from xpu_runtime.kubernetes.resources import ALIASES, Resources

from .chart import (
    MANIFESTS,
    Document,
    key_of,
    rendered,
)

#: Fields of an extender's configuration, kubescheduler.config.k8s.io/v1.
EXTENDER = {
    "urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "weight", "bindVerb", "enableHTTPS",
    "tlsConfig", "httpTimeout", "nodeCacheCapable", "managedResources", "ignorable",
}  # fmt: skip
ALIYUN, MPS = ("aliyun.com/gpu",), ("nvidia.com/mps",)


def of_cluster(*names: str) -> Document:
    """The file for the cluster's own scheduler; with those of its commented resources whose names begin with
    one of `names`."""
    text = (MANIFESTS / "kube-scheduler.yaml").read_text()
    for name in names:
        text = re.sub(rf"# (- name: {re.escape(name)})", r"\1", text)
    found: Document = yaml.safe_load(text)
    return found


def of_chart(*values: str) -> Document:
    documents = rendered("scheduler.enabled=true", *values)
    found = next(each for each in documents if key_of(each) == ("ConfigMap", "xpu-system", "xpu-scheduler"))
    configuration: Document = yaml.safe_load(found["data"]["config.yaml"])
    return configuration


def test_a_scheduler_sends_us_pods_that_ask_and_waits_while_we_are_down() -> None:
    for name, found in (("file", of_cluster()), ("chart", of_chart())):
        assert found["apiVersion"] == "kubescheduler.config.k8s.io/v1", name
        (extender,) = found["extenders"]
        assert extender.keys() <= EXTENDER, name
        assert extender["ignorable"] is False, name
        assert extender["nodeCacheCapable"] is True, name
        verbs = [extender[f"{verb}Verb"] for verb in ("filter", "prioritize", "preempt", "bind")]
        assert verbs == ["filter", "prioritize", "preempt", "bind"], name
        assert extender["enableHTTPS"] is True, name
        assert {"caFile", "certFile", "keyFile"} <= extender["tlsConfig"].keys(), name


@pytest.mark.parametrize("aliases", [(), ALIYUN, MPS, tuple(ALIASES)])
def test_a_scheduler_sends_us_each_resource_that_nodes_offer(aliases: tuple[str, ...]) -> None:
    offered = set(Resources(aliases=aliases).names)
    ways = [of_chart(*([f"kubernetes.aliases={{{','.join(aliases)}}}"] if aliases else []))]
    ways.append(of_cluster(*(each for each in offered if not each.startswith("yoyoworks.com/"))))

    for found in ways:
        (extender,) = found["extenders"]
        assert {each["name"] for each in extender["managedResources"]} == offered
