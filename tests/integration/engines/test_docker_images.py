"""Images as docker makes them: one static program, a commit of a slice, variables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import Docker

LIB = f"usr/lib/{os.uname().machine}-linux-gnu"

Image = Callable[..., str]

pytestmark = pytest.mark.usefixtures("mode")


@pytest.fixture
def make_image(docker: Docker, image_root: Path) -> Iterator[Image]:
    """`make_image("ENV A=b")`: the image of the tests with these lines of a Dockerfile."""
    made: list[str] = []

    def make(*changes: str) -> str:
        made.append(docker.make_image(image_root, f"xpu-test-changed:{len(made)}", *changes))
        return made[-1]

    yield make
    docker.remove_all()
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


def test_an_images_variables_ask_and_those_of_the_container_win_over_them(
    docker: Docker, make_image: Image
) -> None:
    image = make_image("ENV XPU_MEM=4G")
    assert docker.run("XPU_VISIBLE_DEVICES=none", "test", "-e", "/dev/nvidiactl", image=image).status == 1
    image = make_image("ENV NVIDIA_VISIBLE_DEVICES=all", "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    assert "of 15360 MiB" in docker.run("", "cuda-probe", "info", image=image).out
    assert "of 4096 MiB" in docker.run("XPU_MEM=4G", "cuda-probe", "info", image=image).out
    assert "of 2048 MiB" in docker.run("NVIDIA_GPU_MEMORY_LIMIT=2048", "cuda-probe", "info", image=image).out
    assert docker.run("NVIDIA_VISIBLE_DEVICES=void", "test", "-e", "/dev/nvidiactl", image=image).status == 1


def test_the_image_is_left_as_it_was_for_the_next_container(docker: Docker) -> None:
    docker.run("XPU_MEM=1G", "true")
    done = docker.run("", "sh", "-c", f"ls /{LIB}/libcuda* /etc/ld.so.cache /usr/bin/nvidia-smi /dev/nvidia*")
    assert done.out == ""
