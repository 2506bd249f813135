"""A container whose memory limit the interposers hold: its files, and its limit in use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import MIB
from xpu_runtime.limits import pages

from ..conftest import Bundles, Node
from ..refusals import refused

FOLDER = "/usr/lib/xpu"


@pytest.fixture(params=["hook", "spec"])
def mode(node: Node, request: pytest.FixtureRequest) -> str:
    """Both ways of carrying out a plan, with a driver that holds no limits."""
    node.sim("1xT4-R580")
    node.configure(f"mode: {request.param}")
    return str(request.param)


def slices(node: Node) -> list[Path]:
    """The grants' folders of pages on the host."""
    top = node.run_dir / "slices"
    return sorted(top.iterdir()) if top.exists() else []


def test_the_pages_and_the_real_libraries_lie_aside(node: Node, bundles: Bundles, mode: str) -> None:
    done = node.run(bundles("XPU_MEM=4G", args=["cat", "/proc/self/mountinfo"]))
    options = {line.split()[4]: line.split()[5].split(",") for line in done.stdout.splitlines()}
    found = {path.removeprefix(FOLDER + "/"): flags for path, flags in options.items() if FOLDER in path}
    assert set(found) == {"libcuda.real", "libnvidia-ml.real", "quota", "usage"}
    for name, flags in found.items():
        assert {"nosuid", "nodev"} <= set(flags), name
        assert ("rw" if name == "usage" else "ro") in flags, name
        assert ("noexec" in flags) == (name in ("quota", "usage")), name


@pytest.mark.parametrize("capabilities", ["compute", "compute,utility", "all"])
def test_programs_find_the_interposer_by_every_name(
    node: Node, bundles: Bundles, mode: str, capabilities: str
) -> None:
    folder = f"/usr/lib/{os.uname().machine}-linux-gnu"
    script = f"for name in libcuda.so.1 libcuda.so.580.105.08; do md5sum < {folder}/$name; done"
    bundle = bundles("XPU_MEM=4G", f"XPU_CAPABILITIES={capabilities}", args=["sh", "-c", script])
    done = node.run(bundle)
    interposer = node.prefix / "lib/xpu-container-runtime/native/interposer/nvidia/libcuda.so.1"
    ours = subprocess.run(["md5sum"], stdin=interposer.open(), capture_output=True, text=True).stdout
    assert done.stdout == ours * 2, done.stderr


def test_the_limit_cannot_be_written_in_the_container(node: Node, bundles: Bundles, mode: str) -> None:
    script = f"echo 12345678 > {FOLDER}/quota; rm {FOLDER}/quota; mount -o remount,rw,bind {FOLDER}/quota"
    done = node.run(bundles("XPU_MEM=4G", args=["sh", "-c", f"{script}; cuda-probe info"]))
    assert done.stdout.splitlines()[-1].endswith("of 4096 MiB"), done.stderr
    assert "ead-only file system" in done.stderr


@pytest.mark.parametrize("variable", [f"LD_LIBRARY_PATH={FOLDER}", f"LD_LIBRARY_PATH=/tmp:{FOLDER}:/usr/lib"])
def test_no_search_path_leads_round_the_interposers(
    node: Node, bundles: Bundles, mode: str, variable: str
) -> None:
    done = node.run(bundles("XPU_MEM=4G", variable, args=["cuda-probe", "alloc", "3000", "2000"]))
    assert done.returncode == 3
    assert "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY" in done.stdout


@pytest.mark.parametrize(
    "variable",
    [
        f"LD_PRELOAD={FOLDER}/libcuda.real",
        "LD_PRELOAD=/lib/x.so:/lib/../usr//lib/xpu/libcuda.real",
        f"NUMBA_CUDA_DRIVER={FOLDER}/libcuda.real",
        f"LD_AUDIT={FOLDER}/libnvidia-ml.real",
    ],
)
def test_no_variable_of_an_image_leads_round_the_interposers(
    node: Node, bundles: Bundles, mode: str, variable: str
) -> None:
    bundle = bundles("XPU_MEM=4G", variable, args=["cuda-probe", "info"])
    done = node.run(bundle)
    name = variable.partition("=")[0]
    assert done.returncode != 0
    assert "MiB free" not in done.stdout
    assert f"{name}=" in done.stderr
    assert f"bypasses the memory limit: leave {name} out" in done.stderr
    assert node.json("ps") == []


def test_a_usage_page_that_a_container_makes_larger_fills_nothing_of_the_host(
    node: Node, bundles: Bundles, mode: str
) -> None:
    script = f"dd if=/dev/zero of={FOLDER}/usage bs=1M count=200 conv=notrunc; exec sleep 1000"
    bundle = bundles("XPU_MEM=4G", args=["sh", "-c", script])
    node.start(bundle)
    while "records out" not in (bundle / "output").read_text():
        assert node.oci("state", bundle.name).returncode == 0
    assert "No space left" in (bundle / "output").read_text()
    (folder,) = slices(node)
    # The program has filled the folder's own file system, which is only as large as the pages.
    assert folder.stat().st_dev != node.run_dir.stat().st_dev
    there = os.statvfs(folder)
    assert there.f_bavail == 0
    # In whole blocks.
    assert (there.f_blocks - 1) * there.f_frsize < pages.usage_size(1) + (64 << 10)
    # The host's commands bear what it wrote, and other containers get their slices.
    assert len(node.json("ps")) == 1
    assert node.run(bundles("XPU_MEM=4G", args=["cuda-probe", "info"])).returncode == 0


def test_the_containers_end_takes_its_pages_away(node: Node, bundles: Bundles, mode: str) -> None:
    container = node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    (folder,) = slices(node)
    assert {file.name for file in folder.iterdir()} == {"quota", "usage", "complete"}
    assert os.path.ismount(folder)
    # No other user of the host reaches a page.
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    node.remove(container)
    assert slices(node) == []


def test_a_refused_container_leaves_no_pages(node: Node, bundles: Bundles, mode: str) -> None:
    bundle = bundles("XPU_MEM=4G")
    place = bundle / "rootfs" / FOLDER[1:] / "quota"
    place.mkdir(parents=True)
    assert "cannot mount" in refused(node, bundle)
    assert (slices(node), node.grants()) == ([], [])
    shutil.rmtree(place)
    assert node.run(bundle).returncode == 0


def test_gc_takes_away_what_a_killed_call_left(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4-R580")
    container = node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    stray = node.run_dir / "slices" / "77-1"
    stray.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "stray", stray], check=True)
    node.xpu("gc")
    (folder,) = slices(node)
    assert folder.name != "77-1"
    node.remove(container)


def test_a_whole_device_needs_no_interposer(node: Node, bundles: Bundles, mode: str) -> None:
    done = node.run(bundles("XPU_COUNT=1", args=["sh", "-c", f"ls {FOLDER}; cuda-probe info"]))
    assert "No such file" in done.stderr
    assert (node.run_dir / "slices").exists() is False


def test_a_variable_for_the_interposers_alone_asks_for_nothing(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4-R580")
    assert node.run(bundles("XPU_LOG=debug", args=["cat", "/proc/mounts"])).stdout.count("xpu") == 0
    assert node.run(bundles("XPU_LOG=debug", "XPU_MEM=4G", args=["nvidia-smi"])).returncode == 0


def test_with_a_user_namespace_the_pages_are_there_too(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4-R580")

    def map_users(spec: dict[str, Any]) -> None:
        spec["linux"]["namespaces"].append({"type": "user"})
        mapping = [{"containerID": 0, "hostID": 100000, "size": 65536}]
        spec["linux"].update(uidMappings=mapping, gidMappings=mapping)

    bundle = bundles("XPU_MEM=4G", args=["cuda-probe", "alloc", "3000", "2000"], change=map_users)
    subprocess.run(["chown", "-R", "100000:100000", bundle / "rootfs"], check=True)
    for folder in (node.folder, bundle):
        folder.chmod(0o755)
    assert node.run(bundle).stdout.splitlines()[:2] == [
        "allocating 3000 MiB: CUDA_SUCCESS",
        "allocating 2000 MiB: CUDA_ERROR_OUT_OF_MEMORY",
    ]


def test_the_interposers_log_goes_to_stderr_or_into_a_file(node: Node, bundles: Bundles, mode: str) -> None:
    ask = ("XPU_MEM=4G", "XPU_LOG=debug")
    done = node.run(bundles(*ask, args=["cuda-probe", "alloc", "3000", "2000"]))
    lines = [line for line in done.stderr.splitlines() if line.startswith("xpu[")]
    assert [line.partition(": ")[2] for line in lines if "refused" in line] == [
        "device 0: refused 2000 MiB: 1096 MiB free of 4096 MiB"
    ], done.stderr
    assert "not the card's" not in done.stderr
    quiet = node.run(bundles("XPU_MEM=4G", args=["cuda-probe", "alloc", "3000", "2000"]))
    assert quiet.stderr == (
        "xpu: out of memory by this container's limit, not the card's: 2000 MiB requested, 1096 MiB free "
        "of the 4096 MiB of its slice of GPU 0 (XPU_LOG=off hides this line)\n"
    )
    hidden = node.run(bundles("XPU_MEM=4G", "XPU_LOG=off", args=["cuda-probe", "alloc", "3000", "2000"]))
    assert hidden.stderr == ""
    script = "cuda-probe alloc 3000 2000; cat /tmp/of-xpu"
    filed = node.run(bundles("XPU_MEM=4G", "XPU_LOG=debug:/tmp/of-xpu", args=["sh", "-c", script]))
    assert "refused" in filed.stdout
    assert filed.stderr == quiet.stderr


def test_a_program_whose_page_is_covered_gets_no_card_and_is_told_why(
    node: Node, bundles: Bundles, mode: str
) -> None:
    def cover(spec: dict[str, Any]) -> None:
        spec["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
        for kind in ("effective", "permitted"):
            spec["process"]["capabilities"][kind].append("CAP_SYS_ADMIN")

    script = f"mount -t tmpfs none {FOLDER} || exit 9; cuda-probe info"
    done = node.run(bundles("XPU_MEM=4G", args=["sh", "-c", script], change=cover))
    # Without the real library under our folder the interposer itself does not load: never an unlimited card.
    assert done.returncode == 1
    assert "MiB free" not in done.stdout
    script = f"touch /tmp/none; mount --bind /tmp/none {FOLDER}/quota || exit 9; cuda-probe info; nvidia-smi"
    done = node.run(bundles("XPU_MEM=4G", args=["sh", "-c", script], change=cover))
    assert "CUDA_ERROR_NOT_PERMITTED" in done.stderr
    told = [line for line in done.stderr.splitlines() if "start the container anew" in line]
    assert len(told) == 2, done.stderr  # one of each program
    assert "MiB free" not in done.stdout


def test_explain_shows_the_interposers_and_books_nothing(node: Node) -> None:
    node.sim("2xT4-R580")
    told = json.loads(node.xpu("explain", "--json", "-e", "XPU_MEM=4G").stdout)
    assert told["slices"][0]["memory_backend"] == "library"
    assert told["slices"][0]["memory_strength"] == "soft"
    assert any(f"at {FOLDER}/libcuda.real" in line for line in told["operations"])
    assert slices(node) == []


def test_a_limit_that_the_driver_holds_beside_one_of_the_library_is_in_no_page(
    node: Node, bundles: Bundles
) -> None:
    """The page would keep the old limit when the driver's changes."""
    topology = node.folder / "one-of-each.yaml"
    topology.write_text("gpus: [{model: A100-SXM4-80GB}, {model: A100-SXM4-80GB, mig: [3g.40gb]}]")
    node.sim(topology)
    container = node.start(bundles("XPU_MEM=4G", "XPU_VISIBLE_DEVICES=0,1:0", args=["sleep", "1000"]))
    assert [entry["memory_backend"] for entry in node.json("ps")] == ["driver", "library"]
    node.xpu("set", container, "--mem", "6G")
    (grant,) = node.json("inspect", container)["grants"]
    assert [part["limit_in_force_bytes"] for part in grant["slices"]] == [6144 * MIB] * 2
    assert node.json("inspect", container)["problems"] == []
    shown = node.oci("exec", container, "nvidia-smi").stdout
    assert "4096MiB" not in shown
    assert shown.count("/   6144MiB") >= 1
