"""A kubeconfig and a client for the tests' own API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kubernetes_api import ApiServer
from xpu_runtime.kubernetes.access import Access
from xpu_runtime.kubernetes.api import Api


@pytest.fixture
def kubeconfig(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It is found without an option, too."""
    path = api_server.kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def api(api_server: ApiServer) -> Api:
    return Api(Access(api_server.url))
