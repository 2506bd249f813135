"""Reports to the API server: events on pods, and the Node's labels and annotation; in a thread of its own.

So a slow or absent API server delays no other part. Only the last change of the node is kept. An event waits
until the API server takes it; if too many wait, the oldest are dropped.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.kubernetes.device_plugin.pod import PodEvent

_COMPONENT = "xpu-device-plugin"
_MOST_EVENTS = 200
#: HTTP statuses that another try may not have: no answer, and too many requests.
_PASSING = (0, 429)
#: Seconds: for an answer; between two changes of the node; until what failed is tried again; and until the
#: node is written again though nothing has changed, as somebody may have edited it.
_ANSWER_S, _APART_S, _AGAIN_S, REFRESH_S = 10.0, 2.0, 5.0, 60.0


class Reports:
    """Takes reports from any thread; `run` sends them."""

    def __init__(self, api: Api, node: str, log: Callable[[str], None]) -> None:
        self._api = api
        self._node = node
        self._log = log
        self._wake = threading.Condition()
        self._events: deque[PodEvent] = deque(maxlen=_MOST_EVENTS)
        self._patch: dict[str, Any] | None = None
        self._written: dict[str, Any] | None = None
        self._not_before = 0.0
        self._events_not_before = 0.0
        self._problem = ""
        self._stopped = False
        #: The kubelet's offer in the Node's status, and the time of the reading; None: it has none.
        self.allocatable: tuple[float, dict[str, str]] | None = None

    def tell(self, event: PodEvent) -> None:
        with self._wake:
            self._events.append(event)
            self._wake.notify()

    def write_node(self, patch: dict[str, Any]) -> None:
        with self._wake:
            if patch != self._patch:
                self._patch = patch
                self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def run(self) -> None:
        """Until `stop`."""
        while True:
            with self._wake:
                while not self._stopped and (due := self._due()) > (now := time.monotonic()):
                    self._wake.wait(None if due == float("inf") else due - now)
                if self._stopped:
                    return
                now = time.monotonic()
                told = self._events.popleft() if self._events and now >= self._events_not_before else None
                patch = self._patch if now >= self._node_due() else None
            if told is not None:
                self._post(told)
            if patch is not None:
                self._write(patch)

    def _due(self) -> float:
        """When an event or the node must be written next (time.monotonic)."""
        return min(self._events_not_before if self._events else float("inf"), self._node_due())

    def _node_due(self) -> float:
        if self._patch is None:
            return float("inf")
        return self._not_before + (REFRESH_S - _APART_S if self._patch == self._written else 0.0)

    def _post(self, told: PodEvent) -> None:
        try:
            path = f"/api/v1/namespaces/{told.pod.namespace}/events"
            self._api.post(path, _event(told, self._node), seconds=_ANSWER_S)
        except ApiError as error:
            self._tell(f"an event on pod {told.pod.namespace}/{told.pod.name} cannot be written: {error}")
            if error.status in _PASSING or error.status >= 500:
                with self._wake:
                    if len(self._events) < _MOST_EVENTS:
                        self._events.appendleft(told)
                self._events_not_before = time.monotonic() + _AGAIN_S

    def _write(self, patch: dict[str, Any]) -> None:
        try:
            node = self._api.patch(f"/api/v1/nodes/{self._node}", patch, seconds=_ANSWER_S)
        except ApiError as error:
            self._not_before = time.monotonic() + _AGAIN_S
            self._written = None  # or a refresh would count as done
            self.allocatable = None  # the next reading may be older
            self._tell(f"node {self._node} cannot be labelled: {error}")
            return
        self._written = patch
        status = node.get("status") or {}
        told = time.monotonic(), dict(status.get("allocatable") or {})
        self.allocatable = None if _is_silent(status) else told
        self._not_before = time.monotonic() + _APART_S
        self._problem = ""

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._log(problem)


def _event(told: PodEvent, node: str) -> dict[str, Any]:
    """As the API's object."""
    pod = {"namespace": told.pod.namespace, "name": told.pod.name, "uid": told.pod.uid}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{told.pod.name[:200]}.{os.urandom(8).hex()}",
            "namespace": told.pod.namespace,
        },
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", **pod},
        "reason": told.reason,
        # Longer ones the API server refuses (validation of events.k8s.io).
        "message": told.message[:1000],
        "type": "Warning" if told.warning else "Normal",
        "source": {"component": _COMPONENT, "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": _COMPONENT,
        "reportingInstance": node,
    }


def _is_silent(status: dict[str, Any]) -> bool:
    """Whether the kubelet has not written the Node's status for so long that the node controller marks it."""
    ready = [each for each in status.get("conditions") or () if each.get("type") == "Ready"]
    return any(each.get("status") == "Unknown" for each in ready)
