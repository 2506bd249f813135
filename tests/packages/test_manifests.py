"""The manifests of packaging/kubernetes are valid for each release of the API, and ask for no unneeded right.

tests/kubernetes shows that they work in a cluster.
"""

from __future__ import annotations

import json
import subprocess

import click
import pytest

from xpu_runtime import version
from xpu_runtime.cli.kubernetes import kubernetes
from xpu_runtime.kubernetes.node_setup import keeper
from xpu_runtime.kubernetes.resources import ALIASES, Resources

from .chart import (
    MANIFESTS,
    NOWHERE,
    RELEASES,
    TOOLS,
    VALUES,
    Api,
    Document,
    daemonset,
    documents,
    key_of,
    ours,
    pod_specs,
    rendered,
    uninstalling,
)


@pytest.fixture(scope="module")
def everything() -> list[tuple[str, Document]]:
    """Each document of each way to install, with its origin; equal documents appear once."""
    found: dict[str, tuple[str, Document]] = {}

    def add(source: str, documents: list[Document]) -> None:
        for document in documents:
            found.setdefault(json.dumps(document, sort_keys=True), (source, document))

    for file in [*MANIFESTS.glob("*.yaml"), *sorted(MANIFESTS.glob("examples/*.yaml"))]:
        if file.name != "kube-scheduler.yaml":  # a program's configuration, and no object
            add(file.name, documents(file.read_text()))
    for name, values in VALUES.items():
        add(f"chart, {name}", rendered(*values, hooks=True))
    more = ["monitoring.enabled=true", "criticalPods.quota=true", "networkPolicy.enabled=false"]
    add("chart, more", rendered(*more, "image.pullSecrets={registry}", "extender.replicas=1"))
    return list(found.values())


@pytest.mark.parametrize("release", RELEASES)
def test_the_api_accepts_each_object(release: str, everything: list[tuple[str, Document]]) -> None:
    api = Api(release)

    problems = [
        f"{source}: {problem}" for source, document in everything for problem in api.problems(document)
    ]

    assert problems == []
    assert len(everything) > 40


def test_the_check_finds_what_an_api_refuses() -> None:
    wrong = daemonset(rendered())
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    wrong["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = [1]

    problems = list(Api("1.28").problems(wrong))

    assert any("hostPid" in each for each in problems), problems
    assert any("maxUnavailable" in each for each in problems), problems


def test_only_our_image_runs_and_the_chart_requires_its_repository() -> None:
    assert ours(uninstalling()) == {f"{NOWHERE}:{version.VERSION}"}
    for values in VALUES.values():
        assert ours(rendered(*values, hooks=True)) == {f"{NOWHERE}:{version.VERSION}"}

    done = subprocess.run(
        [TOOLS / "bin" / "helm", "template", "xpu", MANIFESTS / "chart"], capture_output=True, text=True
    )

    assert done.returncode != 0
    assert "--set image.repository=REGISTRY/xpu-kubernetes" in done.stderr


def test_the_uninstallation_has_a_namespace_of_its_own() -> None:
    found = {key_of(each)[:2] for each in uninstalling()}

    assert found == {
        ("Namespace", ""), ("ClusterRole", ""), ("ClusterRoleBinding", ""),
        ("ResourceQuota", "xpu-uninstall"), ("ServiceAccount", "xpu-uninstall"),
        ("DaemonSet", "xpu-uninstall"),
    }  # fmt: skip


_POLICY = ("ValidatingAdmissionPolicy", "", "xpu-node-own-node")


def test_a_policy_restricts_pods_to_their_own_node_if_the_api_has_policies() -> None:
    for release in RELEASES:
        has_policy = _POLICY in map(key_of, rendered(release=release))
        assert has_policy is (int(release[2:]) >= 30), release
    assert _POLICY not in map(key_of, rendered("nodeRestriction.enabled=false"))
    assert _POLICY in map(key_of, rendered("nodeRestriction.enabled=true", release="1.28"))
    found = {key_of(each): each for each in rendered()}  # test_node_restriction.py checks its content
    binding = found["ValidatingAdmissionPolicyBinding", "", "xpu-node-own-node"]["spec"]
    assert binding == {"policyName": "xpu-node-own-node", "validationActions": ["Deny"]}


def test_each_of_our_namespaces_can_have_a_quota_for_critical_pods() -> None:
    classes = {"system-node-critical", "system-cluster-critical"}
    of_chart = [each for each in rendered("criticalPods.quota=true") if each["kind"] == "ResourceQuota"]
    uninstall = [each for each in uninstalling() if each["kind"] == "ResourceQuota"]

    assert [each["metadata"]["namespace"] for each in of_chart] == ["xpu-system"]
    for quota in (*of_chart, *uninstall):
        (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
        assert (scope["scopeName"], scope["operator"], set(scope["values"])) == (
            "PriorityClass",
            "In",
            classes,
        )
    asked = {
        each["spec"]["template"]["spec"].get("priorityClassName")
        for each in [*rendered("scheduler.enabled=true"), *uninstalling()]
        if "template" in each.get("spec", {})
    }
    assert asked == classes
    assert "ResourceQuota" not in {each["kind"] for each in rendered()}


def test_pods_with_our_image_go_only_to_nodes_that_can_run_it(everything: list[tuple[str, Document]]) -> None:
    seen = set()
    for name, spec in pod_specs(everything):
        if any(NOWHERE in each["image"] for each in spec["containers"]):
            # image.py makes it for this platform only.
            selector = spec["nodeSelector"]
            assert (selector["kubernetes.io/os"], selector["kubernetes.io/arch"]) == ("linux", "amd64"), name
            seen.add(name)

    assert seen == {"xpu-node", "xpu-extender", "xpu-uninstall"}


@pytest.mark.parametrize(
    "label",
    [
        # node-feature-discovery, by class and vendor, and as NVIDIA's operator configures it.
        "feature.node.kubernetes.io/pci-0300_10de.present=true",
        "feature.node.kubernetes.io/pci-0302_10de.present=true",
        "feature.node.kubernetes.io/pci-10de.present=true",
        "feature.node.kubernetes.io/pci-0380_1002.present=true",
        "feature.node.kubernetes.io/pci-1200_1002.present=true",
        # NVIDIA's feature discovery; AMD's operator and node labeller.
        "nvidia.com/gpu.present=true",
        "feature.node.kubernetes.io/amd-gpu=true",
        "amd.com/gpu.device-id=74a1",
        "cloud.google.com/gke-accelerator=nvidia-l4",
        "kubernetes.azure.com/accelerator=nvidia",
    ],
)
def test_a_node_gets_the_runtime_by_each_label_that_says_it_has_a_gpu(label: str) -> None:
    spec = daemonset(rendered())["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name, _, value = label.partition("=")

    assert _is_chosen(terms, {name: value})
    assert not _is_chosen(terms, {name: value, "yoyoworks.com/xpu": "disabled"})
    assert not _is_chosen(terms, {})


def _is_chosen(terms: Document, labels: dict[str, str]) -> bool:
    """Applies a node selector as the scheduler does (kubernetes.io, "Assigning Pods to Nodes")."""

    def holds(expression: Document) -> bool:
        value = labels.get(expression["key"])
        holding = {
            "In": value in expression.get("values", ()),
            "NotIn": value not in expression.get("values", ()),
            "Exists": value is not None,
        }
        return holding[expression["operator"]]

    return any(all(map(holds, term["matchExpressions"])) for term in terms["nodeSelectorTerms"])


@pytest.mark.parametrize(
    "values", [[], ["node.tolerations[0].key=gpus", "node.tolerations[0].operator=Exists"]]
)
def test_pods_that_ask_tolerate_the_taints_of_nodes_with_the_runtime(values: list[str]) -> None:
    found = rendered(*values)
    (runtime_class,) = (each for each in found if each["kind"] == "RuntimeClass")
    of_node = daemonset(found)["spec"]["template"]["spec"]["tolerations"]
    assert runtime_class["scheduling"]["tolerations"] == of_node


def test_the_uninstallation_finds_nodes_by_both_labels() -> None:
    (daemonset,) = (each for each in uninstalling() if each["kind"] == "DaemonSet")
    spec = daemonset["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    assert terms["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": keeper.LABEL, "operator": "In", "values": ["true"]}]},
        {"matchExpressions": [{"key": keeper.REMOVAL, "operator": "In", "values": ["pending"]}]},
    ]


def test_only_containers_that_enter_the_node_are_root(everything: list[tuple[str, Document]]) -> None:
    root = set()
    for name, spec in pod_specs(everything):
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            context = {**spec.get("securityContext", {}), **container["securityContext"]}
            assert context["readOnlyRootFilesystem"] is True
            if context.get("privileged"):
                root.add((name, container["name"]))
                continue
            assert context["runAsNonRoot"] is True and context["runAsUser"] > 0, container["name"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}

    assert root == {
        ("xpu-node", "install"), ("xpu-node", "device-plugin"), ("xpu-node", "keeper"), ("xpu-uninstall",
        "uninstall"),
    }  # fmt: skip


def test_describe_pod_shows_why_a_container_has_ended(everything: list[tuple[str, Document]]) -> None:
    # Without this, a wrong ConfigMap shows only as Init:Error.
    for name, spec in pod_specs(everything):
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            if container["name"] != "done":  # it has no output
                assert container["terminationMessagePolicy"] == "FallbackToLogsOnError", name


def test_roles_name_what_they_allow(everything: list[tuple[str, Document]]) -> None:
    for _, document in everything:
        for rule in document.get("rules", ()) if document["kind"] in ("Role", "ClusterRole") else ():
            words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "*" not in words, document["metadata"]["name"]
            assert "secrets" not in rule["resources"]
            if "leases" in rule["resources"] and document["metadata"]["name"] == "xpu-extender":
                assert rule["resourceNames"] == ["xpu-extender"]


def options_of(command: click.Command) -> set[str]:
    return {name for each in command.params for name in each.opts if name.startswith("-")}


def test_containers_run_commands_and_options_that_xpu_has(everything: list[tuple[str, Document]]) -> None:
    seen = set()
    for _, spec in pod_specs(everything):
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            words = [*container["command"], *container.get("args", ())]
            if words[0] != "/opt/xpu/bin/xpu":
                continue
            assert words[1] == "kubernetes"
            rest = words[3:] if words[2] == "on-node" else words[2:]
            context = click.Context(kubernetes)
            command = kubernetes.get_command(context, rest[0])
            assert command is not None, words
            assert {word.partition("=")[0] for word in rest[1:]} <= options_of(command), words
            seen.add(rest[0])

    assert seen == {
        "device-plugin", "extender", "install-node", "keep-node", "uninstall", "uninstall-node",
    }  # fmt: skip


def test_examples_ask_for_existing_resources() -> None:
    known = Resources(aliases=tuple(ALIASES))
    found = set()
    for file in sorted((MANIFESTS / "examples").glob("*.yaml")):
        for document in documents(file.read_text()):
            if document["kind"] == "Pod":
                assert document["spec"]["runtimeClassName"] == "xpu"
                demand = known.of_pod(document)
                assert not demand.is_empty, file.name
                limits = [
                    each.get("resources", {}).get("limits", {}) for each in document["spec"]["containers"]
                ]
                found |= {name for each in limits for name in each}

    assert {"yoyoworks.com/xpu", *Resources(aliases=("aliyun.com/gpu",)).names} <= found
