"""The cluster that all tests here share, and its pods, which end with each test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import manifests
from .cluster import Cluster
from .daemons import PATIENCE, until
from .services import DevicePlugin, Extender
from .simulated import SimulatedNodes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for the build of the programs, so any of them may take long."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(scope="package")
def cluster(installed: Path) -> Iterator[Cluster]:
    """A running cluster with the RuntimeClass `xpu` and four simulated T4 on its node."""
    found = Cluster(installed)
    try:
        found.start()
        found.install()
        yield found
    finally:
        left = found.close()
    assert left == []


@pytest.fixture(scope="module")
def extender(cluster: Cluster) -> Iterator[Extender]:
    """The scheduler extender; the scheduler sends it the pods that ask for slices."""
    found = Extender(cluster)
    try:
        found.daemon.start()
        cluster.restart_scheduler(extenders=manifests.scheduler_extenders(cluster.secrets, found.port))
        yield found
    finally:
        found.daemon.stop()
        cluster.restart_scheduler()


@pytest.fixture(scope="module")
def plugin(cluster: Cluster) -> Iterator[DevicePlugin]:
    """The device plugin of a node that places pods itself."""
    found = DevicePlugin(cluster, "node")
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def assigned(cluster: Cluster, extender: Extender) -> Iterator[DevicePlugin]:
    """The device plugin of a node whose pods the extender alone places."""
    found = DevicePlugin(cluster, "extender")
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def simulated(cluster: Cluster) -> Iterator[SimulatedNodes]:
    """Nodes that exist only as objects of the API; they are removed when the test ends, before another counts
    on them."""
    found = SimulatedNodes(cluster.api)
    yield found
    found.remove()


class Pods:
    """Makes pods, and waits for their states."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = cluster.api

    def create(self, pod: dict[str, Any]) -> str:
        """Creates a pod; returns its name."""
        name: str = self.api.create_pod(pod)["metadata"]["name"]
        return name

    def phase(self, name: str) -> str:
        return str(self.api.pod(name)["status"]["phase"])

    def wait(self, name: str, *phases: str) -> dict[str, Any]:
        """Waits until the pod is in one of these phases; returns it."""
        ends = {"Succeeded", "Failed", *phases}
        what = f"{name} is {' or '.join(phases)}"
        until(lambda: self.phase(name) in ends, what, explain=lambda: self.explain(name))
        found = self.api.pod(name)
        assert found["status"]["phase"] in phases, self.explain(name)
        return found

    def explain(self, name: str) -> str:
        """The pod's status and events, and the slices on the node."""
        status = json.dumps(self.api.pod(name)["status"], indent=1)
        return f"{name}: {status}\n{self.reasons(name)}\n{self.cluster.node.xpu('ps').stdout}"

    def log(self, name: str, container: str = "main") -> str:
        return self.cluster.log_of(self.api.pod(name), container)

    def reasons(self, name: str) -> str:
        """The pod's events, as `kubectl describe` shows them."""
        return "\n".join(f"{each['reason']}: {each['message']}" for each in self.api.events(name))

    def wait_for_reason(self, name: str, text: str) -> str:
        what = f"an event of {name} says {text!r}"
        until(lambda: text in self.reasons(name), what, explain=lambda: self.reasons(name))
        return self.reasons(name)

    def bound(self) -> list[dict[str, Any]]:
        """The pods that have a node."""
        return [pod for pod in self.api.pods() if "nodeName" in pod["spec"]]

    def wait_until_bound(self, number: int, patience: float = PATIENCE) -> list[dict[str, Any]]:
        """Waits until `number` pods have a node; the test fails with the events of a pod that has none."""

        def waiting() -> str:
            names = [pod["metadata"]["name"] for pod in self.api.pods() if "nodeName" not in pod["spec"]]
            return f"{len(names)} have none; {names[0]}:\n{self.reasons(names[0])}" if names else ""

        until(lambda: len(self.bound()) >= number, f"{number} have a node", patience, waiting)
        return self.bound()

    def delete_all(self) -> None:
        """Deletes all pods by force: kubelet reports an ended pod only every ten seconds."""
        self.api.delete_by_force()
        until(lambda: not self.api.pods(), "the last pod is gone")


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    """Pods of the test's own; at its end none of them may have a grant left."""
    found = Pods(cluster)
    yield found
    found.delete_all()
    until(lambda: cluster.node.json("ps") == [], "the last grant is gone")
