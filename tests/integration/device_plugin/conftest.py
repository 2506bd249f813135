"""The plugin of each test, before a kubelet and an API server of the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.kubernetes_api import ApiServer
from support.stand_in_kubelet import Kubelet, needed
from xpu_simulator import simulator

from .plugin import NODE_PATH, Plugin, devices


@pytest.fixture
def plugin(
    tmp_path: Path,
    installed: Path,
    run_dir: Path,
    kubelet: Kubelet,
    api_server: ApiServer,
    up: Callable[..., simulator.SimState],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Plugin]:
    """A plugin that is not started, with four T4 on the node, and a Node object."""
    up("4xT4")
    # Without NVML's binding there are none, and each test would wait for them.
    assert len(devices()) == 4
    api_server.put(NODE_PATH, {"kind": "Node"})
    found = Plugin(tmp_path, installed, kubelet, api_server)
    monkeypatch.setenv("XPU_CONFIG", str(found.config))
    yield found
    if found.process is not None:
        needed.pop(found.process, None)
        found.process.kill()
        found.process.wait()
