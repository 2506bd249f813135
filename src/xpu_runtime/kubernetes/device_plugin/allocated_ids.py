"""The owners of the kubelet's allocated IDs, by its PodResources.

It lists regular containers, and from 1.29 on sidecars, but never init containers that end
(pkg/kubelet/apis/podresources). Those share their IDs with the regular ones, which are allocated after them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from xpu_runtime.kubernetes.device_plugin import kubelet
from xpu_runtime.kubernetes.device_plugin.v1beta1 import PodResources
from xpu_runtime.value import Value

#: Namespace and name of a pod; and of a container, with the pod's.
PodName = tuple[str, str]
ContainerName = tuple[str, str, str]


class AllocatedIds(Value):
    """The last answer of the kubelet. `is_known` is False if it has none."""

    is_known: bool = False
    #: By resource, then by container.
    by_resource: Mapping[str, Mapping[ContainerName, frozenset[str]]] = {}

    def ids(self, resource: str, pods: Collection[PodName] | None = None) -> frozenset[str] | None:
        """The IDs that pods have (those named, or all); None: it is not known."""
        if not self.is_known:
            return None
        some = self.by_resource.get(resource, {})
        return frozenset().union(*(ids for of, ids in some.items() if pods is None or of[:2] in pods))

    def ids_of(self, resource: str, containers: Collection[ContainerName]) -> frozenset[str]:
        some = self.by_resource.get(resource, {})
        return frozenset().union(*(ids for of, ids in some.items() if of in containers))

    def by_pod(self, resource: str) -> dict[PodName, int]:
        """How many IDs each pod has."""
        found: dict[PodName, int] = {}
        for (namespace, pod, _), ids in self.by_resource.get(resource, {}).items():
            found[namespace, pod] = found.get((namespace, pod), 0) + len(ids)
        return found

    def owner(self, resource: str, ids: Iterable[str]) -> PodName | None:
        """The pod that has some of these IDs, as they are one pod's; None: none does, as far as is told."""
        wanted = frozenset(ids)
        found = {of[:2] for of, some in self.by_resource.get(resource, {}).items() if wanted & some}
        return found.pop() if len(found) == 1 else None


class PodResourcesReader:
    """Asks the kubelet on request; thread-safe. One question at a time, for all waiting callers: with a slow
    kubelet the last caller must not wait for as many answers."""

    def __init__(self, path: str, resources: Collection[str]) -> None:
        """`path`: PodResources' socket."""
        self._path = path
        self._resources = frozenset(resources)
        self._turn = threading.Condition()
        #: Questions that have begun, and ended; why the last one had no answer.
        self._begun = self._ended = 0
        self._problem = ""
        #: The last answer.
        self.last = AllocatedIds()

    def ask(self) -> AllocatedIds:
        """The present state; KubeletError, and `last` still holds: a silent kubelet gives out nothing. If
        only this question fails, IDs given since may be offered again; the ledger then refuses."""
        with self._turn:
            # The question that is under way may have been answered before the caller's event.
            mine = self._begun + 1
            self._turn.wait_for(lambda: self._ended >= mine or self._ended == self._begun)
            if self._ended >= mine:
                if self._problem:
                    raise kubelet.KubeletError(self._problem)
                return self.last
            self._begun = mine
        problem = "the question was cut short"
        try:
            told = AllocatedIds(True, self._sorted(kubelet.pods(self._path)))
            problem = ""
        except kubelet.KubeletError as error:
            problem = str(error)
            raise
        finally:
            with self._turn:
                self._ended, self._problem = mine, problem
                if not problem:
                    self.last = told
                self._turn.notify_all()
        return told

    def _sorted(self, pods: Iterable[PodResources]) -> dict[str, dict[ContainerName, frozenset[str]]]:
        found: dict[str, dict[ContainerName, frozenset[str]]] = {}
        for pod in pods:
            for container in pod.containers:
                for devices in container.devices:
                    if devices.resource in self._resources:
                        of_resource = found.setdefault(devices.resource, {})
                        name = pod.namespace, pod.name, container.name
                        of_resource[name] = of_resource.get(name, frozenset()) | frozenset(devices.ids)
        return found
