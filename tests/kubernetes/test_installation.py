"""Install and Uninstall of docs/kubernetes.md, by Helm and a cluster's own controllers; and the tutorial of a
first slice in a cluster, with an upgrade after it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import REPOSITORY, pages

from . import manifests
from .adapted import OUR_NAME
from .cluster import IMAGE, NODE
from .conftest import Pods
from .daemons import until
from .installation import OUR_IMAGE, InstalledCluster
from .objects import container, pod

LABEL, REMOVAL = "yoyoworks.com/xpu.runtime", "yoyoworks.com/xpu.removal"
#: The resources of four T4, each of 15 GiB.
_OFFERED = {
    "yoyoworks.com/xpu": "4", "yoyoworks.com/xpu-shares": "400", "yoyoworks.com/xpu-mem": "60",
    "yoyoworks.com/xpu-cores": "400",
}  # fmt: skip
_SLICE = {"yoyoworks.com/xpu-mem": 4, "yoyoworks.com/xpu-cores": 30}
_CONFIG = "/etc/containerd/config.toml"
#: How long kubectl waits.
_PATIENCE = "--timeout=120s"


class Installation:
    """The installation, and the state of the cluster and its node."""

    def __init__(self, cluster: InstalledCluster) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.pods = Pods(cluster)
        self.before = self.text(_CONFIG)

    def install(self) -> None:
        """Installs as the page says, and waits until the node offers slices."""
        values = "image.repository=registry.invalid/xpu-kubernetes,kubernetes.aliases={aliyun.com/gpu}"
        self.cluster.helm("install", "xpu", "packaging/kubernetes/chart", "--set", values)
        self.cluster.kubectl("label", "node", NODE, "--overwrite", "yoyoworks.com/xpu=enabled")
        self.wait_until_set_up()
        for name in ("deployment/xpu-extender", "daemonset/xpu-node"):
            self.kubectl("rollout", "status", name, _PATIENCE)
        self.wait(lambda: self.offered() == _OFFERED, "the node offers its slices")

    def wait_until_set_up(self) -> None:
        """Waits for the node's set-up, then restarts containerd: this node has no systemd to do it."""
        self.wait(lambda: "/opt/xpu" in self.text(_CONFIG), "containerd's configuration names the runtime")
        self.wait(lambda: self.labels().get(LABEL) == "true", "the cluster knows that it is there")
        self.restart_containerd()

    def restart_containerd(self) -> None:
        self.cluster.containerd.stop()
        self.cluster.containerd.start()

    def kubectl(self, *words: str, text: str = "") -> str:
        return self.cluster.kubectl("--namespace", manifests.NAMESPACE, *words, text=text)

    def labels(self) -> dict[str, str]:
        """The node's labels that we set; without the one that a person sets."""
        found = self.api.node(NODE)["metadata"]["labels"]
        return {name: found[name] for name in found if name.startswith("yoyoworks.com/xpu.")}

    def offered(self) -> dict[str, str]:
        """The node's resources with our names."""
        found = self.api.node(NODE)["status"]["allocatable"]
        return {name: value for name, value in found.items() if name.startswith("yoyoworks.com/")}

    def on_node(self, path: str) -> Path:
        return Path(f"/proc/{self.cluster.init}/root{path}")

    def text(self, path: str) -> str:
        return self.on_node(path).read_text()

    def pod(self) -> dict[str, Any]:
        """The DaemonSet's pod on the node, if it is not being removed; {}: there is none."""
        path = f"/api/v1/namespaces/{manifests.NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=node"
        pods = self.api.call("GET", path)["items"]
        return next((each for each in pods if "deletionTimestamp" not in each["metadata"]), {})

    def is_ready(self) -> bool:
        statuses = self.pod().get("status", {}).get("containerStatuses", ())
        return bool(statuses) and all(each["ready"] for each in statuses)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        until(condition, what, 120, self.explain)

    def explain(self) -> str:
        found = self.pod()
        names = ("install", "device-plugin", "keeper")
        logs = [f"{name}: {self.cluster.log_of(found, name)}" for name in names if found]
        return "\n".join([json.dumps(found.get("status"), indent=1), *logs])

    def end_containers(self) -> None:
        """Deletes the pods, and waits until no container of theirs needs our programs for its end."""
        self.pods.delete_all()
        label = 'labels."io.kubernetes.pod.namespace"==default'
        theirs = set(self.cluster.ctr("containers", "ls", "-q", label).stdout.split())
        self.wait(lambda: not theirs & set(self.cluster.ctr("tasks", "ls", "-q").stdout.split()), "they end")

    def end_pod(self, *options: str) -> None:
        """Deletes the pod with kubectl; waits until its containers have ended and another pod is ready."""
        old = self.pod()
        containers = [each["containerID"].split("//")[1] for each in old["status"]["containerStatuses"]]
        self.kubectl("delete", "pod", old["metadata"]["name"], *options)
        before = None, old["metadata"]["uid"]
        self.wait(lambda: self.pod().get("metadata", {}).get("uid") not in before, "there is another pod")
        self.wait(self.is_ready, "the next pod is ready")

        def have_ended() -> bool:
            running = self.cluster.ctr("task", "ls", "--quiet").stdout.split()
            return not set(containers) & set(running)

        self.wait(have_ended, "the containers of the one before have ended")

    def remove(self, *options: str) -> None:
        """Uninstalls what Helm installed, and deletes the namespace."""
        self.cluster.helm("uninstall", "xpu", *options)
        # While pods end, their namespace is looked at again only after half of their grace period.
        self.kubectl("wait", "--for=delete", "pod", "--all", _PATIENCE)
        self.cluster.kubectl("delete", "namespace", manifests.NAMESPACE, _PATIENCE)

    def clean(self) -> None:
        """Applies uninstall.yaml, which removes what is left on nodes."""
        text = self.cluster.apply_uninstall()
        status = ("rollout", "status", "daemonset/xpu-uninstall", _PATIENCE)
        self.cluster.kubectl("--namespace", "xpu-uninstall", *status)
        self.assert_is_gone()
        self.cluster.kubectl("delete", "-f", "-", _PATIENCE, text=text)

    def assert_is_there(self) -> None:
        assert "/opt/xpu/bin/xpu-container-runtime" in self.text(_CONFIG)
        assert self.on_node("/opt/xpu/bin/xpu").exists()
        assert self.on_node("/etc/xpu/kubernetes/keys").exists()
        assert self.labels()[LABEL] == "true"

    def assert_is_gone(self) -> None:
        assert self.text(_CONFIG) == self.before
        assert self.labels() == {}
        annotations = self.api.node(NODE)["metadata"].get("annotations", {})
        assert [name for name in annotations if "xpu" in name] == []
        for path in ("/opt/xpu", "/etc/xpu"):
            assert not self.on_node(path).exists(), path

    def run_slice(self, name: str) -> None:
        """Runs a container with the slice that it asks for, to its end."""
        self.pods.create(pod(name, container("cuda-probe", "info", limits=_SLICE)))
        self.pods.wait(name, "Succeeded")
        assert "of 4096 MiB" in self.pods.log(name)


@pytest.fixture(scope="module")
def whole(installed: Path, kubernetes_image: Path) -> Iterator[InstalledCluster]:
    """A cluster with controllers, and a node without the runtime."""
    found = InstalledCluster(installed, kubernetes_image)
    try:
        found.start()
        found.restart_scheduler(extenders=manifests.scheduler_extenders(found.secrets, found.extender_port))
        yield found
    finally:
        left = found.close()
    assert left == []


@pytest.fixture
def installation(whole: InstalledCluster) -> Iterator[Installation]:
    """An installation with the namespace and the Secrets, in which a slice has run."""
    whole.prepare()
    found = Installation(whole)
    found.install()
    found.run_slice("first")
    yield found
    found.pods.delete_all()


def test_the_runtime_stays_as_long_as_the_daemonset_does(installation: Installation) -> None:
    installation.pods.create(pod("slice", container(limits=_SLICE)))
    installation.pods.wait("slice", "Running")
    before = installation.cluster.node.json("ps")

    installation.end_pod()
    installation.assert_is_there()
    installation.end_pod("--force", "--grace-period=0")
    installation.assert_is_there()

    assert installation.cluster.node.json("ps") == before
    installation.run_slice("second")
    # When kubectl returns, the node is as it was before, except for what a running container calls.
    installation.kubectl("delete", "daemonset", "xpu-node", "--cascade=foreground", _PATIENCE)
    assert installation.text(_CONFIG) == installation.before
    assert installation.labels() == {REMOVAL: "pending"}
    assert not installation.on_node("/etc/xpu/kubernetes/keys").exists()
    (row,) = installation.cluster.node.json("ps")
    assert row["pid"] == before[0]["pid"]
    installation.wait(lambda: set(installation.offered().values()) == {"0"}, "the node offers nothing")
    installation.remove()

    installation.restart_containerd()
    installation.pods.delete_all()
    installation.wait(lambda: installation.cluster.node.json("ps") == [], "its container has ended")
    installation.clean()


def test_the_runtime_goes_when_everything_is_deleted_at_once(installation: Installation) -> None:
    installation.remove("--no-hooks")
    installation.wait(lambda: not installation.on_node("/opt/xpu").exists(), "the runtime is gone")
    assert installation.text(_CONFIG) == installation.before
    # The right to change the node is deleted with everything else.
    assert installation.labels()[LABEL] == "true"
    installation.clean()


class Reader:
    """A reader who follows pages, in a folder with the clone's `packaging`."""

    #: Of the image that an upgrade brings.
    TAG = "next"
    #: The image of the page's pods.
    _IMAGE = "docker.io/library/debian:12"

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._cluster = cluster = installation.cluster
        # Earlier tests have left these.
        cluster.kubectl("label", "node", NODE, "yoyoworks.com/xpu-")
        cluster.kubectl("delete", "events", "--all")
        cluster.ctr("image", "tag", "--force", IMAGE, self._IMAGE)
        cluster.ctr("image", "tag", "--force", OUR_IMAGE, f"{OUR_NAME}:{self.TAG}")

    def follow(self, page: str, test: str = "") -> None:
        """Carries out the page's steps; the test fails if a command prints something else."""
        for step in pages.steps(REPOSITORY / page, test):
            if isinstance(step, pages.File):
                # There is no network of pods.
                text = step.text.replace("ClassName: xpu\n", "ClassName: xpu\n  hostNetwork: true\n")
                (self._cluster.clone / step.name).write_text(text)
                continue
            said = self._say(step.words)
            if not pages.matches(said, step.prints):
                pods = self._say("kubectl describe pods")
                pytest.fail(f"# {step.words}\n{said}\n\nthe page has\n{step.prints}\n{pods}")

    def _say(self, words: str) -> str:
        installation = self._installation
        if words.startswith("kubectl logs "):
            # The API server has no certificate with which it could ask this kubelet.
            return installation.pods.log(words.split()[-1])
        words = words.replace("REGISTRY", "registry.invalid").replace("TAG", self.TAG)
        said = self._cluster.sh(words, check=False)
        if words.startswith("helm install "):
            installation.wait_until_set_up()
            installation.wait(lambda: installation.offered() == _OFFERED, "the node offers its slices")
            self._tell_scheduler()
        if words.startswith("helm uninstall "):
            installation.assert_is_gone()
        return said

    def _tell_scheduler(self) -> None:
        """Adds the extender to the scheduler, as its administrator does, with a certificate of the page's
        Secrets.
        """
        secret = json.loads(self._installation.kubectl("get", "secret", "xpu-scheduler-tls", "-o", "json"))
        place = self._cluster.clone / "xpu-scheduler-tls"
        place.mkdir()
        for name, data in secret["data"].items():
            (place / name).write_bytes(base64.b64decode(data))
        extenders = manifests.scheduler_extenders(self._cluster.clone, self._cluster.extender_port)
        self._cluster.restart_scheduler(extenders=extenders)


def test_what_the_pages_of_a_cluster_say_is_what_happens(whole: InstalledCluster) -> None:
    """The tutorial, an upgrade, and Helm's hook, which waits until the runtime is gone."""
    test = "tests/kubernetes/test_installation.py"
    installation = Installation(whole)
    reader = Reader(installation)
    reader.follow("docs/tutorials/cluster.md")
    slices = installation.cluster.node.json("ps")
    reader.follow("docs/how-to/upgrade.md", test)
    assert installation.pod()["spec"]["containers"][0]["image"].endswith(f":{reader.TAG}")
    assert installation.cluster.node.json("ps") == slices != []
    installation.end_containers()
    reader.follow("docs/kubernetes.md", test)
    installation.assert_is_gone()
