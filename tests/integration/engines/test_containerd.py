"""containerd with our runtime as the OCI runtime of its own shim, by way of `ctr`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support import GIB
from support.engine_table import tried
from support.oci_images import write_archive
from xpu_runtime.engines import installed_version

from ..conftest import Node
from .conftest import Completed, Docker, Engines, completed, is_alive, shim_of, until

# Beside other tests, on a busy machine, `ctr run` of a short container once printed nothing and succeeded.
pytestmark = pytest.mark.alone

IMAGE = "test.invalid/xpu-test:1"


class Ctr:
    """`ctr` in a namespace of its own: `ctr.run(["--env", "XPU_MEM=4G"], "nvidia-smi")`."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self._started = 0

    def __call__(self, *words: str) -> Completed:
        socket = self.engines.containerd_socket
        return completed(["ctr", "--address", socket, "--namespace", self.engines.name, *words])

    def must(self, *words: str) -> str:
        done = self(*words)
        assert done.status == 0, f"ctr {' '.join(words)}: {done}"
        return done.out.strip()

    def _run(self, options: Sequence[str], words: Sequence[str], name: str = "") -> tuple[str, Completed]:
        self._started += 1
        container = name or f"{self.engines.name}-{self._started}"
        self.engines.shim_socket(self.engines.name, container)
        done = self(
            "run", "--runtime", "io.containerd.runc.v2", "--runc-binary", str(self.engines.node.runtime),
            "--fifo-dir", f"{self.engines.folder}/fifo", "--cgroup", f"/{self.engines.name}/ctr-{container}",
            *options, IMAGE, container, *words,
        )  # fmt: skip
        return container, done

    def run(self, options: Sequence[str], *words: str) -> Completed:
        """A container from its start to its end."""
        return self._run(["--rm", *options], words)[1]

    def start(self, options: Sequence[str], *words: str, name: str = "") -> str:
        """A container in the background; its id."""
        container, done = self._run(["--detach", *options], words, name)
        assert done.status == 0, done
        return container

    def execute(self, container: str, *words: str) -> Completed:
        fifo = f"{self.engines.folder}/fifo"
        return self("task", "exec", "--exec-id", "x", "--fifo-dir", fifo, container, *words)

    def tasks(self) -> dict[str, tuple[int, str]]:
        """Process and status (RUNNING, STOPPED) of each task."""
        lines = [line.split() for line in self.must("task", "ls").splitlines()[1:]]
        return {name: (int(pid), status) for name, pid, status in lines}

    def remove_all(self) -> None:
        for container in self.tasks():
            self("task", "kill", "--signal", "KILL", container)
            until(lambda c=container: self.tasks()[c][1] == "STOPPED", f"{container} ends")  # type: ignore[misc]
            self.must("task", "delete", container)
        if there := self.must("container", "ls", "--quiet").split():
            self.must("container", "delete", *there)


@pytest.fixture(scope="module")
def image(engines: Engines, image_root: Path) -> None:
    archive = engines.folder / "image.tar"
    write_archive(image_root, archive, IMAGE)
    Ctr(engines).must("image", "import", str(archive))
    archive.unlink()


@pytest.fixture
def ctr(engines: Engines, image: None, node: Node) -> Iterator[Ctr]:
    """ctr on the node; the test's containers are removed when it ends."""
    found = Ctr(engines)
    engines.containerd.ensure()
    yield found
    engines.containerd.ensure()
    found.remove_all()


def test_its_cri_plugin_loads_with_our_file_in_which_no_other_runtime_had_a_name(ctr: Ctr) -> None:
    plugins = [line.split() for line in ctr.must("plugins", "ls").splitlines()[1:]]
    assert [each[-1] for each in plugins if each[:2] == ["io.containerd.grpc.v1", "cri"]] == ["ok"]


@tried("ctr")
def test_a_container_of_containerd_sees_and_is_held_to_its_slice(ctr: Ctr) -> None:
    done = ctr.run(["--env", "XPU_MEM=4G", "--env", "XPU_CORES=30"], "nvidia-smi")
    assert done.status == 0, done
    assert "/   4096MiB" in done.out
    done = ctr.run(["--env", "XPU_MEM=4G"], "cuda-probe", "alloc", "3000", "2000")
    assert "allocating 3000 MiB: CUDA_SUCCESS" in done.out
    assert "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.out
    assert done.status == 3


@tried("ctr")
def test_an_annotation_asks_for_a_slice_and_wins_over_the_variable(ctr: Ctr) -> None:
    done = ctr.run(["--annotation", "yoyoworks.com/xpu-mem=4G"], "cuda-probe", "info")
    assert "of 4096 MiB" in done.out, done
    done = ctr.run(["--annotation", "yoyoworks.com/xpu-mem=4G", "--env", "XPU_MEM=8G"], "cuda-probe", "info")
    assert "of 4096 MiB" in done.out, done


@tried("ctr")
def test_a_refusal_is_ctrs_error_with_the_nearest_request(ctr: Ctr, node: Node) -> None:
    ctr.start(["--env", "XPU_MEM=13G"], "sleep", "1000")
    done = ctr.run(["--env", "XPU_MEM=4G"], "true")
    assert done.status == 1
    assert "xpu: refused: no device has 4G of memory free" in done.error
    assert "the nearest request that fits now: XPU_MEM=2G" in done.error
    done = ctr.run(["--annotation", "yoyoworks.com/xpu-mem=4G"], "true")
    assert "the nearest request that fits now: yoyoworks.com/xpu-mem=2G" in done.error
    assert len(node.json("ps")) == 1


def test_a_killed_and_deleted_task_gives_its_slice_back_and_can_be_started_again(
    ctr: Ctr, node: Node
) -> None:
    container = ctr.start(["--env", "XPU_MEM=4G"], "sleep", "1000")
    (entry,) = node.json("ps")
    assert (entry["container_id"], entry["memory_bytes"]) == (container, 4 * GIB)
    assert entry["pid"] == ctr.tasks()[container][0]
    ctr.must("task", "kill", "--signal", "KILL", container)
    until(lambda: ctr.tasks()[container][1] == "STOPPED", "the task has ended")
    ctr.must("task", "delete", container)
    assert node.json("ps") == []
    ctr.must("task", "start", "--detach", "--fifo-dir", f"{ctr.engines.folder}/fifo", container)
    (entry,) = node.json("ps")
    assert (entry["container_id"], entry["pid"]) == (container, ctr.tasks()[container][0])


def test_in_a_user_namespace_a_container_has_its_slice(
    ctr: Ctr, engines: Engines, node: Node, image_root: Path, base_spec: dict[str, Any]
) -> None:
    """containerd 1.7 starts it with plain runc and ignores --runc-binary: it gets no device at all."""
    # --uidmap would make ctr 1.6 forget --runc-binary too.
    root = engines.folder / "remapped"
    subprocess.run(["cp", "-a", image_root, root], check=True)
    subprocess.run(["chown", "-R", "100000:100000", root], check=True)
    spec = json.loads(json.dumps(base_spec))
    spec["process"].update(args=["sleep", "1000"], terminal=False, env=["PATH=/bin:/usr/bin", "XPU_MEM=4G"])
    spec["root"] = {"path": str(root), "readonly": False}
    spec["linux"]["namespaces"].append({"type": "user"})
    for kind in ("uidMappings", "gidMappings"):
        spec["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    container = f"{engines.name}-remapped"
    spec["linux"]["cgroupsPath"] = f"/{engines.name}/{container}"
    (engines.folder / "spec.json").write_text(json.dumps(spec))
    engines.shim_socket(engines.name, container)
    ctr.must(
        "run", "--detach", "--runc-binary", str(node.runtime), "--fifo-dir", f"{engines.folder}/fifo",
        "--config", f"{engines.folder}/spec.json", container,
    )  # fmt: skip
    done = ctr.execute(container, "sh", "-c", "cat /proc/self/uid_map; cuda-probe alloc 3000 2000")
    assert done.out.split()[:3] == ["0", "100000", "65536"], done
    if (1, 7) <= (installed_version("containerd") or (0, 0)) < (2, 0):
        assert node.json("ps") == []
        assert "No such file" in ctr.execute(container, "ls", "/dev/nvidia0", "/dev/nvidiactl").error
        assert "libcuda.so.1" in done.out + done.error and "MiB" not in done.out
        return
    assert [entry["mode"] for entry in node.json("ps")] == ["spec"]
    assert "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.out
    assert "No such device or address" in ctr.execute(container, "cat", "/dev/nvidia0").error


def test_a_container_lives_on_with_its_slice_when_containerd_is_killed(
    ctr: Ctr, engines: Engines, node: Node
) -> None:
    container = ctr.start(["--env", "XPU_MEM=4G"], "sleep", "1000")
    (before,) = node.json("ps")
    engines.containerd.stop(signal.SIGKILL)
    node.xpu("gc")
    assert node.json("ps") == [before]
    engines.containerd.start()
    assert ctr.tasks()[container][1] == "RUNNING"
    assert ctr.execute(container, "cuda-probe", "alloc", "3000", "2000").status == 3


def test_a_container_that_outlives_containerd_and_its_shim_keeps_its_slice_until_it_ends(
    ctr: Ctr, engines: Engines, node: Node
) -> None:
    container = ctr.start(["--env", "XPU_MEM=4G"], "sleep", "1000")
    (before,) = node.json("ps")
    init = ctr.tasks()[container][0]
    shim = shim_of(init)
    engines.containerd.stop(signal.SIGKILL)
    os.kill(shim, signal.SIGKILL)
    until(lambda: not is_alive(shim), "the shim is gone")
    node.xpu("gc")
    assert node.json("ps") == [before]
    assert is_alive(init)
    engines.containerd.start()  # which finds no shim, and ends the container
    until(lambda: not is_alive(init), "containerd has cleaned up")
    node.xpu("gc")
    assert node.json("ps") == []


def test_the_slice_is_free_again_after_the_shim_and_the_container_were_killed(
    ctr: Ctr, engines: Engines, node: Node
) -> None:
    container = ctr.start(["--env", "XPU_MEM=15G"], "sleep", "1000")
    init = ctr.tasks()[container][0]
    os.kill(shim_of(init), signal.SIGKILL)
    os.kill(init, signal.SIGKILL)
    until(lambda: container not in ctr.tasks() or ctr.tasks()[container][1] == "STOPPED", "containerd saw it")
    assert ctr.run(["--env", "XPU_MEM=15G"], "cuda-probe", "alloc", "14000").status == 0
    node.xpu("gc")
    assert node.json("ps") == []


# Two engines on one node.


def test_docker_and_containerd_share_the_nodes_devices(ctr: Ctr, docker: Docker) -> None:
    docker.hold("XPU_MEM=10G", 9000)
    done = ctr.run(["--env", "XPU_MEM=10G"], "true")
    assert done.status == 1
    assert "5G free, 10G requested" in done.error
    ctr.start(["--env", "XPU_MEM=5G"], "sleep", "1000")
    assert docker.run("XPU_MEM=1G", "true").status == 125


def test_containers_of_two_engines_may_have_one_id(ctr: Ctr, docker: Docker, node: Node) -> None:
    container = docker.hold("XPU_MEM=4G", 3000)
    (dockers,) = node.json("ps")
    assert ctr.start(["--env", "XPU_MEM=8G"], "sleep", "1000", name=container) == container
    assert [entry["memory_bytes"] for entry in node.json("ps")] == [4 * GIB, 8 * GIB]
    ctr.remove_all()
    assert node.json("ps") == [dockers]
    assert docker("exec", container, "cuda-probe", "alloc", "2000").status == 3


def test_annotations_are_told_and_labels_as_such(ctr: Ctr, node: Node) -> None:
    key = "io.kubernetes.cri.sandbox-namespace"
    node.configure(
        f"policy: {{quotas: [{{name: ml, match: {{annotation: {key}, value: ml}}, max_slices: 1}}]}}\n"
    )
    ask = ["--env", "XPU_MEM=1G"]
    ctr.start([*ask, "--annotation", f"{key}=ml"], "sleep", "1000")
    for option in ("--annotation", "--label"):
        refused = ctr.run([*ask, option, f"{key}=ml"], "true")
        assert f"quota ml (annotation {key}=ml): 0 of 1 slices left, 1 requested" in refused.error
    assert ctr.run([*ask, "--annotation", f"{key}=other"], "true").status == 0


def test_a_container_is_known_by_its_namespace_and_its_id_or_nerdctls_name(
    ctr: Ctr, engines: Engines, node: Node, mode: str
) -> None:
    plain = ctr.start(["--env", "XPU_MEM=2G"], "sleep", "1000")
    named = ctr.start(["--env", "XPU_MEM=2G", "--annotation", "nerdctl/name=web"], "sleep", "1000")
    names = {entry["container_id"]: entry["name"] for entry in node.json("ps")}
    assert names == {plain: f"{engines.name}/{plain}", named: f"{engines.name}/web"}
    node.xpu("set", f"{engines.name}/web", "--mem", "3G")
    changed = {entry["container_id"]: entry["memory_bytes"] for entry in node.json("ps")}
    assert changed == {plain: 2 * GIB, named: 3 * GIB}
