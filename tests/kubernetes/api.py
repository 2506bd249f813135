"""The tests' own client of the API server: a call is a method, a path and JSON.

It must not import the product's client, because the tests check that client.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from pathlib import Path
from typing import Any

from support.kubernetes_api import kubeconfig

_MERGE = "application/merge-patch+json"
NAMESPACE = "default"


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """The API server as the holder of a token sees it. Threads may share it: each has its own connection."""

    def __init__(self, port: int, certificate: Path, token: str) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self.certificate = certificate
        self.token = token
        self._port = port
        self._threads = threading.local()

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig with which other clients have the same identity."""
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        path = kubeconfig(path, cluster, {"token": self.token})
        path.chmod(0o600)
        return path

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """The API server's answer; text if it is not JSON. ApiError if the server refuses."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        connection = self._connection()
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            # The server has been restarted, and this idle connection is dead: the next call makes another
            # one.
            del self._threads.connection
            raise
        if answer.status >= 400:
            raise ApiError(answer.status, text)
        return json.loads(text) if answer.headers.get_content_type() == "application/json" else text

    def _connection(self) -> http.client.HTTPSConnection:
        found: http.client.HTTPSConnection | None = getattr(self._threads, "connection", None)
        if found is None:
            context = ssl.create_default_context(cafile=str(self.certificate))
            found = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=30, context=context)
            self._threads.connection = found
        return found

    def is_ready(self) -> bool:
        try:
            return bool(self.call("GET", "/readyz") == "ok")
        except (OSError, http.client.HTTPException, ApiError):
            return False

    # The few kinds that the tests use.

    def create(self, path: str, thing: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = self.call("POST", path, thing)
        return made

    def pod(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        return found

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return found

    def create_pod(self, pod: dict[str, Any]) -> dict[str, Any]:
        return self.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)

    def patch_pod(self, name: str, change: dict[str, Any]) -> None:
        self.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", change, _MERGE)

    def delete_by_force(self, pod: str = "") -> None:
        """Deletes a pod, or all pods, without waiting for their ends."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}".rstrip("/")
        self.call("DELETE", path, {"gracePeriodSeconds": 0})

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of the object with that name."""
        path = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.name={name}"
        found: list[dict[str, Any]] = self.call("GET", path)["items"]
        return found

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/api/v1/nodes/{name}")
        return found

    def patch_node(self, name: str, change: dict[str, Any]) -> None:
        self.call("PATCH", f"/api/v1/nodes/{name}", change, _MERGE)
