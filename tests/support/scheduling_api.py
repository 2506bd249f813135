"""The API server of the tests as the extender uses it: by names of nodes, pods and leases."""

from __future__ import annotations

from collections.abc import Callable

from support import kubernetes_api
from support.kubernetes_api import Object
from xpu_runtime.kubernetes.access import Access
from xpu_runtime.kubernetes.api import Api

_FOLDERS = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/namespaces/default/pods",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
}


class ApiServer(kubernetes_api.ApiServer):
    def __init__(self) -> None:
        super().__init__()
        #: Called before and after a binding is carried out; they may wait, or end the connection by an error.
        self.before_binding: Callable[[str], None] = lambda path: None
        self.after_binding: Callable[[str], None] = lambda path: None
        self.set("leases", "xpu-extender", {})  # as the manifests make it

    def client(self) -> Api:
        return Api(Access(self.url))

    def set(self, kind: str, name: str, thing: Object) -> None:
        """Creates or replaces an object."""
        self.put(f"{_FOLDERS[kind]}/{name}", thing)

    def remove(self, kind: str, name: str) -> None:
        self.delete(f"{_FOLDERS[kind]}/{name}")

    def get(self, kind: str, name: str) -> Object:
        return self.objects[f"{_FOLDERS[kind]}/{name}"]

    def bindings(self) -> int:
        """How many were asked for."""
        return sum(url.endswith("/binding") for _, url in self.requests)

    def bind(self, path: str, binding: Object) -> tuple[int, Object]:
        self.before_binding(path)
        answer = super().bind(path, binding)
        self.after_binding(path)
        return answer
