"""The container's own loader finds the driver's libraries, wherever the image has its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.linux import ldcache

from ..conftest import Bundles, Node
from ..inside import LDCONFIG, MULTIARCH, tree
from ..refusals import refused
from .images import PROBE, assert_found

# Where images have their libraries.


def merge_usr(root: Path) -> None:
    """/bin, /lib, /lib64 and /sbin are links into /usr."""
    for name in ("bin", "lib", "lib64"):
        old = root / name
        shutil.copytree(old, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(old)
        old.symlink_to(f"usr/{name}")


def move_libraries(root: Path, folder: str) -> None:
    """All libraries to one folder of /usr, with /usr merged, as Red Hat's and Arch's are."""
    merge_usr(root)
    (root / folder).mkdir(exist_ok=True)
    for library in list((root / MULTIARCH).iterdir()):
        library.rename(root / folder / library.name)
    (root / MULTIARCH).rmdir()


def debian(root: Path) -> None:
    pass


def debian_merged(root: Path) -> None:
    merge_usr(root)


def red_hat(root: Path) -> None:
    move_libraries(root, "usr/lib64")
    # Debian's loader, which stands in for Red Hat's, does not search there by itself.
    (root / "etc/ld.so.conf").write_text("/usr/lib64\n")
    subprocess.run([LDCONFIG, "-r", root], check=True)


def arch(root: Path) -> None:
    move_libraries(root, "usr/lib")


LAYOUTS: dict[Callable[[Path], None], str] = {
    debian: MULTIARCH,
    debian_merged: MULTIARCH,
    red_hat: "usr/lib64",
    arch: "usr/lib",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_libraries_go_where_the_images_own_are_and_an_ldconfig_inside_keeps_them_found(
    node: Node, bundles: Bundles, mode: str, layout: Callable[[Path], None]
) -> None:
    bundle = bundles("XPU_MEM=1G", args=["sh", "-c", f"{PROBE[-1]} && /usr/ldconfig && {PROBE[-1]}"])
    root = bundle / "rootfs"
    layout(root)
    shutil.copy(LDCONFIG, root / "usr/ldconfig")
    done = node.run(bundle)
    assert (done.returncode, done.stdout.count("1024 MiB free of 1024 MiB")) == (0, 2), done.stderr
    folders = {path.parent.relative_to(root.resolve()) for path in root.rglob("libcuda.so.*")}
    assert folders == {Path(LAYOUTS[layout])}


# Caches that an image brings.


def test_libraries_in_the_images_cache_are_still_found(node: Node, bundles: Bundles, mode: str) -> None:
    script = "$(ls /lib*/ld-linux-*.so.*) --preload libodd.so.7 /usr/bin/cuda-probe info && nvidia-smi -L"
    bundle = bundles("XPU_MEM=1G", args=["sh", "-c", script])
    root = bundle / "rootfs"
    (root / "opt/odd").mkdir(parents=True)
    source = root / "odd.c"
    source.write_text("int odd;")
    subprocess.run(
        ["gcc", "-shared", "-Wl,-soname,libodd.so.7", "-o", root / "opt/odd/libodd.so.7", source], check=True
    )
    (root / "etc/ld.so.conf").write_text("/opt/odd\n")
    subprocess.run([LDCONFIG, "-r", root], check=True)
    assert_found(node, bundle)
    done = node.run(bundle)
    assert "libodd" not in done.stderr  # "cannot be preloaded" if it is not found
    shutil.rmtree(root / "opt/odd")
    assert "libodd" in node.run(bundle).stderr


def garbage(cache: Path) -> None:
    cache.write_bytes(b"glibc-ld.so.cache1.1" + b"\xff" * 4000)


def cut_off(cache: Path) -> None:
    cache.write_bytes(Path("/etc/ld.so.cache").read_bytes()[:1000])


def huge(cache: Path) -> None:
    with cache.open("wb") as file:
        file.truncate(1 << 33)


def link_to_nothing(cache: Path) -> None:
    cache.symlink_to("/nowhere/at/all")


def link_to_another_file(cache: Path) -> None:
    (cache.parent / "elsewhere").write_text("not a cache")
    cache.symlink_to("elsewhere")


def link_to_itself(cache: Path) -> None:
    cache.symlink_to(cache.name)


def nothing_to_read(cache: Path) -> None:
    cache.write_bytes(b"")
    cache.chmod(0)


@pytest.mark.parametrize(
    "plant", [garbage, cut_off, huge, link_to_nothing, link_to_another_file, link_to_itself, nothing_to_read]
)
def test_a_cache_that_makes_no_sense_is_replaced(
    node: Node, bundles: Bundles, mode: str, plant: Callable[[Path], None]
) -> None:
    bundle = bundles("XPU_MEM=1G", args=PROBE)
    cache = bundle / "rootfs/etc/ld.so.cache"
    plant(cache)
    assert_found(node, bundle)
    if plant is link_to_another_file:
        assert (bundle / "rootfs/etc/elsewhere").read_text() == "not a cache"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def of_many_entries(cache: Path) -> None:
    entries = [ldcache.Entry(f"lib{number}.so", "/x", 1) for number in range(16385)]
    cache.write_bytes(ldcache.build(entries))


def of_many_bytes(cache: Path) -> None:
    """Of 28 MiB, as a hostile image had one: it cost 20 s and 615 MiB of memory at each start."""
    head = ldcache.build([ldcache.Entry("libnone.so", "/x", 1)])
    cache.write_bytes(head.ljust(28 << 20, b"\0"))


def refused_and_left_alone(node: Node, bundle: Path) -> str:
    """Why the bundle's start is refused, which leaves nothing behind."""
    before = tree(bundle / "rootfs")
    told = refused(node, bundle)
    assert tree(bundle / "rootfs") == before
    assert node.grants() == []
    return told


@pytest.mark.parametrize("plant", [of_many_entries, of_many_bytes])
def test_a_cache_larger_than_any_images_is_refused_at_once(
    node: Node, bundles: Bundles, mode: str, plant: Callable[[Path], None]
) -> None:
    """Ours in its place would silently hide libraries that the image's programs need."""
    bundle = bundles("XPU_MEM=1G")
    plant(bundle / "rootfs/etc/ld.so.cache")
    told = refused_and_left_alone(node, bundle)
    assert "/etc/ld.so.cache: the image's has" in told
    assert "or run ldconfig in the image" in told


@pytest.mark.parametrize("plant", [fifo, folder])
def test_something_else_in_the_caches_place_is_named_and_nothing_is_left(
    node: Node, bundles: Bundles, mode: str, plant: Callable[[Path], None]
) -> None:
    bundle = bundles("XPU_MEM=1G")
    plant(bundle / "rootfs/etc/ld.so.cache")
    told = refused_and_left_alone(node, bundle)
    assert "/etc/ld.so.cache" in told
    assert "the image has something else at that place" in told
    assert told.startswith(("cannot write", "cannot add", "cannot put"))


# Files that an image brings under the libraries' names.


def test_a_library_of_the_images_own_is_covered(node: Node, bundles: Bundles, mode: str) -> None:
    bundle = bundles("XPU_MEM=1G", args=["sh", "-c", f"/usr/ldconfig && {PROBE[-1]}"])
    root = bundle / "rootfs"
    own = root / MULTIARCH / "libcuda.so.1"
    own.write_text("a stub of the image's")
    shutil.copy(LDCONFIG, root / "usr/ldconfig")
    assert_found(node, bundle)
    assert own.read_text() == "a stub of the image's"


def to_another_driver(root: Path) -> None:
    """As `docker commit` of a container of the reference runtime leaves them, with an empty nvidia-smi."""
    for name in ("libcuda", "libnvidia-ml"):
        (root / MULTIARCH / f"{name}.so.470.1").write_text("another driver's")
        (root / MULTIARCH / f"{name}.so.1").symlink_to(f"{name}.so.470.1")
    (root / "usr/bin/nvidia-smi").touch()


def to_a_stub(root: Path) -> None:
    stubs = root / "usr/local/cuda/lib64/stubs"
    stubs.mkdir(parents=True)
    (stubs / "libcuda.so").write_text("a stub")
    (root / MULTIARCH / "libcuda.so").symlink_to("/usr/local/cuda/lib64/stubs/libcuda.so")
    (root / MULTIARCH / "libcuda.so.1").symlink_to("libcuda.so")


def to_nothing(root: Path) -> None:
    (root / MULTIARCH / "libcuda.so.1").symlink_to("/nowhere/libcuda.so.1")
    (root / "usr/bin/nvidia-smi").symlink_to("/opt/nvidia/bin/nvidia-smi")


@pytest.mark.parametrize("plant", [to_another_driver, to_a_stub, to_nothing])
def test_a_link_of_the_images_own_does_not_lead_elsewhere(
    node: Node, bundles: Bundles, mode: str, plant: Callable[[Path], None]
) -> None:
    bundle = bundles("XPU_MEM=1G", args=PROBE)
    plant(bundle / "rootfs")
    assert_found(node, bundle)
    for file in (bundle / "rootfs" / MULTIARCH).glob("lib*.so.470.1"):
        assert file.read_text() == "another driver's"


def test_another_library_that_the_images_cache_names_does_not_come_first(
    node: Node, bundles: Bundles, mode: str
) -> None:
    bundle = bundles("XPU_MEM=1G", args=PROBE)
    root = bundle / "rootfs"
    stubs = root / "usr/local/stubs"
    stubs.mkdir(parents=True)
    (root / "stub.c").write_text("int stub;")
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        words: list[str | Path] = [
            "gcc",
            "-shared",
            f"-Wl,-soname,{soname}",
            "-o",
            stubs / soname,
            root / "stub.c",
        ]
        subprocess.run(words, check=True)
    (root / "etc/ld.so.conf").write_text("/usr/local/stubs\n")
    subprocess.run([LDCONFIG, "-r", root], check=True)
    assert_found(node, bundle)


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcuda.so.615.36.02", "libnvidia-ml.so.1"])
def test_a_folder_in_a_librarys_place_is_named_and_nothing_is_left(
    node: Node, bundles: Bundles, mode: str, name: str
) -> None:
    bundle = bundles("XPU_MEM=1G")
    (bundle / "rootfs" / MULTIARCH / name).mkdir()
    told = refused_and_left_alone(node, bundle)
    assert f"/{MULTIARCH}/{name}" in told
    assert "the image has something else at that place" in told


# Roots that cannot be written.


def test_a_root_that_the_container_cannot_write_is_prepared_all_the_same(
    node: Node, bundles: Bundles, mode: str
) -> None:
    def read_only(spec: dict[str, Any]) -> None:
        spec["root"]["readonly"] = True

    script = ["sh", "-c", f"touch /a 2>/dev/null && exit 9; {PROBE[-1]}"]
    assert_found(node, bundles("XPU_MEM=1G", args=script, change=read_only))


@pytest.fixture
def make_read_only() -> Iterator[Callable[[Path], None]]:
    mounted: list[Path] = []

    def make(folder: Path) -> None:
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        mounted.append(folder)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)

    yield make
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_root_on_a_read_only_file_system_is_refused_with_what_to_do(
    node: Node, bundles: Bundles, mode: str, make_read_only: Callable[[Path], None]
) -> None:
    bundle = bundles("XPU_MEM=1G")
    before = tree(bundle / "rootfs")
    make_read_only(bundle / "rootfs")
    told = refused(node, bundle)
    assert "libcuda.so" in told or "libnvidia-ml.so" in told
    assert "Read-only file system" in told
    assert "the image's root is on a read-only file system" in told
    assert tree(bundle / "rootfs") == before
    assert node.grants() == []
