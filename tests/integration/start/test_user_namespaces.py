"""A container in a user namespace gets its slice too; its root is an ordinary user of the host."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Bundles, Node, edit_spec
from ..inside import LDCONFIG, MULTIARCH, tree
from ..refusals import refused

MAPPED = 100_000
PROBE = ["sh", "-c", "cuda-probe info; nvidia-smi -L; cat /dev/nvidia0"]


@pytest.fixture(params=["auto", "hook"])
def mode(request: pytest.FixtureRequest, node: Node) -> str:
    node.configure(f"mode: {request.param}")
    node.sim("1xT4")
    chosen: str = request.param
    return chosen


def in_user_namespace(spec: dict[str, Any]) -> None:
    spec["linux"]["namespaces"].append({"type": "user"})
    for kind in ("uidMappings", "gidMappings"):
        spec["linux"][kind] = [{"containerID": 0, "hostID": MAPPED, "size": 65_536}]


def open_the_way(node: Node, bundle: Path, owner: int) -> None:
    for folder in (node.folder, bundle, bundle / "rootfs"):
        folder.chmod(0o755)
    subprocess.run(
        ["chown", "--recursive", "--no-dereference", f"{owner}:{owner}", bundle / "rootfs"], check=True
    )


def owners(root: Path, before: dict[str, tuple[str, ...]]) -> set[int]:
    """The owners of the files made in `root` since `before`."""
    return {(root / path).lstat().st_uid for path in tree(root).keys() - before.keys()}


@pytest.mark.parametrize("owner", [0, MAPPED], ids=["root's", "mapped"])
def test_its_root_folder_may_be_the_hosts_roots(node: Node, bundles: Bundles, mode: str, owner: int) -> None:
    bundle = bundles("XPU_MEM=1G", args=PROBE, change=in_user_namespace)
    open_the_way(node, bundle, owner)
    root = bundle / "rootfs"
    before = tree(root)
    done = node.run(bundle)
    assert "1024 MiB free of 1024 MiB" in done.stdout, done.stderr
    assert "Tesla T4" in done.stdout, done.stderr
    assert "No such device or address" in done.stderr
    assert owners(root, before) == {MAPPED}
    (hook,) = json.loads((bundle / "config.json").read_text())["hooks"]["createRuntime"]
    assert ("--grant" in hook["args"]) == (mode == "auto")
    assert node.grants() == []


def test_a_root_folder_without_library_folders_gets_them(node: Node, bundles: Bundles, mode: str) -> None:
    script = f"ls /{MULTIARCH} /usr/bin; ls -ln /etc/ld.so.cache; ls /dev"
    bundle = bundles("XPU_MEM=1G", args=["/bin/busybox", "sh", "-c", script], change=in_user_namespace)
    root = bundle / "rootfs"
    for name in ("usr", "lib", "lib64"):
        shutil.rmtree(root / name)
    open_the_way(node, bundle, 0)
    done = node.run(bundle)
    for name in ("libcuda.so.1", "nvidia-smi", "nvidia0"):
        assert name in done.stdout, done.stderr
    assert " 0 0 " in " ".join(done.stdout.split())
    assert (root / "etc/ld.so.cache").stat().st_uid == MAPPED


def test_a_failure_of_the_runtime_leaves_the_root_folder_as_it_was(
    node: Node, bundles: Bundles, mode: str
) -> None:
    def change(spec: dict[str, Any]) -> None:
        in_user_namespace(spec)
        spec["mounts"].append(
            {"destination": "/x", "type": "bind", "source": "/nowhere", "options": ["bind"]}
        )

    bundle = bundles("XPU_MEM=1G", change=change)
    open_the_way(node, bundle, MAPPED)
    before = tree(bundle / "rootfs")
    assert node.run(bundle).returncode == 1
    assert tree(bundle / "rootfs") == before
    node.xpu("gc")
    assert node.grants() == []


def test_a_failure_of_ours_leaves_the_root_folder_as_it_was(node: Node, bundles: Bundles, mode: str) -> None:
    bundle = bundles("XPU_MEM=1G", change=in_user_namespace)
    (bundle / "rootfs/etc/ld.so.cache").mkdir()
    open_the_way(node, bundle, 0)
    before = tree(bundle / "rootfs")
    assert "/etc/ld.so.cache" in refused(node, bundle)
    assert tree(bundle / "rootfs") == before
    assert node.grants() == []


def test_a_file_in_a_devices_place_is_no_device(node: Node, bundles: Bundles, mode: str) -> None:
    """Its container would start, and find no card there."""
    bundle = bundles("XPU_MEM=1G", change=in_user_namespace)
    file = str(bundle / "config.json")
    mount = {"destination": "/dev/nvidia0", "type": "bind", "source": file, "options": ["bind"]}
    edit_spec(bundle, lambda spec: spec["mounts"].append(mount))
    open_the_way(node, bundle, MAPPED)
    told = refused(node, bundle)
    assert "/dev/nvidia0" in told
    assert "something else is in the device's place" in told
    assert node.grants() == []


def test_places_on_a_tmpfs_of_its_own_are_made_there(node: Node, bundles: Bundles, mode: str) -> None:
    def change(spec: dict[str, Any]) -> None:
        in_user_namespace(spec)
        for place in ("/run", "/usr/lib/xpu", "/usr/local"):
            spec["mounts"].append({"destination": place, "type": "tmpfs", "source": "tmpfs"})

    bundle = bundles("XPU_MEM=1G", args=PROBE, change=change)
    for place in ("run", "usr/lib/xpu", "usr/local"):
        (bundle / "rootfs" / place).mkdir(parents=True, exist_ok=True)
    open_the_way(node, bundle, MAPPED)
    done = node.run(bundle)
    assert "1024 MiB free of 1024 MiB" in done.stdout, done.stderr
    assert "Tesla T4" in done.stdout


def test_a_package_manager_inside_can_run_ldconfig(node: Node, bundles: Bundles, mode: str) -> None:
    script = ["sh", "-c", "/usr/ldconfig && cuda-probe info"]
    bundle = bundles("XPU_MEM=1G", args=script, change=in_user_namespace)
    shutil.copy(LDCONFIG, bundle / "rootfs/usr/ldconfig")
    open_the_way(node, bundle, MAPPED)
    done = node.run(bundle)
    assert done.returncode == 0, done.stderr
    assert "1024 MiB free of 1024 MiB" in done.stdout
    assert json.loads((bundle / "config.json").read_text())["process"]["args"] == script
