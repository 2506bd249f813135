"""The manifests as kustomize and helm make them: valid for each release of the API, and the same by both
ways.

helm and kustomize are the real ones, and the schemas the API's own (packaging/kubernetes/tools.py brings
them). Whether they do in a cluster what they say is tests/kubernetes' to show.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from support import REPOSITORY
from xpu_runtime import version
from xpu_runtime.cli.kubernetes import kubernetes
from xpu_runtime.config.compile import load_schema, read_config
from xpu_runtime.kubernetes import configuration
from xpu_runtime.kubernetes.device_plugin.node import LABELS
from xpu_runtime.kubernetes.device_plugin.offer import Card, units
from xpu_runtime.kubernetes.node_setup import keeper, pod, section
from xpu_runtime.kubernetes.resources import ALIASES, Resources
from xpu_runtime.request.assignment import read_keys

MANIFESTS = REPOSITORY / "packaging" / "kubernetes"
TOOLS = REPOSITORY / "build" / "kubernetes-tools"
RELEASES = [f"1.{minor}" for minor in range(28, 38)]
OVERLAYS = {
    "default": ".",
    "aliyun": "overlays/aliyun",
    "without-extender": "overlays/without-extender",
    "second-scheduler": "overlays/second-scheduler",
}
VALUES = {
    "default": [],
    "aliyun": ["kubernetes.aliases={aliyun.com/gpu}"],
    "without-extender": ["extender.enabled=false", "kubernetes.placement=node"],
    "second-scheduler": ["scheduler.enabled=true"],
}
#: What the manifests call our image until somebody says where it is: no registry answers to that name.
NOWHERE = "registry.invalid/xpu-kubernetes"
#: A kind that came after the oldest release, and the first that has it.
NEW = {("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"): 30,
       ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"): 30}  # fmt: skip
#: Not of the API server's own: the Prometheus operator's.
FOREIGN = {"monitoring.coreos.com/v1"}
#: Fields of an extender's configuration, kubescheduler.config.k8s.io/v1.
EXTENDER = {
    "urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "weight", "bindVerb", "enableHTTPS",
    "tlsConfig", "httpTimeout", "nodeCacheCapable", "managedResources", "ignorable",
}  # fmt: skip

Document = dict[str, Any]


def _run(program: str, *arguments: str) -> str:
    done = subprocess.run([TOOLS / "bin" / program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def kustomized(folder: str | Path) -> list[Document]:
    """`folder`: of MANIFESTS, or with its whole path."""
    return _documents(_run("kubectl", "kustomize", str(MANIFESTS / folder)))


def rendered(*values: str, hooks: bool = False, release: str = RELEASES[-1]) -> list[Document]:
    sets = [word for value in values for word in ("--set", value)]
    options = ["--kube-version", release, "--set", f"image.repository={NOWHERE}"]
    options += [] if hooks else ["--no-hooks"]
    return _documents(
        _run("helm", "template", "xpu", str(MANIFESTS / "chart"), "-n", "xpu-system", *options, *sets)
    )


@pytest.fixture(scope="module")
def everything() -> list[tuple[str, Document]]:
    """Each document of each way to install, with where it is from; those that say the same once."""
    found: dict[str, tuple[str, Document]] = {}

    def add(source: str, documents: list[Document]) -> None:
        for document in documents:
            found.setdefault(json.dumps(_normal(document), sort_keys=True), (source, document))

    for folder in [*OVERLAYS.values(), "uninstall"]:
        add(folder, kustomized(folder))
    for file in sorted(MANIFESTS.glob("components/*/*.yaml")):
        if file.name != "kustomization.yaml":
            add(file.parent.name, _documents(file.read_text()))
    for file in sorted(MANIFESTS.glob("examples/*.yaml")):
        add(file.name, _documents(file.read_text()))
    for name, values in VALUES.items():
        add(f"chart, {name}", rendered(*values, hooks=True))
    more = ["monitoring.enabled=true", "criticalPods.quota=true", "networkPolicy.enabled=false"]
    add("chart, more", rendered(*more, "image.pullSecrets={registry}", "extender.replicas=1"))
    return list(found.values())


class _Api:
    """The schemas of one release."""

    def __init__(self, release: str) -> None:
        self._minor = int(release.partition(".")[2])
        self._folder = TOOLS / "schemas" / release
        definitions = json.loads((self._folder / "_definitions.json").read_text())
        self._store = {"/api/_definitions.json": definitions, "file:///api/_definitions.json": definitions}

    def problems(self, document: Document) -> Iterator[str]:
        """What is wrong with it; nothing where this release does not know the kind yet."""
        api, kind = document["apiVersion"], document["kind"]
        if api in FOREIGN or NEW.get((api, kind), 0) > self._minor:
            return
        group, _, name = api.rpartition("/")
        file = f"{kind.lower()}-{group.partition('.')[0] + '-' if group else ''}{name}.json"
        schema = json.loads((self._folder / file).read_text())
        resolver = jsonschema.RefResolver("file:///api/", schema, store=self._store)
        for error in jsonschema.Draft202012Validator(schema, resolver=resolver).iter_errors(document):
            yield f"{kind} {document['metadata']['name']}: {'.'.join(map(str, error.path))}: {error.message}"


@pytest.mark.parametrize("release", RELEASES)
def test_each_object_is_one_that_the_api_takes(release: str, everything: list[tuple[str, Document]]) -> None:
    api = _Api(release)

    problems = [
        f"{source}: {problem}" for source, document in everything for problem in api.problems(document)
    ]

    assert problems == []
    assert len(everything) > 40


def test_the_check_finds_what_an_api_refuses() -> None:
    wrong = next(each for each in kustomized(".") if each["kind"] == "DaemonSet")
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    wrong["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = [1]

    problems = list(_Api("1.28").problems(wrong))

    assert any("hostPid" in each for each in problems), problems
    assert any("maxUnavailable" in each for each in problems), problems


def _key(document: Document) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def _normal(document: Document) -> Document:
    """Without what only helm says: its labels, and the checksum that makes pods anew."""
    document = json.loads(json.dumps(document))
    labels = document["metadata"].get("labels", {})
    for name in ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance",
                 "app.kubernetes.io/version"):  # fmt: skip
        labels.pop(name, None)
    template = document.get("spec", {}).get("template", {}).get("metadata", {})
    annotations = template.get("annotations", {})
    if annotations.pop("checksum/configuration", None) and not annotations:
        del template["annotations"]
    if document["kind"] == "ConfigMap":
        document["data"] = {name: yaml.safe_load(text) for name, text in document["data"].items()}
    return document


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_chart_says_the_same_as_kustomize(name: str) -> None:
    by_kustomize = {_key(each): _normal(each) for each in kustomized(OVERLAYS[name])}
    # kustomize does not know the cluster's version: its scheduler is of the one that is written there.
    component = yaml.safe_load((MANIFESTS / "components/scheduler/kustomization.yaml").read_text())
    (scheduler,) = component["images"]
    by_helm = {_key(each): _normal(each) for each in rendered(*VALUES[name], release=scheduler["newTag"])}

    # helm makes the namespace itself (--create-namespace).
    del by_kustomize[("Namespace", "", "xpu-system")]

    assert by_helm.keys() == by_kustomize.keys()
    for key, document in by_kustomize.items():
        assert by_helm[key] == document, key


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


def _images(documents: list[Document]) -> set[str]:
    return {
        container["image"]
        for each in documents
        if each["kind"] in ("DaemonSet", "Deployment", "Job")
        for spec in [each["spec"]["template"]["spec"]]
        for container in [*spec.get("initContainers", ()), *spec["containers"]]
    }


_SCHEDULERS = "registry.k8s.io/kube-scheduler"


def _ours(documents: list[Document]) -> set[str]:
    return {each for each in _images(documents) if not each.startswith(f"{_SCHEDULERS}:")}


def test_no_stranger_s_image_is_run_where_nobody_has_said_where_ours_is() -> None:
    for folder in [*OVERLAYS.values(), "uninstall"]:
        assert _ours(kustomized(folder)) == {f"{NOWHERE}:{version.VERSION}"}, folder
    # By one who takes the parts, too.
    for folder in ("base", "base/extender"):
        assert _ours(kustomized(folder)) == {NOWHERE}, folder

    done = subprocess.run(
        [TOOLS / "bin" / "helm", "template", "xpu", MANIFESTS / "chart"], capture_output=True, text=True
    )

    assert done.returncode != 0
    assert "--set image.repository=REGISTRY/xpu-kubernetes" in done.stderr


def _commands_of_the_page(beginning: str) -> str:
    """The lines of docs/kubernetes.md that a reader copies, from the one that begins so, up to the first
    that asks a cluster."""
    lines = (REPOSITORY / "docs/kubernetes.md").read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip().startswith(beginning))
    found: list[str] = []
    for line in lines[first:]:
        if "kubectl" in line:
            break
        found.append(line)
    indent = len(lines[first]) - len(lines[first].lstrip())
    return "\n".join(line[indent:] for line in found)


@pytest.mark.parametrize("folder", OVERLAYS.values())
def test_the_page_s_kustomization_says_once_where_the_image_is(folder: str, tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS, tmp_path / "packaging/kubernetes")

    def run(commands: str) -> None:
        text = commands.replace("REGISTRY", "registry.example.com:5000/gpus")
        subprocess.run(["sh", "-euc", text], cwd=tmp_path, check=True)

    run(_commands_of_the_page("mkdir my-cluster &&"))
    file = tmp_path / "my-cluster/kustomization.yaml"
    file.write_text(
        file.read_text().replace("[../packaging/kubernetes]", f"[../packaging/kubernetes/{folder}]")
    )
    run(_commands_of_the_page("mkdir -p my-cluster/uninstall"))

    for found in (tmp_path / "my-cluster", tmp_path / "my-cluster/uninstall"):
        image = f"registry.example.com:5000/gpus/xpu-kubernetes:{version.VERSION}"
        assert _ours(kustomized(found)) == {image}
    whole = {_key(each) for each in kustomized(tmp_path / "my-cluster")}
    assert whole == {_key(each) for each in kustomized(folder)}
    left = {_key(each) for each in kustomized(tmp_path / "my-cluster/uninstall")}
    assert left == {_key(each) for each in kustomized("uninstall")}


def test_helm_finds_nothing_to_say_about_the_chart() -> None:
    said = _run("helm", "lint", "--strict", str(MANIFESTS / "chart"))

    assert "0 chart(s) failed" in said
    assert "WARNING" not in said


def test_values_are_what_nodes_take() -> None:
    ours = load_schema()["properties"]["kubernetes"]["properties"]
    values = json.loads((MANIFESTS / "chart/values.schema.json").read_text())
    chart = values["properties"]["kubernetes"]["properties"]

    # Where the chart says it in words of its own. helm's expressions (Go's) have no look-ahead, and $ is the
    # text's end there anyway.
    checks = (MANIFESTS / "chart/templates/_names.tpl").read_text()
    (pattern,) = re.findall(r'regexMatch "(.*?)" \$k\.memoryUnit', checks)
    assert pattern == ours["memory_unit"]["pattern"].replace(r"(?!\n)", "")
    assert chart["memoryUnit"]["maxLength"] == ours["memory_unit"]["maxLength"]
    assert chart["aliases"]["items"]["enum"] == ours["aliases"]["items"]["enum"] == list(ALIASES)
    assert sorted(chart["placement"]["enum"]) == sorted(ours["placement"]["enum"])
    policy = load_schema()["properties"]["placement"]["properties"]["policy"]
    assert values["properties"]["extender"]["properties"]["policy"]["enum"] == policy["enum"]


_POLICY = ("ValidatingAdmissionPolicy", "", "xpu-node-own-node")


def test_pods_on_a_node_change_no_other_node_where_the_api_can_hold_them_to_it() -> None:
    for release in RELEASES:
        has_policy = _POLICY in map(_key, rendered(release=release))
        assert has_policy is (int(release[2:]) >= 30), release
    assert _POLICY not in map(_key, rendered("nodeRestriction.enabled=false"))
    assert _POLICY in map(_key, rendered("nodeRestriction.enabled=true", release="1.28"))
    for folder in OVERLAYS.values():
        documents = {_key(each): each for each in kustomized(folder)}
        assert _POLICY in documents  # what it says: test_node_restriction.py
        binding = documents["ValidatingAdmissionPolicyBinding", "", "xpu-node-own-node"]["spec"]
        assert binding == {"policyName": "xpu-node-own-node", "validationActions": ["Deny"]}


def test_where_a_quota_is_wanted_for_critical_pods_each_namespace_of_ours_can_have_one() -> None:
    classes = {"system-node-critical", "system-cluster-critical"}
    component = _documents((MANIFESTS / "components/critical-pods/quota.yaml").read_text())
    by_helm = [each for each in rendered("criticalPods.quota=true") if each["kind"] == "ResourceQuota"]
    uninstall = [each for each in kustomized("uninstall") if each["kind"] == "ResourceQuota"]

    assert [_normal(each) for each in by_helm] == [_normal(each) for each in component]
    assert [each["metadata"]["namespace"] for each in uninstall] == ["xpu-uninstall"]
    for quota in (*component, *uninstall):
        (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
        assert (scope["scopeName"], scope["operator"], set(scope["values"])) == (
            "PriorityClass",
            "In",
            classes,
        )
    asked = {
        each["spec"]["template"]["spec"].get("priorityClassName")
        for each in [*rendered("scheduler.enabled=true"), *kustomized("uninstall")]
        if "template" in each.get("spec", {})
    }
    assert asked == classes
    assert "ResourceQuota" not in {each["kind"] for each in rendered()}


@pytest.mark.parametrize(
    "of_cluster, tag",
    [
        ("v1.31.4", "v1.31.4"),
        ("v1.31.4-eks-7f9249a", "v1.31.4"),
        ("v1.30.5+k3s1", "v1.30.5"),
        ("v1.29.1-gke.1589000", "v1.29.1"),
    ],
)
def test_a_second_scheduler_is_of_the_cluster_s_version(of_cluster: str, tag: str) -> None:
    found = _images(rendered("scheduler.enabled=true", release=of_cluster))
    chosen = _images(rendered("scheduler.enabled=true", "scheduler.tag=v1.30.9", release=of_cluster))

    assert {each for each in found if each.startswith(_SCHEDULERS)} == {f"{_SCHEDULERS}:{tag}"}
    assert {each for each in chosen if each.startswith(_SCHEDULERS)} == {f"{_SCHEDULERS}:v1.30.9"}


def test_what_runs_our_image_goes_where_it_can_run(everything: list[tuple[str, Document]]) -> None:
    seen = set()
    for name, spec in _pod_specs(everything):
        if any(NOWHERE in each["image"] for each in spec["containers"]):
            # image.py makes it for no other.
            selector = spec["nodeSelector"]
            assert (selector["kubernetes.io/os"], selector["kubernetes.io/arch"]) == ("linux", "amd64"), name
            seen.add(name)

    assert seen == {"xpu-node", "xpu-extender", "xpu-uninstall"}


def _daemonset(documents: list[Document]) -> Document:
    found: Document = next(
        each for each in documents if _key(each) == ("DaemonSet", "xpu-system", "xpu-node")
    )
    return found


@pytest.mark.parametrize(
    "label",
    [
        # node-feature-discovery, by class and vendor, and as NVIDIA's operator has it configured.
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
    spec = _daemonset(kustomized("."))["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name, _, value = label.partition("=")

    assert _is_chosen(terms, {name: value})
    assert not _is_chosen(terms, {name: value, "yoyoworks.com/xpu": "disabled"})
    assert not _is_chosen(terms, {})


def _is_chosen(terms: Document, labels: dict[str, str]) -> bool:
    """As the scheduler goes by a node selector (kubernetes.io, "Assigning Pods to Nodes")."""

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
def test_pods_that_ask_may_go_where_the_runtime_is(values: list[str]) -> None:
    for documents in (rendered(*values), kustomized(".")):
        (runtime_class,) = (each for each in documents if each["kind"] == "RuntimeClass")
        of_node = _daemonset(documents)["spec"]["template"]["spec"]["tolerations"]
        assert runtime_class["scheduling"]["tolerations"] == of_node


def test_what_is_left_on_nodes_is_looked_for_by_both_labels() -> None:
    (daemonset,) = (each for each in kustomized("uninstall") if each["kind"] == "DaemonSet")
    spec = daemonset["spec"]["template"]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    assert terms["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": keeper.LABEL, "operator": "In", "values": ["true"]}]},
        {"matchExpressions": [{"key": keeper.REMOVAL, "operator": "In", "values": ["pending"]}]},
    ]


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
def test_who_has_installed_is_told_what_comes_next(values: list[str], said: str, not_said: str) -> None:
    sets = [word for value in (f"image.repository={NOWHERE}", *values) for word in ("--set", value)]

    notes = _run(
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


def test_what_the_plugin_says_of_pods_is_in_the_page() -> None:
    page = (REPOSITORY / "docs/reference/kubernetes.md").read_text()
    source = "".join(each.read_text() for each in (REPOSITORY / "src/xpu_runtime/kubernetes").rglob("*.py"))
    reasons = set(re.findall(r'"(XPU[A-Z][a-z]\w*)"', source))

    assert reasons == {"XPUReserved", "XPURefused", "XPUNoRuntimeClass"}
    assert [each for each in reasons if f"`{each}" not in page] == []


def test_the_page_has_each_label_that_a_node_gets() -> None:
    page = (REPOSITORY / "docs/reference/kubernetes.md").read_text()

    given = [
        *(f"xpu.{name}" for name in LABELS),
        keeper.LABEL.partition("/")[2],
        keeper.REMOVAL.partition("/")[2],
    ]

    assert [name for name in given if f"`{name}`" not in page] == []


def test_what_the_page_expects_a_node_to_offer_is_what_it_offers() -> None:
    page = (REPOSITORY / "docs/kubernetes.md").read_text()
    (mib,) = re.findall(r"^    gpu-1 .* (\d+)/\1 MiB ", page, re.MULTILINE)
    resources = Resources()
    card = Card("GPU-0", int(mib) << 20, int(mib) << 20)

    offered = {name: str(units(name, card, resources)) for name in sorted(resources.names)}

    assert json.dumps(offered, separators=(",", ":"))[1:] in page


def test_versions_are_ours() -> None:
    chart = yaml.safe_load((MANIFESTS / "chart" / "Chart.yaml").read_text())
    images = {
        image["newTag"]
        for file in MANIFESTS.rglob("kustomization.yaml")
        for image in yaml.safe_load(file.read_text()).get("images", [])
        if image["name"] == NOWHERE
    }

    assert {chart["version"], chart["appVersion"]} | images == {version.VERSION}


def _pod_specs(everything: list[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    for _, document in everything:
        if document["kind"] in ("DaemonSet", "Deployment", "Job"):
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def test_only_what_enters_the_node_is_root(everything: list[tuple[str, Document]]) -> None:
    root = set()
    for name, spec in _pod_specs(everything):
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
    # Else a wrong ConfigMap is an Init:Error that says nothing.
    for name, spec in _pod_specs(everything):
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            if container["name"] != "done":  # which has nothing to say
                assert container["terminationMessagePolicy"] == "FallbackToLogsOnError", name


def test_roles_name_what_they_allow(everything: list[tuple[str, Document]]) -> None:
    for _, document in everything:
        for rule in document.get("rules", ()) if document["kind"] in ("Role", "ClusterRole") else ():
            words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "*" not in words, document["metadata"]["name"]
            assert "secrets" not in rule["resources"]
            if "leases" in rule["resources"] and document["metadata"]["name"] == "xpu-extender":
                assert rule["resourceNames"] == ["xpu-extender"]


def _scheduler_configurations() -> Iterator[tuple[str, Document]]:
    for file in sorted((MANIFESTS / "scheduler").glob("*.yaml")):
        yield file.name, yaml.safe_load(file.read_text())
    for name, documents in (
        ("kustomize", kustomized("overlays/second-scheduler")),
        ("chart", rendered("scheduler.enabled=true")),
    ):
        found = next(each for each in documents if _key(each) == ("ConfigMap", "xpu-system", "xpu-scheduler"))
        yield name, yaml.safe_load(found["data"]["config.yaml"])


def test_a_scheduler_sends_us_what_asks_for_slices_and_waits_where_we_are_down() -> None:
    for name, found in _scheduler_configurations():
        assert found["apiVersion"] == "kubescheduler.config.k8s.io/v1", name
        (extender,) = found["extenders"]
        assert extender.keys() <= EXTENDER, name
        assert extender["ignorable"] is False, name
        assert extender["nodeCacheCapable"] is True, name
        verbs = [extender[f"{verb}Verb"] for verb in ("filter", "prioritize", "preempt", "bind")]
        assert verbs == ["filter", "prioritize", "preempt", "bind"], name
        assert extender["enableHTTPS"] is True, name
        assert {"caFile", "certFile", "keyFile"} <= extender["tlsConfig"].keys(), name


def _options(command: click.Command) -> set[str]:
    return {name for each in command.params for name in each.opts if name.startswith("-")}


def test_what_containers_run_is_what_xpu_has(everything: list[tuple[str, Document]]) -> None:
    seen = set()
    for _, spec in _pod_specs(everything):
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            words = [*container["command"], *container.get("args", ())]
            if words[0] != "/opt/xpu/bin/xpu":
                continue
            assert words[1] == "kubernetes"
            rest = words[3:] if words[2] == "on-node" else words[2:]
            context = click.Context(kubernetes)
            command = kubernetes.get_command(context, rest[0])
            assert command is not None, words
            assert {word.partition("=")[0] for word in rest[1:]} <= _options(command), words
            seen.add(rest[0])

    assert seen == {
        "device-plugin", "extender", "install-node", "keep-node", "uninstall", "uninstall-node",
    }  # fmt: skip


@pytest.mark.parametrize(
    "aliases, by_kustomize",
    [
        ((), ["kube-scheduler.yaml", "kustomize"]),
        (("aliyun.com/gpu",), ["kube-scheduler-aliyun.yaml"]),
        (("nvidia.com/mps",), []),
        (tuple(ALIASES), []),
    ],
)
def test_a_scheduler_sends_us_each_resource_that_nodes_offer(
    aliases: tuple[str, ...], by_kustomize: list[str]
) -> None:
    offered = set(Resources(aliases=aliases).names)
    values = ["scheduler.enabled=true", f"kubernetes.aliases={{{','.join(aliases)}}}"]
    documents = rendered(*(values if aliases else values[:1]))
    map_ = next(each for each in documents if _key(each) == ("ConfigMap", "xpu-system", "xpu-scheduler"))
    by_name = dict(_scheduler_configurations())

    for found in (yaml.safe_load(map_["data"]["config.yaml"]), *(by_name[name] for name in by_kustomize)):
        (extender,) = found["extenders"]
        assert {each["name"] for each in extender["managedResources"]} == offered


def test_each_scheduler_s_resources_are_compared_with_what_nodes_offer() -> None:
    # That is: none was added that the test above does not know.
    compared = {"kube-scheduler.yaml", "kube-scheduler-aliyun.yaml", "kustomize", "chart"}

    assert {name for name, _ in _scheduler_configurations()} == compared


def test_examples_ask_for_what_there_is() -> None:
    known = Resources(aliases=tuple(ALIASES))
    found = set()
    for file in sorted((MANIFESTS / "examples").glob("*.yaml")):
        for document in _documents(file.read_text()):
            if document["kind"] == "Pod":
                assert document["spec"]["runtimeClassName"] == "xpu"
                demand = known.of_pod(document)
                assert not demand.is_empty, file.name
                limits = [
                    each.get("resources", {}).get("limits", {}) for each in document["spec"]["containers"]
                ]
                found |= {name for each in limits for name in each}

    assert {"yoyoworks.com/xpu", *Resources(aliases=("aliyun.com/gpu",)).names} <= found


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_configuration_is_one_that_nodes_take(name: str, tmp_path: Path) -> None:
    for documents in (kustomized(OVERLAYS[name]), rendered(*VALUES[name])):
        found = next(each for each in documents if _key(each) == ("ConfigMap", "xpu-system", "xpu"))
        file = tmp_path / "config.yaml"
        file.write_text(found["data"]["config.yaml"])
        values = configuration.read(str(file)).kubernetes
        file.write_text(section.written("", {**values, "node_name": "n1"}, "config.yaml"))

        config, _, problems = read_config(str(file))

        assert problems == []
        assert config.kubernetes_require_assignment is True
        assert config.kubernetes_placement == ("node" if name == "without-extender" else "extender")


def test_helm_s_policy_is_one_that_the_extender_reads_and_starts_anew_for(tmp_path: Path) -> None:
    sums = set()
    for policy in ("binpack", "spread"):
        found = {_key(each): each for each in rendered(f"extender.policy={policy}")}
        file = tmp_path / "config.yaml"
        file.write_text(found["ConfigMap", "xpu-system", "xpu"]["data"]["config.yaml"])
        assert configuration.read(str(file)).policy == policy
        template = found["Deployment", "xpu-system", "xpu-extender"]["spec"]["template"]
        sums.add(template["metadata"]["annotations"]["checksum/configuration"])

    assert len(sums) == 2


@pytest.mark.parametrize("name", [each for each in OVERLAYS if each != "without-extender"])
def test_the_extender_reads_the_configuration_that_nodes_have(name: str, tmp_path: Path) -> None:
    for documents in (kustomized(OVERLAYS[name]), rendered(*VALUES[name])):
        found = {_key(each): each for each in documents}
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


def test_the_secrets_are_ones_that_both_ends_take(tmp_path: Path) -> None:
    done = subprocess.run([MANIFESTS / "make-secrets"], capture_output=True, text=True, check=True)
    secrets = {each["metadata"]["name"]: each for each in _documents(done.stdout)}
    assert list(secrets) == ["xpu-keys", "xpu-extender-tls", "xpu-scheduler-tls"]
    assert [problem for each in secrets.values() for problem in _Api("1.28").problems(each)] == []
    for name, secret in secrets.items():
        for key, text in secret["data"].items():
            (tmp_path / f"{name}-{key}").write_bytes(base64.b64decode(text))

    assert len(read_keys(str(tmp_path / "xpu-keys-keys"))) == 1
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "xpu-extender-tls-tls.crt", tmp_path / "xpu-extender-tls-tls.key")
    server.load_verify_locations(tmp_path / "xpu-extender-tls-ca.crt")
    server.verify_mode = ssl.CERT_REQUIRED
    for client_name in ("xpu-scheduler-tls", "xpu-extender-tls"):
        client = ssl.create_default_context(cafile=str(tmp_path / f"{client_name}-ca.crt"))
        client.load_cert_chain(tmp_path / f"{client_name}-tls.crt", tmp_path / f"{client_name}-tls.key")
        assert _shakes_hands(client, server, "xpu-extender.xpu-system.svc")
    with pytest.raises(ssl.SSLError):
        _shakes_hands(client, server, "elsewhere.xpu-system.svc")


@pytest.mark.parametrize(
    "words, made",
    [
        (["keys"], ["xpu-keys"]),
        (["certificates"], ["xpu-extender-tls", "xpu-scheduler-tls"]),
        (["-n", "gpus", "certificates"], ["xpu-extender-tls", "xpu-scheduler-tls"]),
        (["-n", "gpus"], ["xpu-keys", "xpu-extender-tls", "xpu-scheduler-tls"]),
    ],
)
def test_certificates_are_made_anew_without_the_keys_that_pods_were_signed_with(
    words: list[str], made: list[str]
) -> None:
    done = subprocess.run([MANIFESTS / "make-secrets", *words], capture_output=True, text=True, check=True)

    found = [each["metadata"] for each in _documents(done.stdout)]
    assert [each["name"] for each in found] == made
    assert {each["namespace"] for each in found} == {"gpus" if "gpus" in words else "xpu-system"}


def test_installing_twice_leaves_the_keys_that_are_there() -> None:
    text = (REPOSITORY / "docs/kubernetes.md").read_text()

    assert "make-secrets | kubectl create -f -" in text
    assert "make-secrets | kubectl apply" not in text


def test_one_more_key_is_a_line_for_those_that_are_there(tmp_path: Path) -> None:
    done = subprocess.run([MANIFESTS / "make-secrets", "line"], capture_output=True, text=True, check=True)
    keys = tmp_path / "keys"
    keys.write_text(f"old {'ab' * 32}\n{done.stdout}")

    assert len(read_keys(str(keys))) == 2


@pytest.mark.parametrize(
    "words", [["key"], ["--help-me"], ["gpus"], ["keys", "line"], ["-n"], ["-n", "--help"], ["-n", "Gpus"]]
)
def test_secrets_are_made_for_no_word_that_is_not_known(words: list[str]) -> None:
    done = subprocess.run([MANIFESTS / "make-secrets", *words], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: make-secrets" in done.stderr


def test_who_asks_what_make_secrets_does_gets_no_secret() -> None:
    done = subprocess.run([MANIFESTS / "make-secrets", "--help"], capture_output=True, text=True, check=True)

    assert "make-secrets [-n NAMESPACE]" in done.stdout
    assert "kind: Secret" not in done.stdout


def _shakes_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    """In memory, as kube-scheduler does with `serverName`; ssl.SSLError where one does not take the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        left = []
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                left.append(end)
        if not left:
            return True
    return False
