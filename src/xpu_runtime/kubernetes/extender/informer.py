"""Follows the API's nodes and pods into the cluster's state, from the start on, through all outages.

Everything is in the API: a replica that starts reads it all, and no more is kept of an object than the state
needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.extender import devices
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.outages import Outages
from xpu_runtime.kubernetes.threads import Threads

#: Pods that have ended hold nothing; a watch reports an ended pod as a deleted one.
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"
#: Seconds that a pod that is being bound may be missing in a list.
_NEWER_S = 60.0
#: Seconds for which changes may be unknown: a restarted API server takes as long.
BLIND_S = 10.0
#: Seconds between two tries while the API server is away: nobody may be blind for longer after it is back.
#: There are only two extenders, not one on each node.
_LONGEST_PAUSE_S = 5.0
#: Wrong labels of nodes that are said.
_MOST_LABELS = 100


class Informer:
    """Two threads, one for nodes and one for pods."""

    def __init__(self, api: Api, cluster: Cluster, log: Callable[[str], None]) -> None:
        self._api = api
        # Only nodes' metadata: the rest, above all the images, is most of a node.
        self._nodes_api = Api(api.access, "xpu-extender", metadata_only=True)
        self._cluster = cluster
        self._log = log
        self._stop = threading.Event()
        self._listed = {"nodes": threading.Event(), "pods": threading.Event()}
        #: The present problem of either; "": none.
        self.problems = {"nodes": "not read yet", "pods": "not read yet"}
        #: The logged faults of nodes' labels.
        self._labels: set[str] = set()
        #: Since when (time.monotonic) there has been something wrong with one.
        self._blind_since: dict[str, float] = {}

    def start(self, threads: Threads) -> None:
        threads.start(self._nodes, "nodes")
        threads.start(self._pods, "pods")

    def stop(self) -> None:
        """Ends with the next event."""
        self._stop.set()

    @property
    def is_complete(self) -> bool:
        """Whether all nodes and pods were read once: before that the state must not decide."""
        return all(event.is_set() for event in self._listed.values())

    @property
    def is_well(self) -> bool:
        """Whether the state may decide: it is complete, and was not cut off from changes for long."""
        now = time.monotonic()
        return self.is_complete and all(now - since < BLIND_S for since in list(self._blind_since.values()))

    def read_pods(self) -> None:
        """Reads all pods now, besides following them: another replica's bindings may still be on their way.
        ApiError."""
        self._api.list("/api/v1/pods", self._pod_as_read, fieldSelector=_LIVE)

    def wait(self, seconds: float) -> bool:
        """Waits until it is complete, `seconds` at most; returns whether it is."""
        until = time.monotonic() + seconds
        return all(event.wait(max(until - time.monotonic(), 0)) for event in self._listed.values())

    def _nodes(self) -> None:
        def keep(node: Mapping[str, Any]) -> str:
            metadata = node["metadata"]
            labels = metadata.get("labels") or {}
            problem = self._cluster.set_node(metadata["name"], metadata.get("annotations") or {}, labels)
            if problem:
                self._log(f"node {metadata['name']} is not used: {problem}")
            self._tell_label(metadata["name"], labels)
            return str(metadata["name"])

        follow = self._nodes_api.follow(
            "/api/v1/nodes", keep, self._stop, self._told("nodes"), _LONGEST_PAUSE_S
        )
        for change in follow:
            if change.kind == "listed":
                self._cluster.keep_nodes(set(change.objects))
                self._listed["nodes"].set()
            elif change.kind == "deleted":
                self._cluster.remove_node(change.objects[0])

    def _tell_label(self, node: str, labels: Mapping[str, str]) -> None:
        """Once for all nodes: a label is mostly written for a pool of them."""
        problem = devices.unknown_policy(labels)
        if problem and problem not in self._labels and len(self._labels) < _MOST_LABELS:
            self._labels.add(problem)
            self._log(f"node {node}: {problem}")

    def _pods(self) -> None:
        follow = self._api.follow(
            "/api/v1/pods",
            self._pod,
            self._stop,
            self._told("pods"),
            _LONGEST_PAUSE_S,
            fieldSelector=_LIVE,
        )
        for change in follow:
            if change.kind == "listed":
                self._cluster.keep_pods(set(change.objects), time.monotonic() + _NEWER_S)
                self._listed["pods"].set()
            elif change.kind == "deleted":
                self._cluster.remove_pod(change.objects[0])

    def _pod(self, pod: Mapping[str, Any]) -> str | None:
        return self._cluster.set_pod(pod)

    def _pod_as_read(self, pod: Mapping[str, Any]) -> None:
        self._cluster.set_pod(pod, is_read=True)

    def _told(self, kind: str) -> Callable[[str], None]:
        outages = Outages(
            lambda why: self._log(f"{kind} cannot be followed: {why}; it is tried again"),
            lambda: self._log(f"{kind} are followed again"),
        )

        def problem(text: str) -> None:
            self.problems[kind] = text
            if text:
                self._blind_since.setdefault(kind, time.monotonic())
            else:
                self._blind_since.pop(kind, None)
            outages.told(text)

        return problem
