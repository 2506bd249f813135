"""The chart's values: which are refused, what the others change, and the notes after an installation."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import click
import pytest

from support import REPOSITORY
from xpu_runtime import version
from xpu_runtime.cli.kubernetes import kubernetes
from xpu_runtime.config.compile import load_schema, read_config
from xpu_runtime.kubernetes import configuration
from xpu_runtime.kubernetes.node_setup import pod, section
from xpu_runtime.kubernetes.resources import ALIASES, Resources

from .chart import (
    MANIFESTS,
    NOWHERE,
    SCHEDULERS,
    TOOLS,
    VALUES,
    images,
    key_of,
    rendered,
    run,
)


@pytest.mark.parametrize(
    "values, reason",
    [
        (["kubernetes.placement=cluster"], "placement"),
        (["kubernetes.memoryUnit=1GB"], "such as 1GiB or 256MiB"),
        (["kubernetes.memoryUnit=1G"], "such as 1GiB or 256MiB"),
        (["image.repository=reg.example/xpu:0.1.0"], "does not match pattern"),
        (["image.repository=REGISTRY/xpu/Kubernetes"], "does not match pattern"),
        (["kubernetes.aliases={aliyun}"], "aliases"),
        (["extender.enabled=false"], "set kubernetes.placement=node, too"),
        (["kubernetes.placement=node"], "set extender.enabled=false, too"),
        (
            ["extender.enabled=false", "kubernetes.placement=node", "scheduler.enabled=true"],
            "asks the extender",
        ),
        (["extender.replica=3"], "replica"),
        (["extender.replicas=0"], "replicas"),
        (["node.containerd.config=config.toml"], "config"),
        (["node.containerd.unit=k3s"], "unit"),
    ],
)
def test_the_chart_refuses_values_that_make_no_sense(values: list[str], reason: str) -> None:
    sets = [word for value in values for word in ("--set", value)]

    done = subprocess.run(
        [
            TOOLS / "bin" / "helm",
            "template",
            "xpu",
            MANIFESTS / "chart",
            "--set",
            f"image.repository={NOWHERE}",
            *sets,
        ],
        capture_output=True,
        text=True,
    )

    assert done.returncode != 0
    assert reason in done.stderr


def test_helm_lint_finds_nothing() -> None:
    said = run("helm", "lint", "--strict", str(MANIFESTS / "chart"))

    assert "0 chart(s) failed" in said
    assert "WARNING" not in said


def test_the_schema_of_values_agrees_with_the_nodes_schema() -> None:
    ours = load_schema()["properties"]["kubernetes"]["properties"]
    values = json.loads((MANIFESTS / "chart/values.schema.json").read_text())
    chart = values["properties"]["kubernetes"]["properties"]

    # The chart has its own pattern for this value. helm's expressions (Go's) have no look-ahead, and their $
    # matches only at the end of the text.
    checks = (MANIFESTS / "chart/templates/_names.tpl").read_text()
    (pattern,) = re.findall(r'regexMatch "(.*?)" \$k\.memoryUnit', checks)
    assert pattern == ours["memory_unit"]["pattern"].replace(r"(?!\n)", "")
    assert chart["memoryUnit"]["maxLength"] == ours["memory_unit"]["maxLength"]
    assert chart["aliases"]["items"]["enum"] == ours["aliases"]["items"]["enum"] == list(ALIASES)
    assert sorted(chart["placement"]["enum"]) == sorted(ours["placement"]["enum"])
    policy = load_schema()["properties"]["placement"]["properties"]["policy"]
    assert values["properties"]["extender"]["properties"]["policy"]["enum"] == policy["enum"]


@pytest.mark.parametrize(
    "of_cluster, tag",
    [
        ("v1.31.4", "v1.31.4"),
        ("v1.31.4-eks-7f9249a", "v1.31.4"),
        ("v1.30.5+k3s1", "v1.30.5"),
        ("v1.29.1-gke.1589000", "v1.29.1"),
    ],
)
def test_a_second_scheduler_has_the_clusters_version(of_cluster: str, tag: str) -> None:
    found = images(rendered("scheduler.enabled=true", release=of_cluster))
    chosen = images(rendered("scheduler.enabled=true", "scheduler.tag=v1.30.9", release=of_cluster))

    assert {each for each in found if each.startswith(SCHEDULERS)} == {f"{SCHEDULERS}:{tag}"}
    assert {each for each in chosen if each.startswith(SCHEDULERS)} == {f"{SCHEDULERS}:v1.30.9"}


@pytest.mark.parametrize(
    "values, said, not_said",
    [
        (VALUES["default"], "serverName: xpu-extender.gpus.svc", "schedulerName"),
        (
            VALUES["default"],
            "kubectl -n gpus exec deploy/xpu-extender -- /opt/xpu/bin/xpu kubernetes status",
            "docker",
        ),
        (VALUES["second-scheduler"], "schedulerName: xpu-scheduler", "urlPrefix"),
        (VALUES["without-extender"], f"{NOWHERE}:{version.VERSION} kubernetes status", "xpu-extender"),
    ],
)
def test_the_notes_after_an_installation_say_what_comes_next(
    values: list[str], said: str, not_said: str
) -> None:
    sets = [word for value in (f"image.repository={NOWHERE}", *values) for word in ("--set", value)]

    notes = run(
        "helm", "install", "xpu", str(MANIFESTS / "chart"), "-n", "gpus", "--dry-run=client", *sets
    ).partition("NOTES:")[2]

    assert said in notes
    assert not_said not in notes


def test_helm_waits_as_long_as_nodes_may_take() -> None:
    (job,) = (each for each in rendered(hooks=True) if each["kind"] == "Job")
    command = kubernetes.get_command(click.Context(kubernetes), "uninstall")
    assert command is not None
    (seconds,) = (each.default for each in command.params if each.name == "timeout")
    said = [(MANIFESTS / "chart/templates/NOTES.txt").read_text()]
    said.append((REPOSITORY / "docs/kubernetes.md").read_text())

    for text in said:
        (minutes,) = re.findall(r"helm uninstall .*--timeout (\d+)m", text)
        assert seconds < job["spec"]["activeDeadlineSeconds"] <= 60 * int(minutes)


@pytest.mark.parametrize("name", VALUES)
def test_nodes_accept_the_configuration(name: str, tmp_path: Path) -> None:
    found = next(
        each for each in rendered(*VALUES[name]) if key_of(each) == ("ConfigMap", "xpu-system", "xpu")
    )
    file = tmp_path / "config.yaml"
    file.write_text(found["data"]["config.yaml"])
    values = configuration.read(str(file)).kubernetes
    file.write_text(section.written("", {**values, "node_name": "n1"}, "config.yaml"))

    config, _, problems = read_config(str(file))

    assert problems == []
    assert config.kubernetes_require_assignment is True
    assert config.kubernetes_placement == ("node" if name == "without-extender" else "extender")


def test_the_extender_reads_the_charts_policy_and_restarts_when_it_changes(tmp_path: Path) -> None:
    sums = set()
    for policy in ("binpack", "spread"):
        found = {key_of(each): each for each in rendered(f"extender.policy={policy}")}
        file = tmp_path / "config.yaml"
        file.write_text(found["ConfigMap", "xpu-system", "xpu"]["data"]["config.yaml"])
        assert configuration.read(str(file)).policy == policy
        template = found["Deployment", "xpu-system", "xpu-extender"]["spec"]["template"]
        sums.add(template["metadata"]["annotations"]["checksum/configuration"])

    assert len(sums) == 2


@pytest.mark.parametrize("name", [each for each in VALUES if each != "without-extender"])
def test_the_extender_reads_the_configuration_that_nodes_have(name: str, tmp_path: Path) -> None:
    found = {key_of(each): each for each in rendered(*VALUES[name])}
    for kind, pods, container in (
        ("DaemonSet", "xpu-node", "initContainers"),
        ("Deployment", "xpu-extender", "containers"),
    ):
        spec = found[kind, "xpu-system", pods]["spec"]["template"]["spec"]
        volumes = {each["name"]: each for each in spec["volumes"]}
        (mounted,) = (
            each["mountPath"]
            for each in spec[container][0]["volumeMounts"]
            if volumes[each["name"]].get("configMap") == {"name": "xpu"}
        )
        assert f"{mounted}/config.yaml" == pod.CONFIGURATION
    options = dict(each.split("=") for each in spec[container][0]["args"])
    assert options["--configuration"] == pod.CONFIGURATION
    file = tmp_path / "config.yaml"
    file.write_text(found["ConfigMap", "xpu-system", "xpu"]["data"]["config.yaml"])
    aliases = ("aliyun.com/gpu",) if name == "aliyun" else ()
    assert configuration.read(str(file)).resources == Resources(1 << 30, aliases)
