"""A driver whose libraries no loader's cache names: it is found where hosts keep it, and containers get it.

The host is a view of the machine in which the simulated driver's files lie where an installed one's do.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xpu_simulator.simulator import SimState

from ..conftest import Bundles, Node

#: A library in NVML's place that reports when somebody loads it.
EVIL = """#include <fcntl.h>
__attribute__((constructor)) static void loaded(void) { open("%s", O_CREAT | O_WRONLY, 0600); }
"""
#: The parts of a driver outside its folder: /dev, /proc, and the socket of the simulated kernel driver.
HOST = """
mount -t tmpfs none /opt; mkdir {folder}/dev
mount -t tmpfs none {folder}/dev
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty {root}/dev/nvidia* {folder}/dev
mkdir {folder}/dev/shm {folder}/dev/pts; mount --move {folder}/dev /dev
mount -t tmpfs none /proc/driver; cp -a {root}/proc/driver/nvidia /proc/driver
mount --bind {root}/proc/devices /proc/devices
mount -t tmpfs -o mode=755 none /mnt; mkdir /mnt/nvidia-sim /mnt/{folder.name}
mount --bind {root}/run/nvidia-sim /mnt/nvidia-sim; mount --rbind {folder} /mnt/{folder.name}
mount -n --move /mnt /run
"""


@pytest.fixture
def up_beside(up: Callable[..., SimState]) -> Path:
    """The root of a simulated driver that the node does not know."""
    return Path(up("1xT4-R580").root)


@pytest.fixture
def host(node: Node, up_beside: Path) -> Iterator[Callable[[str], None]]:
    """The node on a host whose driver is in the folders lib64 and bin of the one that is given."""
    with node.own_mounts(HOST.format(root=up_beside, folder=node.folder)):

        def put(folder: str) -> None:
            above = "/usr/local" if folder.startswith("/usr") else f"/{folder.split('/')[1]}"
            script = f"""mountpoint -q {above} || mount -t tmpfs none {above}
mkdir -p {folder}/lib64 {folder}/bin
cp -a {up_beside}/usr/lib/*/lib* {folder}/lib64; cp {up_beside}/usr/bin/* {folder}/bin"""
            subprocess.run([*node.view, "sh", "-ec", script], check=True)

        yield put


def looked(node: Node) -> list[str]:
    return [line for line in node.xpu("doctor", check=False).stdout.splitlines() if " driver: " in line]


@pytest.mark.parametrize("folder", ["/usr/local/nvidia", "/home/kubernetes/bin/nvidia", "/opt/nvidia"])
def test_a_container_gets_a_driver_that_lies_in_a_folder_of_its_own(
    node: Node, host: Callable[[str], None], bundles: Bundles, folder: str
) -> None:
    host(folder)
    assert [device["name"] for device in node.json("devices")] == ["Tesla T4"]
    assert [line for line in looked(node) if not line.startswith("ok")] == []
    assert any(f"(in {folder}/lib64, 1 device(s))" in line for line in looked(node))
    done = node.run(bundles("XPU_MEM=4G", "XPU_CORES=30", args=["nvidia-smi"]))
    assert done.returncode == 0, done.stderr
    assert "/   4096MiB" in done.stdout
    done = node.run(bundles("XPU_MEM=4G", args=["cuda-probe", "alloc", "3000", "2000"]))
    assert "2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.stdout


def test_a_driver_that_only_a_shell_knows_is_shown_and_given_to_nobody(
    node: Node, host: Callable[[str], None], bundles: Bundles
) -> None:
    host("/opt/elsewhere")
    assert node.json("devices") == []
    node.environ["LD_LIBRARY_PATH"] = "/opt/elsewhere/lib64"
    assert [device["name"] for device in node.json("devices")] == ["Tesla T4"]
    lines = looked(node)
    assert (
        lines[0].startswith("problem") and "only this shell's LD_LIBRARY_PATH leads to the driver" in lines[0]
    )
    said = node.xpu("doctor", check=False).stdout
    assert "write /opt/elsewhere/lib64 into /etc/ld.so.conf.d/nvidia.conf and run `ldconfig`" in said
    done = node.run(bundles("XPU_MEM=4G"))
    assert done.returncode != 0
    assert "no NVIDIA driver found: libnvidia-ml.so.1 is neither in /etc/ld.so.cache nor in" in done.stderr


def test_an_engines_environment_leads_a_start_to_no_other_driver(
    node: Node, host: Callable[[str], None], bundles: Bundles
) -> None:
    host("/usr/local/nvidia")
    evil, loaded = node.folder / "evil", node.folder / "loaded"
    evil.mkdir()
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        words = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", str(evil / name)]
        subprocess.run(words, input=EVIL % loaded, text=True, check=True)
    node.environ["LD_LIBRARY_PATH"] = str(evil)
    done = node.run(bundles("XPU_MEM=4G", args=["nvidia-smi"]))
    assert "/   4096MiB" in done.stdout, done.stderr
    assert not loaded.exists()
    # The test would see it: the caller's own command finds a driver, and the starts' cache stays.
    node.xpu("devices", check=False)
    assert loaded.exists()
    done = node.run(bundles("XPU_MEM=4G", args=["nvidia-smi"]))
    assert "/   4096MiB" in done.stdout, done.stderr


def test_a_folder_that_others_can_write_is_not_taken_and_that_is_said(
    node: Node, host: Callable[[str], None]
) -> None:
    host("/usr/local/nvidia")
    subprocess.run([*node.view, "chmod", "777", "/usr/local/nvidia"], check=True)
    assert node.json("devices") == []
    assert "users other than root can write to /usr/local/nvidia" in "\n".join(looked(node))


def test_missing_parts_of_a_driver_are_named(node: Node, host: Callable[[str], None]) -> None:
    host("/usr/local/nvidia")
    subprocess.run([*node.view, "sh", "-ec", "rm /usr/local/nvidia/bin/nvidia-smi"], check=True)
    assert any(line.startswith("warning") and "containers get no nvidia-smi" in line for line in looked(node))
    subprocess.run([*node.view, "sh", "-ec", "rm /usr/local/nvidia/lib64/libcuda*"], check=True)
    assert any("no container can compute" in line for line in looked(node))
