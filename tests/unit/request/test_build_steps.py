"""A build step ignores the variables of its image. It gets the devices that it requests itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.request import source

CONTAINER = "c" * 64
#: The configuration of a build step by docker 20.10, in the relevant parts.
CONFIG: dict[str, Any] = {
    "Config": {"Image": "sha256:0f65", "Healthcheck": {"Test": ["NONE"]}},
    "Name": "/musing_dijkstra",
}
HOST = {"LogConfig": {"Type": "none", "Config": {}}}

Bundle = tuple[str, dict[str, Any]]


def spec(*environment: str, **more: Any) -> dict[str, Any]:
    return {"process": {"env": list(environment)}, "root": {"path": "rootfs"}, **more}


def by_docker(tmp_path: Path, config: dict[str, Any], host: dict[str, Any]) -> Bundle:
    folder = tmp_path / "containers" / CONTAINER
    folder.mkdir(parents=True)
    (folder / "config.v2.json").write_text(json.dumps(config))
    (folder / "hostconfig.json").write_text(json.dumps(host))
    root = {"path": f"{tmp_path}/overlay2/3cb1/merged"}
    return f"/run/io.containerd.runtime.v2.task/moby/{CONTAINER}", spec(root=root)


def by_buildkit(tmp_path: Path) -> Bundle:
    return "/d/buildkit/executor/zlba", spec(hostname="buildkitsandbox")


def by_buildkit_of_another_name(tmp_path: Path) -> Bundle:
    sources = {"/etc/hosts": "hosts.nt9n", "/etc/resolv.conf": "resolv.conf"}
    mounts = [{"destination": to, "source": f"/d/buildkit/executor/{name}"} for to, name in sources.items()]
    return "/d/buildkit/executor/zlba", spec(hostname="mine", mounts=mounts)


def by_buildah(tmp_path: Path) -> Bundle:
    bundle = "/var/tmp/buildah224995320"
    return bundle, spec(root={"path": f"{bundle}/mnt/rootfs"})


STEPS: dict[str, Callable[[Path], Bundle]] = {
    "docker": lambda folder: by_docker(folder, CONFIG, HOST),
    "BuildKit": by_buildkit,
    "BuildKit with another name for the host": by_buildkit_of_another_name,
    "buildah": by_buildah,
}
#: Containers that share a property with build steps, but are none.
OTHERS: dict[str, Callable[[Path], Bundle]] = {
    "an image by its name": lambda folder: by_docker(
        folder,
        {"Config": {**CONFIG["Config"], "Image": "cuda:12"}},
        HOST,
    ),
    "with a log": lambda folder: by_docker(folder, CONFIG, {"LogConfig": {"Type": "json-file"}}),
    "with a health check": lambda folder: by_docker(folder, {"Config": {"Image": "sha256:0f65"}}, HOST),
    "odd files": lambda folder: by_docker(folder, {"Config": []}, {"LogConfig": "none"}),
    "a bundle of that name": lambda _: ("/var/tmp/buildah224995320", spec()),
    "another host": lambda _: ("/b", spec(hostname="buildkit")),
    "no bundle": lambda _: ("", spec()),
}
BY_IMAGE = (("NVIDIA_VISIBLE_DEVICES=all",), ("NVIDIA_VISIBLE_DEVICES=none",), ("CUDA_VERSION=10.0",))


@pytest.mark.parametrize("environment", BY_IMAGE)
@pytest.mark.parametrize("engine", STEPS)
def test_a_step_gets_nothing_because_of_its_image(
    tmp_path: Path, engine: str, environment: tuple[str, ...]
) -> None:
    bundle, found = STEPS[engine](tmp_path)
    found["process"]["env"] = list(environment)
    assert source.from_spec(found, DEFAULTS, bundle) is None


@pytest.mark.parametrize("name", OTHERS)
def test_a_container_outside_a_build_gets_the_devices_of_its_image(tmp_path: Path, name: str) -> None:
    bundle, found = OTHERS[name](tmp_path)
    found["process"]["env"] = ["NVIDIA_VISIBLE_DEVICES=all"]
    request = source.from_spec(found, DEFAULTS, bundle)
    assert request is not None and request.choice == "all"


@pytest.mark.parametrize("engine", STEPS)
def test_a_build_step_gets_the_devices_that_it_requests(tmp_path: Path, engine: str) -> None:
    bundle, found = STEPS[engine](tmp_path)
    for asked in ("XPU_MEM=4G", "NVIDIA_VISIBLE_DEVICES=0"):
        found["process"]["env"] = ["NVIDIA_VISIBLE_DEVICES=all", asked]
        assert source.from_spec(found, DEFAULTS, bundle) is not None
    found["process"]["env"] = ["NVIDIA_VISIBLE_DEVICES=all"]
    found["annotations"] = {"yoyoworks.com/xpu-mem": "4G"}
    assert source.from_spec(found, DEFAULTS, bundle) is not None
