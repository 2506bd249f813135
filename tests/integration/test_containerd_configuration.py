"""`xpu runtime configure containerd`, against the real containerd that reads the file."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli

from support.containerd_files import CRI, DOCUMENTS
from xpu_runtime.engines.containerd import installed_version

from .conftest import Node

PROGRAM = "/usr/bin/true"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def configure(node: Node, config: Path, *options: str) -> None:
    done = node.xpu(
        "runtime", "configure", "containerd", "--config", config, "--runtime-path", PROGRAM, *options
    )
    assert done.stderr == ""


def seen(config: Path) -> Any:
    """The runtimes' table as containerd itself reads it, under the name that its version gives it."""
    done = subprocess.run(
        ["containerd", "--config", config, "config", "dump"], capture_output=True, text=True, check=True
    )
    plugins = tomli.loads(done.stdout)["plugins"]
    # containerd 2 has a plugin of the older name too, which has no runtimes.
    names = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
    return next(plugins[name] for name in names if name in plugins)["containerd"]


def test_a_missing_file_is_made_for_the_installed_containerd(node: Node, config: Path) -> None:
    configure(node, config)
    assert seen(config)["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM


@pytest.mark.parametrize("name", ["a full version 2 file", "a short file", "an empty file"])
def test_containerd_itself_sees_the_runtime(node: Node, config: Path, name: str) -> None:
    config.write_text(DOCUMENTS[name])
    configure(node, config, "--set-as-default")
    table = seen(config)
    assert table["default_runtime_name"] == "xpu"
    assert table["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
    assert table["runtimes"]["xpu"]["pod_annotations"] == ["yoyoworks.com/*"]
    node.xpu("runtime", "unconfigure", "containerd", "--config", config)
    assert config.read_text() == DOCUMENTS[name]


def test_a_version_1_file_is_seen_by_containerd_1_and_what_containerd_2_ignores_is_told(
    node: Node, config: Path
) -> None:
    config.write_text(DOCUMENTS["a version 1 file"])
    words = ["--config", str(config), "--runtime-path", PROGRAM, "--set-as-default"]
    told = node.xpu("runtime", "configure", "containerd", *words)
    ignored = f"containerd 2 ignores plugins.cri in {config}" in told.stdout + told.stderr
    assert ignored is (seen(config)["default_runtime_name"] != "xpu")
    assert ignored or seen(config)["runtimes"]["xpu"]["options"]["BinaryName"] == PROGRAM
    assert ignored is ((installed_version() or (0, 0)) >= (2, 0))
    node.xpu("runtime", "unconfigure", "containerd", "--config", config)
    assert config.read_text() == DOCUMENTS["a version 1 file"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Any]:
    """Starts a containerd of its own with a configuration file; ends it with the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(config: Path) -> str:
        socket = str(tmp_path / "c.sock")
        arguments = ["--root", f"{tmp_path}/root", "--state", f"{tmp_path}/state", "--address", socket]
        with (tmp_path / "log").open("wb") as log:
            processes.append(
                subprocess.Popen(["containerd", "--config", str(config), *arguments], stdout=log, stderr=log)
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and processes[-1].poll() is None:
            done = subprocess.run(
                ["ctr", "--address", socket, "plugins", "ls"], capture_output=True, text=True
            )
            if done.returncode == 0:
                return done.stdout
            time.sleep(0.1)
        raise AssertionError((tmp_path / "log").read_text()[-2000:])

    yield start
    for process in processes:
        process.terminate()
        process.wait(30)


def test_the_cri_plugin_of_a_containerd_that_knew_no_runtime_by_name_still_loads(
    node: Node, config: Path, running: Any
) -> None:
    config.write_text(f'version = 2\n[{CRI}.cni]\nconf_dir = "{config.parent}"\n')
    configure(node, config)
    plugins = [line.split() for line in running(config).splitlines()]
    assert ["io.containerd.grpc.v1", "cri", "ok"] in [
        [line[0], line[1], line[-1]] for line in plugins if line
    ]
