"""Steps of an image's build, with our runtime in front of each builder: the slice of a step, and an image
without files of the driver.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine_table import tried

from .root import Root
from .test_packages import PACKAGES, image_in, install
from .ways import IMAGE, Docker

pytestmark = pytest.mark.timeout(900)

#: Files that a step leaves in the image without our runtime: buildah mounts a file there.
BY_BUILDER = {"podman": {"etc/hostname"}}
#: The variables of CUDA's images; a step that prints its slice, and one that changes the image.
DOCKERFILE = """\
FROM image:1
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG XPU_MEM
RUN echo "memory of the step: ${XPU_MEM:-not asked for}"; ls /dev | grep nvidia; cuda-probe info; true
RUN touch /made-by-the-step
"""


class Docker20(Docker):
    """dockerd with our runtime as its default; BuildKit calls our runtime too, under runc's name."""

    def __init__(self, machine: Root) -> None:
        programs = machine.path("/usr/local/sbin")
        programs.mkdir(parents=True, exist_ok=True)
        (programs / "runc").symlink_to("/usr/bin/xpu-container-runtime")
        super().__init__(machine)

    def serve(self, *options: str) -> None:
        self._done("xpu", "runtime", "configure", "docker", "--set-as-default")
        super().serve(*options)


class Build:
    """Builds an image with one builder, and lists the files of images."""

    def __init__(self, machine: Root, builder: str) -> None:
        self.machine = machine
        folder = machine.path("/run/build")
        folder.mkdir(exist_ok=True)
        (folder / "Dockerfile").write_text(DOCKERFILE)
        self._environ = {"DOCKER_BUILDKIT": "1" if builder == "BuildKit" else "0"}
        podman = ["podman", "--storage-driver=vfs", "--cgroup-manager=cgroupfs"]
        # podman's own limits would stop every container: raising them needs CAP_SYS_RESOURCE.
        limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
        if builder == "podman":
            self._engine = [*podman, "--runtime=/usr/bin/xpu-container-runtime"]
            self._build = [*self._engine, "build", *limits]
            script = f"tar -C {IMAGE} -c . | {' '.join(podman)} import - image:1"
            assert machine.run("sh", "-c", script).returncode == 0
        else:
            Docker20(machine)
            self._engine = ["docker"]
            self._build = (
                ["docker", "build", "--progress=plain"] if builder == "BuildKit" else ["docker", "build"]
            )

    def build(self, *options: str) -> str:
        """The output of a build."""
        command = [*self._build, "--no-cache", "--network=none", *options, "--tag=built:1", "/run/build"]
        done = self.machine.run(*command, environ=self._environ)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def files(self, image: str) -> dict[str, tuple[int, str]]:
        """All files of an image by path: size, and target of a link."""
        out = f"/run/build-{image.replace(':', '-')}.tar"
        made = self.machine.run(*self._engine, "save", "--output", out, image)
        assert made.returncode == 0, made.stdout
        found = {}
        with tarfile.open(self.machine.path(out)) as archive:
            manifest = archive.extractfile("manifest.json")
            assert manifest is not None
            for layer in json.load(manifest)[0]["Layers"]:
                member = archive.extractfile(layer)
                assert member is not None
                with tarfile.open(fileobj=io.BytesIO(member.read())) as inner:
                    found.update(
                        {each.name: (each.size, each.linkname) for each in inner if not each.isdir()}
                    )
        self.machine.path(out).unlink()
        return found


@tried("build")
@pytest.mark.parametrize("builder", ["docker's first", "BuildKit", "podman"])
def test_a_step_of_a_build(root: Callable[..., Root], debs: list[Path], builder: str) -> None:
    packages = (
        ("busybox-static", "podman", "python3", "runc") if builder == "podman" else PACKAGES["bookworm"]
    )
    machine = root("bookworm", packages=packages, network=False)
    assert install(machine, debs).returncode == 0
    image_in(machine)
    topology = "1xT4-R580" if builder == "podman" else "1xT4"
    assert machine.run("xpu", "sim", "up", "--topology", topology).returncode == 0
    # buildah calls the runtime in a mount namespace of its own, and the simulated driver takes it for a
    # process of a container. So it needs the device nodes, which every real node has, and may set no limit by
    # R615.
    assert machine.run("cp", "-a", "/run/xpu/sim/root/dev/.", "/dev").returncode == 0
    build = Build(machine, builder)
    before = build.files("image:1")

    expected = {"made-by-the-step", *BY_BUILDER.get(builder, ())}
    # A step that asks for nothing gets nothing, whatever is in use.
    said = build.build()
    assert "memory of the step: not asked for" in said
    assert "nvidia" not in said.replace("grep nvidia", "").replace("NVIDIA", "")
    assert new(before, build.files("built:1")) == expected

    # A step that asks gets its slice, which leaves nothing behind.
    said = build.build("--build-arg=XPU_MEM=4G")
    assert "memory of the step: 4G" in said
    assert "4096 MiB free of 4096 MiB" in said
    assert new(before, build.files("built:1")) == expected
    assert json.loads(machine.run("xpu", "ps", "--json").stdout) == []
    assert not any(machine.path("/run/xpu/builds").iterdir())


def new(before: dict[str, tuple[int, str]], after: dict[str, tuple[int, str]]) -> set[str]:
    """Names in the second image that are not in the first, or differ there."""
    return {path for path, is_now in after.items() if before.get(path) != is_now}
