"""Images as they are found: with a loader cache, stubs or links where the driver goes, and variables."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.bundles import copy_root

from ..conftest import Node
from .conftest import Docker

LIB = f"usr/lib/{os.uname().machine}-linux-gnu"
LOADER = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}[
    os.uname().machine
]

Image = Callable[..., str]

pytestmark = pytest.mark.usefixtures("mode")


@pytest.fixture
def make_image(docker: Docker, image_root: Path, tmp_path: Path) -> Iterator[Image]:
    """`make_image(change, "ENV A=b")`: the image of the tests, its root folder changed by a function."""
    made: list[str] = []

    def make(change: Callable[[Path], object] | None = None, *changes: str) -> str:
        root = tmp_path / f"image-{len(made)}"
        copy_root(image_root, root)
        if change is not None:
            change(root)
        made.append(docker.make_image(root, f"xpu-test-changed:{len(made)}", *changes))
        return made[-1]

    yield make
    if there := docker.must("ps", "--all", "--quiet").split():
        docker.must("rm", "--force", *there)
    docker.must("rmi", *made)


def is_held(docker: Docker, image: str) -> None:
    """A container of the image has the driver's own files, and its limit."""
    words = ["sh", "-c", "nvidia-smi && cuda-probe alloc 3000 2000"]
    done = docker.run("XPU_MEM=4G", *words, image=image)
    assert "/   4096MiB" in done.out, done
    assert done.out.splitlines()[-3:] == [
        "allocating 3000 MiB: CUDA_SUCCESS",
        "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY",
        "device 0: 1096 MiB free of 4096 MiB",
    ]


def _ldconfig(root: Path, *folders: str) -> None:
    (root / "etc/ld.so.conf").write_text("".join(f"/{folder}\n" for folder in folders))
    subprocess.run(["ldconfig", "-r", root], check=True)
    assert (root / "etc/ld.so.cache").exists()


def test_an_image_with_a_loader_cache_keeps_what_is_in_it(docker: Docker, make_image: Image) -> None:
    def change(root: Path) -> None:
        (root / "opt/odd").mkdir(parents=True)
        shutil.copy(f"/{LIB}/libz.so.1", root / "opt/odd")
        _ldconfig(root, "opt/odd", LIB)

    image = make_image(change)
    is_held(docker, image)
    listed = docker.run(
        "XPU_MEM=1G",
        LOADER,
        "--preload",
        "libz.so.1 libcuda.so.1",
        "--list",
        "/usr/bin/cuda-probe",
        image=image,
    )
    assert "libz.so.1 => /opt/odd/libz.so.1" in listed.out, listed
    assert f"libcuda.so.1 => /{LIB}/libcuda.so.1" in listed.out


def test_a_cuda_compatibility_library_in_the_images_cache_does_not_come_before_the_driver(
    docker: Docker, make_image: Image
) -> None:
    def change(root: Path) -> None:
        compat = root / "usr/local/cuda/compat"
        compat.mkdir(parents=True)
        # Any library whose SONAME is libcuda.so.1 will do for ldconfig; this one has no function of CUDA's.
        source = root / "none.c"
        source.write_text("")
        subprocess.run(
            ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", compat / "libcuda.so.470.1", source],
            check=True,
        )
        source.unlink()
        _ldconfig(root, "usr/local/cuda/compat", LIB)
        assert (compat / "libcuda.so.1").is_symlink()

    is_held(docker, make_image(change))


def _stub(root: Path) -> None:
    (root / LIB / "libcuda.so.1").write_bytes(b"a stub")
    (root / LIB / "libnvidia-ml.so.1").write_bytes(b"")


def _leftovers(root: Path) -> None:
    """What `docker commit` of a container of the reference runtime leaves: empty files, and links to them."""
    for name in ("libcuda", "libnvidia-ml"):
        (root / LIB / f"{name}.so.470.57.02").write_bytes(b"")
        (root / LIB / f"{name}.so.1").symlink_to(f"{name}.so.470.57.02")
    (root / "usr/bin/nvidia-smi").write_bytes(b"")


def _absolute_link(root: Path) -> None:
    stubs = root / "usr/local/cuda/lib64/stubs"
    stubs.mkdir(parents=True)
    (stubs / "libcuda.so").write_bytes(b"a stub")
    (root / LIB / "libcuda.so").symlink_to("/usr/local/cuda/lib64/stubs/libcuda.so")
    (root / LIB / "libcuda.so.1").symlink_to("libcuda.so")


def _dangling_link(root: Path) -> None:
    (root / LIB / "libcuda.so.1").symlink_to("/nowhere/libcuda.so.1")
    (root / "usr/bin/nvidia-smi").symlink_to("/opt/nvidia/bin/nvidia-smi")


def _garbage_cache(root: Path) -> None:
    (root / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1" + bytes(range(256)))


def _merged_usr(root: Path) -> None:
    for name in ("bin", "lib", "lib64"):
        shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(root / name)
        (root / name).symlink_to(f"usr/{name}")


def _lib64(root: Path) -> None:
    """Fedora's layout, for which Debian's loader needs the cache."""
    _merged_usr(root)
    for file in (root / LIB).iterdir():
        file.rename(root / "usr/lib64" / file.name)
    (root / LIB).rmdir()
    _ldconfig(root, "usr/lib64")


@pytest.mark.parametrize(
    "change",
    [_stub, _leftovers, _absolute_link, _dangling_link, _garbage_cache, _merged_usr, _lib64],
)
def test_what_an_image_has_in_the_drivers_places_does_not_matter(
    docker: Docker, make_image: Image, change: Callable[[Path], None]
) -> None:
    is_held(docker, make_image(change))


def test_links_of_an_image_to_the_hosts_files_change_nothing_on_the_host(
    docker: Docker, make_image: Image, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("the host's")

    def change(root: Path) -> None:
        up = "../" * 20
        (root / LIB / "libcuda.so.1").symlink_to(f"{up}{victim}")
        (root / "etc/ld.so.cache").symlink_to(f"{up}{victim}")
        (root / "usr/bin/nvidia-smi").symlink_to(f"{up}{victim.parent}/new")

    is_held(docker, make_image(change))
    assert victim.read_text() == "the host's"
    assert not (tmp_path / "new").exists()


def test_an_image_with_nothing_but_one_static_program_gets_its_devices(
    docker: Docker, tmp_path: Path
) -> None:
    root = tmp_path / "static"
    root.mkdir()
    shutil.copy("/bin/busybox", root)
    image = docker.make_image(root, "xpu-test-static:1")
    done = docker.run("XPU_MEM=4G", "/busybox", "ls", "/dev", image=image)
    docker.must("rmi", image)
    assert done.status == 0, done
    assert {"nvidia0", "nvidiactl"} <= set(done.out.split())


def test_an_image_committed_from_a_container_with_a_slice_serves_with_one_and_without(docker: Docker) -> None:
    container = docker.start("XPU_MEM=2G", "true")
    docker.must("wait", container)
    docker.must("commit", container, "xpu-test-committed:1")
    try:
        is_held(docker, "xpu-test-committed:1")
        assert docker.run("", "true", image="xpu-test-committed:1", runtime="runc").status == 0
    finally:
        docker.must("rm", "--force", container)
        docker.must("rmi", "xpu-test-committed:1")


def test_a_request_that_an_image_makes_can_be_turned_off(docker: Docker, make_image: Image) -> None:
    image = make_image(None, "ENV XPU_MEM=4G")
    done = docker.run("XPU_VISIBLE_DEVICES=none", "test", "-e", "/dev/nvidiactl", image=image)
    assert done.status == 1, done


def test_an_image_with_nvidias_variable_gets_the_devices_and_xpu_variables_win_over_it(
    docker: Docker, make_image: Image, node: Node
) -> None:
    image = make_image(
        None, "ENV NVIDIA_VISIBLE_DEVICES=all", "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    )
    assert "of 15360 MiB" in docker.run("", "cuda-probe", "info", image=image).out
    assert "of 4096 MiB" in docker.run("XPU_MEM=4G", "cuda-probe", "info", image=image).out
    assert "of 2048 MiB" in docker.run("NVIDIA_GPU_MEMORY_LIMIT=2048", "cuda-probe", "info", image=image).out
    assert docker.run("NVIDIA_VISIBLE_DEVICES=void", "test", "-e", "/dev/nvidiactl", image=image).status == 1


def test_an_old_cuda_image_without_the_variable_gets_the_devices(docker: Docker, make_image: Image) -> None:
    image = make_image(None, "ENV CUDA_VERSION=8.0.61")
    assert "of 15360 MiB" in docker.run("", "cuda-probe", "info", image=image).out


def test_the_image_is_left_as_it_was_for_the_next_container(docker: Docker) -> None:
    docker.run("XPU_MEM=1G", "true")
    done = docker.run("", "sh", "-c", f"ls /{LIB}/libcuda* /etc/ld.so.cache /usr/bin/nvidia-smi /dev/nvidia*")
    assert done.out == ""
