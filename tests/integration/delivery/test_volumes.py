"""Volumes over the places that driver files go to: nothing stays in them, and nothing leaks to the host."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Bundles, Node, edit_spec
from ..inside import LDCONFIG, MULTIARCH, tree
from ..refusals import refused
from .images import PROBE, assert_found, binds

Volume = Callable[[str], Path]
PATHS = "PATH=/bin:/usr/bin:/usr/local/bin"


@pytest.fixture(params=["library", "driver"])
def backend(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def volume(node: Node) -> Volume:
    """Makes a folder of the host with a copy of a folder of a root: `volume(PATH)`."""

    def make(source: str = "") -> Path:
        folder = node.folder / f"volume-{source.rpartition('/')[2]}"
        if source:
            shutil.copytree(source, folder, symlinks=True)
        else:
            folder.mkdir()
        return folder

    return make


@pytest.fixture
def shared_volume(node: Node) -> Iterator[Path]:
    """A folder of the host that is a shared mount, as every folder is under systemd."""
    folder = node.folder / "shared"
    folder.mkdir()
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "--make-shared", folder], check=True)
    yield folder
    # With what a failing test has let through.
    while subprocess.run(["umount", "--recursive", folder], stderr=subprocess.DEVNULL).returncode == 0:
        pass


def replace_by_link(root: Path, place: str, target: str) -> None:
    path = root / place
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    path.symlink_to(target)


def mounts_below(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]


def ask(backend: str) -> tuple[str, str]:
    return "XPU_MEM=1G", f"XPU_ENFORCE={backend}"


# Shared mounts.


@pytest.mark.parametrize("place", ["usr/bin", MULTIARCH, "etc", "usr"])
def test_mounts_through_a_shared_volume_do_not_reach_the_host(
    node: Node, bundles: Bundles, mode: str, backend: str, shared_volume: Path, place: str
) -> None:
    bundle = bundles(*ask(backend), args=["sleep", "1000"], change=binds(shared_volume, "/host", "rshared"))
    root = bundle / "rootfs"
    shutil.copytree(root / place, shared_volume / "there", symlinks=True)
    for name in ("nvidia-smi", "libcuda.so.615.36.02", "ld.so.cache", "bin/nvidia-smi"):
        if (shared_volume / "there" / name).parent.is_dir():
            (shared_volume / "there" / name).write_text("the host's own")
    replace_by_link(root, place, "/host/there")
    before = tree(shared_volume)
    try:
        node.start(bundle)
        works = True
    except AssertionError as error:
        assert "the shared mount at /host" in str(error) or "the volume at /host" in str(error)
        works = False
    assert mounts_below(shared_volume) == []
    assert tree(shared_volume) == before
    node.close_containers()
    assert mounts_below(shared_volume) == []
    assert tree(shared_volume) == before
    # Where the interposers hold the limit, a libcuda on the shared mount would have to be covered.
    assert works == (place == "usr/bin" or (backend == "driver" and place != "etc"))


def test_programs_go_beside_a_shared_volume_that_lies_in_their_place(
    node: Node, bundles: Bundles, mode: str, shared_volume: Path
) -> None:
    bundle = bundles("XPU_MEM=1G", args=PROBE, change=binds(shared_volume, "/host", "rshared"))
    shutil.copytree(bundle / "rootfs/usr/bin", shared_volume / "bin")
    replace_by_link(bundle / "rootfs", "usr/bin", "/host/bin")
    edit_spec(bundle, lambda spec: spec["process"].update(env=[PATHS, "XPU_MEM=1G"]))
    assert_found(node, bundle)


# The loader's cache.


def give_it_a_cache(root: Path) -> None:
    (root / "etc/ld.so.conf").write_text("/opt/stubs\n")
    (root / "opt/stubs").mkdir(parents=True)
    source = root / "stub.c"
    source.write_text("int stub;")
    stub = root / "opt/stubs/libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", stub, source], check=True)
    subprocess.run([LDCONFIG, "-r", root], check=True)


@pytest.mark.parametrize("options", [("rprivate",), ("rprivate", "ro"), ("rslave",)])
@pytest.mark.parametrize("by_link", [False, True])
def test_a_volume_with_the_loaders_cache_is_not_written_and_its_stubs_do_not_come_first(
    node: Node, bundles: Bundles, mode: str, volume: Volume, options: tuple[str, ...], by_link: bool
) -> None:
    destination = "/host" if by_link else "/etc"
    bundle = bundles("XPU_MEM=1G", args=PROBE)
    root = bundle / "rootfs"
    give_it_a_cache(root)
    folder = volume(str(root / "etc"))
    if by_link:
        replace_by_link(root, "etc", "/host")
    edit_spec(bundle, binds(folder, destination, *options))
    before = tree(folder)
    assert_found(node, bundle)
    assert tree(folder) == before


def test_a_cache_that_is_a_read_only_file_of_the_hosts_is_covered(
    node: Node, bundles: Bundles, mode: str, volume: Volume
) -> None:
    bundle = bundles("XPU_MEM=1G", args=PROBE)
    give_it_a_cache(bundle / "rootfs")
    folder = volume(str(bundle / "rootfs/etc"))
    cache = folder / "ld.so.cache"
    edit_spec(bundle, binds(cache, "/etc/ld.so.cache", "rprivate", "ro"))
    before = cache.read_bytes()
    assert_found(node, bundle)
    assert cache.read_bytes() == before


def test_a_read_only_etc_without_a_cache_needs_none(
    node: Node, bundles: Bundles, mode: str, volume: Volume
) -> None:
    bundle = bundles("XPU_MEM=1G", args=PROBE)
    folder = volume(str(bundle / "rootfs/etc"))
    edit_spec(bundle, binds(folder, "/etc", "rprivate", "ro"))
    before = tree(folder)
    assert_found(node, bundle)
    assert tree(folder) == before


# Folders of libraries and programs.


@pytest.mark.parametrize("places", [MULTIARCH, "usr/bin", "usr/bin usr/local"])
@pytest.mark.parametrize("options", [("rprivate",), ("rprivate", "ro")])
def test_a_container_works_with_a_volume_where_its_driver_files_go(
    node: Node,
    bundles: Bundles,
    mode: str,
    backend: str,
    volume: Volume,
    places: str,
    options: tuple[str, ...],
) -> None:
    bundle = bundles(*ask(backend), args=PROBE)
    (bundle / "rootfs/usr/local/bin").mkdir(parents=True)
    folders = []
    for place in places.split():
        folders.append(volume(str(bundle / "rootfs" / place)))
        edit_spec(bundle, binds(folders[-1], f"/{place}", *options))
    edit_spec(bundle, lambda spec: spec["process"].update(env=[PATHS, *ask(backend)]))
    before = [tree(folder) for folder in folders]
    assert_found(node, bundle)
    assert [tree(folder) for folder in folders] == before
    assert node.grants() == []


@pytest.mark.parametrize("place", ["usr", "usr/lib"])
def test_a_volume_over_all_of_usr_works_with_a_drivers_limit_and_is_otherwise_refused_in_plain_words(
    node: Node, bundles: Bundles, mode: str, backend: str, volume: Volume, place: str
) -> None:
    bundle = bundles(*ask(backend), args=["cuda-probe", "info"])
    folder = volume(str(bundle / "rootfs" / place))
    edit_spec(bundle, binds(folder, f"/{place}"))
    before, root = tree(folder), tree(bundle / "rootfs")
    if backend == "driver":
        done = node.run(bundle)
        assert "device 0: 1024 MiB free of 1024 MiB" in done.stdout, done.stderr
    else:
        told = refused(node, bundle)
        assert f"it lies on the volume at /{place}, and nothing is written into a volume" in told
        assert tree(bundle / "rootfs") == root
    assert tree(folder) == before
    assert node.grants() == []


# Device nodes.


def test_nothing_is_made_in_a_volume_at_dev(node: Node, bundles: Bundles, mode: str, volume: Volume) -> None:
    folder = volume("")
    for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    for name in ("pts", "shm", "mqueue"):
        (folder / name).mkdir()
    before = tree(folder)
    bundle = bundles("XPU_MEM=1G", args=["sh", "-c", "ls /dev"], change=binds(folder, "/dev"))
    told = refused(node, bundle)
    assert "/dev/nvidia" in told
    assert "it lies on the volume at /dev" in told
    assert tree(folder) == before
    # The container sees the host's own files there, and they stay as they are.
    for source in (node.run_dir / "sim/root/dev").rglob("nvidia*"):
        os.mknod(folder / source.name, stat.S_IFCHR | 0o600, source.stat().st_rdev)
    before = tree(folder)
    done = node.run(bundle)
    assert "nvidia0" in done.stdout, done.stderr
    assert tree(folder) == before


@pytest.mark.parametrize("way", ["link", "no mount"])
def test_a_dev_folder_of_the_images_own_leads_into_no_volume(
    node: Node, bundles: Bundles, mode: str, volume: Volume, way: str
) -> None:
    folder = volume("")

    def change(spec: dict[str, Any]) -> None:
        spec["mounts"] = [each for each in spec["mounts"] if not each["destination"].startswith("/dev")]
        binds(folder, "/host")(spec)

    bundle = bundles("XPU_MEM=1G", args=["ls", "/dev"], change=change)
    if way == "link":
        # A relative one: an absolute one leads the low-level runtime to a folder of the host, where it fails.
        replace_by_link(bundle / "rootfs", "dev", "host")
        assert "it lies on the volume at /host" in refused(node, bundle)
        assert "null" in tree(folder)  # the low-level runtime's own: it has come as far
    else:
        done = node.run(bundle)
        assert "nvidia0" in done.stdout, done.stderr
    assert "nvidia" not in str(tree(folder))


@pytest.mark.parametrize("destination", ["/dev/nvidia-caps", "/link"])
def test_no_node_is_made_in_a_volume_below_dev(
    node: Node, bundles: Bundles, volume: Volume, destination: str, any_mode: str
) -> None:
    node.sim("2xA100-MIG")
    folder = volume("")
    bundle = bundles("XPU_VISIBLE_DEVICES=0:0", change=binds(folder, destination))
    (bundle / "rootfs/link").symlink_to("/dev/nvidia-caps")
    assert "it lies on the volume at /dev/nvidia-caps" in refused(node, bundle)
    assert tree(folder) == {}


@pytest.fixture
def disk(node: Node) -> Iterator[Path]:
    folder = node.folder / "disk"
    folder.mkdir()
    # An overlay's upper folder cannot be on another overlay, which the machine's root may be.
    subprocess.run(["mount", "-t", "tmpfs", "disk", folder], check=True)
    for name in ("lower", "upper", "work"):
        (folder / name).mkdir()
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_nothing_is_made_on_a_file_system_that_outlives_the_container(
    node: Node, bundles: Bundles, mode: str, disk: Path
) -> None:
    """The runtime itself mounts it, so that the host's mounts do not name it."""
    layers = [f"lowerdir={disk}/lower", f"upperdir={disk}/upper", f"workdir={disk}/work"]
    mount = {"destination": "/usr/lib/xpu", "type": "overlay", "source": "overlay", "options": layers}
    bundle = bundles(*ask("library"), change=lambda spec: spec["mounts"].append(mount))
    assert "it lies on the volume at /usr/lib/xpu" in refused(node, bundle)
    assert tree(disk / "upper") == {}
