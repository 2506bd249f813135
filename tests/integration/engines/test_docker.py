"""docker run --runtime=xpu: a container's devices and limits, and docker's own view of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import GIB, MIB
from support.bundles import RUNC
from support.engine_table import tried

from ..conftest import Node
from .conftest import BACKENDS, PATIENCE, Docker, Engines


def test_dockers_exit_status_is_the_programs(docker: Docker) -> None:
    assert docker.run("XPU_MEM=1G", "sh", "-c", "exit 42").status == 42


def test_a_program_that_is_not_in_the_image_is_dockers_127_and_leaves_no_grant(
    docker: Docker, node: Node, mode: str
) -> None:
    # The warning that nothing holds the cores does not hide runc's error.
    done = docker.run("XPU_MEM=1G XPU_CORES=30", "no-such-program")
    assert done.status == 127
    assert '"no-such-program": executable file not found' in done.error
    assert node.json("ps") == []


def test_two_containers_share_a_card_and_each_has_its_own_limit(docker: Docker, node: Node) -> None:
    docker.hold("XPU_MEM=4G XPU_CORES=30", 3000)
    docker.hold("XPU_MEM=8G XPU_CORES=50", 6000)
    held = {entry["memory_bytes"]: entry["memory_used_bytes"] for entry in node.json("ps")}
    assert held == {4 * GIB: 3000 * MIB, 8 * GIB: 6000 * MIB}
    done = docker.run("XPU_MEM=3G XPU_CORES=20", "cuda-probe", "info")
    assert "of 3072 MiB" in done.out, done


@tried("docker")
def test_a_refusal_is_dockers_error_and_the_nearest_request_that_it_names_is_granted(
    docker: Docker, mode: str
) -> None:
    docker.start("XPU_MEM=13G XPU_CORES=80", "sleep", "1000")
    done = docker.run("XPU_MEM=4G XPU_CORES=30", "true")
    assert done.status == 125
    assert (
        "xpu: refused: no device has 4G of memory and 30% of its cores free (GPU 0: 2G free, "
        "4G requested and 20% cores free, 30% requested); the nearest request that fits now: "
        "XPU_MEM=2G XPU_CORES=20"
    ) in done.error
    assert docker.run("XPU_MEM=2G XPU_CORES=20", "true").status == 0


def test_a_wrong_request_is_dockers_error_in_our_words(docker: Docker) -> None:
    done = docker.run("XPU_MEM=4", "true")
    assert done.status == 125
    assert "XPU_MEM='4': '4' has no unit" in done.error


# Resources that a container can reach.


def _opened(
    docker: Docker, env: str, *nodes: tuple[str, int, int], options: tuple[str, ...] = ()
) -> list[str]:
    """The results of open(2) in a container, for nodes that it makes itself."""
    script = "; ".join(
        f"mknod /dev/{name} c {major} {minor}; cat /dev/{name}" for name, major, minor in nodes
    )
    done = docker.run(env, "sh", "-c", f"{script}; true", options=options)
    assert done.status == 0, done
    return [line.rpartition(": ")[2] for line in done.error.splitlines()]


def test_a_slice_of_gpu_0_opens_no_node_of_gpu_1(
    docker: Docker, topology: Callable[[str], None], mode: str
) -> None:
    topology("2xT4")
    said = _opened(docker, "XPU_MEM=4G XPU_VISIBLE_DEVICES=0", ("own", 195, 0), ("other", 195, 1))
    assert said == ["No such device or address", "Operation not permitted"]


def test_a_container_that_asks_for_nothing_opens_no_device(docker: Docker) -> None:
    assert _opened(docker, "", ("own", 195, 0)) == ["Operation not permitted"]
    assert _opened(docker, "XPU_VISIBLE_DEVICES=none", ("own", 195, 0)) == ["Operation not permitted"]


def test_a_container_sees_the_nodes_of_its_devices_only(
    docker: Docker, node: Node, topology: Callable[[str], None], mode: str
) -> None:
    topology("4xT4")
    done = docker.run("XPU_MEM=4G XPU_VISIBLE_DEVICES=1,3", "sh", "-c", "ls /dev | grep nvidia")
    assert done.out.split() == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia1", "nvidia3", "nvidiactl"]
    done = docker.run("XPU_MEM=4G XPU_VISIBLE_DEVICES=1,3", "nvidia-smi", "-L")
    uuids = [device["uuid"] for device in node.json("devices")]
    assert re.findall(r"GPU-[-0-9a-f]+", done.out) == [uuids[1], uuids[3]]


# A container that asks for nothing.


def _spec(docker: Docker, engines: Engines, env: str, runtime: str) -> dict[str, object]:
    """The low-level runtime's spec of a container, without the parts that differ for each container."""
    options = ["--hostname=h", "--label=l=1", "--memory=64m"]
    container = docker.start(env, "sleep", "1000", options=options, runtime=runtime)
    (bundle,) = (engines.folder / "c-state").glob(f"io.containerd.runtime.v2.task/*/{container}")
    assert not (bundle / "config.json.xpu").exists()
    text = (bundle / "config.json").read_text()
    merged = docker.inspect(container)["GraphDriver"]["Data"]["MergedDir"]
    text = text.replace(container, "ID").replace(merged, "ROOT")
    docker.must("rm", "--force", container)
    found: dict[str, object] = json.loads(text)
    return found


@pytest.mark.parametrize("env", ["", "NVIDIA_VISIBLE_DEVICES=void"])
def test_a_container_that_asks_for_nothing_has_the_spec_that_it_has_with_runc(
    docker: Docker, engines: Engines, mode: str, env: str
) -> None:
    assert _spec(docker, engines, env, "xpu") == _spec(docker, engines, env, "runc")


# Ways to run a container.


@BACKENDS
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--user=1000:1000", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"],
        ["--init"],
        ["--cap-add=SYS_ADMIN", "--cap-add=NET_ADMIN"],
        ["--pid=host", "--ipc=host", "--cgroupns=private"],
        ["--tmpfs=/tmp", "--tmpfs=/run", "--workdir=/tmp"],
        ["--security-opt=seccomp=unconfined"],
        ["--hostname=h", "--memory=64m", "--pids-limit=64", "--cpus=1"],
    ],
    ids=lambda options: " ".join(options) or "no option",
)
def test_a_slice_is_seen_and_held_with_dockers_options(
    docker: Docker, mode: str, options: list[str], ask: str
) -> None:
    done = docker.run(ask, "sh", "-c", "nvidia-smi && cuda-probe alloc 3000 2000 500", options=options)
    assert "/   4096MiB" in done.out, done
    assert "allocating 3000 MiB: CUDA_SUCCESS" in done.out
    assert "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.out
    assert "allocating 500 MiB: CUDA_SUCCESS" in done.out
    assert done.status == 3


#: A runc that leaves out of a new container's spec what this machine's root has not got to give.
#: dockerd asks for every capability that the kernel knows, and runc refuses one that it cannot have itself.
RUNC_WITHIN_ITS_CAPABILITIES = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
if "create" in words:
    config = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(config) as file:
        spec = json.load(file)
    with open("/proc/self/status") as file:
        bounding = next(int(line.split()[1], 16) for line in file if line.startswith("CapBnd:"))
    with open("/usr/include/linux/capability.h") as file:
        lines = [line.split() for line in file if line.startswith("#define CAP_")]
    held = {{line[1] for line in lines if line[2].isdigit() and bounding >> int(line[2]) & 1}}
    capabilities = spec["process"]["capabilities"]
    for kind, names in capabilities.items():
        capabilities[kind] = [name for name in names if name in held]
    with open(config, "w") as file:
        json.dump(spec, file)
os.execv("{RUNC}", ["{RUNC}", *words])
"""


def test_a_privileged_container_has_its_slice(docker: Docker, node: Node, mode: str, tmp_path: Path) -> None:
    runc = tmp_path / "runc"
    runc.write_text(RUNC_WITHIN_ITS_CAPABILITIES)
    runc.chmod(0o755)
    node.configure(f"mode: {mode}\nlow_level_runtimes: [{runc}]\n")
    done = docker.run("XPU_MEM=4G", "cuda-probe", "alloc", "3000", "2000", options=["--privileged"])
    assert done.status == 3, done
    assert "allocating 3000 MiB: CUDA_SUCCESS" in done.out


def test_a_container_with_a_terminal_prints_to_it(docker: Docker) -> None:
    done = docker.run("XPU_MEM=4G", "sh", "-c", "tty && nvidia-smi -L", options=["--tty"])
    assert done.status == 0, done
    assert done.out.startswith("/dev/pts/0\nGPU 0: ")


def test_piped_input_reaches_the_program(docker: Docker) -> None:
    words = [*docker.command, *docker.run_words("XPU_MEM=4G", "cat", options=["--rm", "--interactive"])]
    done = subprocess.run(words, input="a\nb\n", capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "a\nb\n")
