"""Binds a pod to a node: takes its place in the cluster's state, signs its share, and writes both to the API.

One request does both at once: the API server writes the annotations of a Binding into the pod together with
the node (pkg/registry/core/pod/storage, setPodHostAndAnnotations), for the pod with that UID alone (from 1.23
on). So there is no time at which a pod has an assignment and no node, or a node and no assignment, and
nothing is left behind by a replica that dies in between. A pod that is bound already is never moved by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.objects import Assumed, Decided, Pod
from xpu_runtime.request import assignment

#: Seconds for the request that binds. A replica that no longer leads must have no request under way: this is
#: less than the time between its last valid renewal and another replica's takeover (leader_election.py).
BIND_S = 4.0
#: Seconds for a request that only reads.
_GET_S = 2.0
#: Seconds that a pod with an unknown outcome counts as bound.
ASSUMED_S = 60.0

#: The node has no place for it (any more).
NO_PLACE = "no place"
_GONE = "the pod is gone"


class NotBound(Exception):
    """Why a pod was not bound, for its events; NO_PLACE where the node has none."""


class Binder:
    """Binds pods. Safe to be called by many threads, and again for the same pod."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        keys: Callable[[], Mapping[str, bytes]],
        may_bind: Callable[[], bool],
        took: Callable[[float], None],
        decided: Callable[[str], None],
    ) -> None:
        """`may_bind`: whether this replica leads at the moment; `took` is told the seconds that the API
        needed, `decided` the UID of a pod that has its place now."""
        self._api = api
        self._cluster = cluster
        self._keys = keys
        self._may_bind = may_bind
        self._took = took
        self._decided = decided

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Binds the pod to the node; NotBound. Done already, it is done."""
        pod = self._cluster.known_pod(uid)
        if pod is None or (pod.namespace, pod.name) != (namespace, name):
            data = self._get(namespace, name)
            if uid and data["metadata"]["uid"] != uid:
                raise NotBound("the pod was deleted, and another has its name now")
            uid = data["metadata"]["uid"]
            if _node_of(data) or self._cluster.set_pod(data, is_read=True) is None:
                self._bind_as_it_is(namespace, name, uid, node, data)
                return
            pod = self._cluster.known_pod(uid)
        if pod is None:
            raise NotBound(_GONE)
        assumed = self._cluster.assume(pod, node, time.monotonic() + ASSUMED_S)
        self._decided(uid)
        if assumed is None:
            raise NotBound(NO_PLACE)
        if isinstance(assumed, Decided):
            self._is_there(assumed.node, node)
            return
        self._post(pod, assumed)

    def _post(self, pod: Pod, assumed: Assumed) -> None:
        try:
            key_id, key = next(iter(self._keys().items()))
            text = assignment.sign(assumed.assignment, key_id, key)
            if not self._may_bind():
                raise NotBound("this replica of the extender does not lead any more")
        except BaseException:
            self._cluster.forget(pod.uid)
            raise
        try:
            self._api_binds(pod.namespace, pod.name, pod.uid, assumed.node, {assignment.ANNOTATION: text})
        except ApiError as error:
            self._settle(pod, assumed, error)
        self._cluster.confirm(pod.uid)

    def _settle(self, pod: Pod, assumed: Assumed, error: ApiError) -> None:
        """The outcome of a failed request: returns if the pod is bound as intended, by it or by an earlier
        one; otherwise NotBound. If the outcome is unknown, the pod counts as bound for a while."""
        try:
            data = self._get(pod.namespace, pod.name)
        except NotBound:
            if error.status:
                self._cluster.forget(pod.uid)
            raise NotBound(str(error)) from error
        if data["metadata"]["uid"] == pod.uid and _node_of(data):
            self._cluster.set_pod(data, is_read=True)
            self._is_there(_node_of(data), assumed.node)
            return
        if error.status:  # without a status the request may still be under way
            self._cluster.forget(pod.uid)
        raise NotBound(str(error)) from error

    def _bind_as_it_is(self, namespace: str, name: str, uid: str, node: str, data: Mapping[str, Any]) -> None:
        """A pod that asks for no devices of ours, or is bound already."""
        if _node_of(data):
            self._is_there(_node_of(data), node)
            return
        try:
            self._api_binds(namespace, name, uid, node, {})
        except ApiError as error:
            raise NotBound(str(error)) from error

    def _is_there(self, bound: str, wanted: str) -> None:
        if not bound:
            raise NotBound(_GONE)
        if bound != wanted:
            raise NotBound(f"the pod is bound to node {bound} already")

    def _api_binds(
        self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        began = time.monotonic()
        try:
            self._api.post(f"{_path(namespace, name)}/binding", body, seconds=BIND_S)
        finally:
            self._took(time.monotonic() - began)

    def _get(self, namespace: str, name: str) -> Any:
        """The pod by the API; NotBound."""
        try:
            return self._api.get(_path(namespace, name), seconds=_GET_S)
        except ApiError as error:
            raise NotBound(str(error)) from error


def _node_of(data: Mapping[str, Any]) -> str:
    return str((data.get("spec") or {}).get("nodeName") or "")


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
