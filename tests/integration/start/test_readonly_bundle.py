"""A container whose bundle cannot be written starts as the low-level runtime starts it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import CGROUPS, Bundles, Node, edit_spec

_INFO = "device 0: 1024 MiB free of 1024 MiB\n"


@pytest.fixture
def read_only(node: Node) -> Iterator[Callable[[Path], Path]]:
    """Makes a bundle read-only, with a mount of its own."""
    made: list[Path] = []

    def make(bundle: Path) -> Path:
        subprocess.run(["mount", "--bind", "-o", "ro", bundle, bundle], check=True)
        made.append(bundle)
        return bundle

    yield make
    node.close_containers()
    for bundle in made:
        subprocess.run(["umount", bundle], check=True)


def root_elsewhere(bundle: Path) -> None:
    """Moves the root folder to a place that can be written."""
    there = bundle.parent / f"{bundle.name}.root"
    (bundle / "rootfs").rename(there)
    edit_spec(bundle, lambda spec: spec["root"].update(path=f"../{there.name}"))


def ours(node: Node) -> list[str]:
    """The content of the folder of our own bundles."""
    folder = node.run_dir / "bundles"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def state(node: Node, container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.oci("state", container).stdout)
    return found


def test_a_container_of_a_read_only_bundle_has_its_slice_again_and_again(
    node: Node, bundles: Bundles, read_only: Callable[[Path], Path], mode: str
) -> None:
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    root_elsewhere(bundle)
    before = (bundle / "config.json").read_bytes()
    read_only(bundle)
    for _ in range(2):
        done = node.run(bundle)
        assert (done.returncode, done.stdout) == (0, _INFO), done.stderr
        assert node.grants() == []
        assert ours(node) == []
    assert (bundle / "config.json").read_bytes() == before
    assert sorted(path.name for path in bundle.iterdir()) == ["config.json"]


def test_the_ledger_has_the_engines_bundle_and_hooks_find_its_files(
    node: Node, bundles: Bundles, read_only: Callable[[Path], Path], mode: str
) -> None:
    bundle = bundles("XPU_MEM=1G", args=["sleep", "inf"])
    root_elsewhere(bundle)
    volume = bundle.parent / f"{bundle.name}.volume"
    volume.mkdir()
    (volume / "here").touch()
    (bundle / "note").write_text("an engine's")
    (bundle / "config.json").chmod(0o640)

    def relative_volume(spec: dict[str, Any]) -> None:
        source = f"../{volume.name}"
        spec["mounts"].append({"destination": "/volume", "source": source, "options": ["bind"]})

    edit_spec(bundle, relative_volume)
    read_only(bundle)
    with (bundle.parent / "output").open("wb") as output:
        command = node.command("run", "--detach", "--bundle", bundle, bundle.name)
        subprocess.run(command, env=node.environ, stdout=output, stderr=output, check=True)
    assert [grant.bundle for grant in node.grants()] == [str(bundle)]
    assert node.oci("exec", bundle.name, "cuda-probe", "info").stdout == _INFO
    assert node.oci("exec", bundle.name, "ls", "/volume").stdout == "here\n"

    shown = Path(state(node, bundle.name)["bundle"])
    assert shown.name == bundle.name
    assert (shown / "note").read_text() == "an engine's"
    assert (shown / "config.json").stat().st_mode & 0o777 == 0o640
    assert json.loads((shown / "config.json").read_text())["root"]["path"] == f"{bundle}.root"

    node.xpu("gc")
    assert shown.exists()  # its container runs
    node.remove(bundle.name)
    assert node.grants() == []
    assert ours(node) == []


def test_a_read_only_root_folder_in_a_read_only_bundle(
    node: Node, bundles: Bundles, read_only: Callable[[Path], Path], mode: str
) -> None:
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    edit_spec(bundle, lambda spec: spec["root"].update(readonly=True))
    config = bundle / "config.json"
    before = config.read_bytes()
    assert node.run(bundle).stdout == _INFO  # makes the mountpoints
    for path in bundle.glob("config.json.*"):
        path.unlink()
    config.write_bytes(before)
    read_only(bundle)
    done = node.run(bundle)
    assert (done.returncode, done.stdout) == (0, _INFO), done.stderr
    assert node.grants() == []
    assert ours(node) == []


def test_leftovers_of_a_killed_start_go_with_the_next_one(
    node: Node, bundles: Bundles, read_only: Callable[[Path], Path], mode: str
) -> None:
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    root_elsewhere(bundle)
    fifo = bundle.parent / f"{bundle.name}.fifo"
    os.mkfifo(fifo)
    # A hook behind ours: the runtime is killed while it waits there.
    waits = {"path": "/bin/sh", "args": ["sh", "-c", f"echo > {fifo}; read line < {fifo}"]}
    edit_spec(bundle, lambda spec: spec.update(hooks={"createRuntime": [waits]}))
    read_only(bundle)
    with subprocess.Popen(
        node.command("create", "--bundle", bundle, bundle.name),
        env=node.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as start:
        try:
            fifo.read_text()  # the hook is there
            there = ours(node)
            node.xpu("gc")
            assert ours(node) == there  # it is being started
            assert any(name.endswith(".held-by") for name in there)
            (grant,) = node.grants()
            init = os.pidfd_open(grant.pid)
        finally:
            os.killpg(start.pid, signal.SIGKILL)
    signal.pidfd_send_signal(init, signal.SIGKILL)
    select.select([init], [], [], 30)
    os.close(init)
    for cgroup in CGROUPS.glob(f"*/{bundle.name}"):
        cgroup.rmdir()  # as the runtime would have
    node.xpu("gc")
    assert ours(node) == []
    assert node.grants() == []


def test_a_runtime_that_fails_leaves_nothing_to_the_next_start(
    node: Node, bundles: Bundles, read_only: Callable[[Path], Path]
) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    root_elsewhere(bundle)
    read_only(bundle)
    # The option is refused by the runtime after the shim.
    assert node.oci("run", "--preserve-fds=x", "--bundle", bundle, bundle.name).returncode != 0
    assert len(ours(node)) == 2
    assert node.run(bundle).stdout == _INFO
    assert ours(node) == []


def test_a_socket_for_the_console_is_found_from_the_engines_bundle(
    node: Node, bundles: Bundles, read_only: Callable[[Path], Path]
) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=["true"], change=lambda spec: spec["process"].update(terminal=True))
    root_elsewhere(bundle)
    read_only(bundle)
    with socket.socket(socket.AF_UNIX) as console:
        console.bind(str(node.folder / "console"))
        console.listen()
        done = node.oci("create", "--console-socket", "../console", "--bundle", bundle, bundle.name)
        assert done.returncode == 0, done.stderr
        console.settimeout(10)
        console.accept()[0].close()
    node.remove(bundle.name)
    assert ours(node) == []


def test_an_immutable_bundle_is_one_too(node: Node, bundles: Bundles) -> None:
    node.configure("mode: spec")
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=["cuda-probe", "info"])
    root_elsewhere(bundle)
    # On a disk: a tmpfs may know no such attribute.
    there = Path(tempfile.mkdtemp(prefix="xpu-t-", dir="/var/tmp"))
    try:
        fixed = there / bundle.name
        shutil.copytree(bundle, fixed)
        edit_spec(fixed, lambda spec: spec["root"].update(path=f"{bundle}.root"))
        subprocess.run(["chattr", "+i", fixed, fixed / "config.json"], check=True)
        done = node.run(fixed)
        assert (done.returncode, done.stdout) == (0, _INFO), done.stderr
        assert ours(node) == []
    finally:
        subprocess.run(["chattr", "-R", "-i", there], check=True)
        shutil.rmtree(there)
