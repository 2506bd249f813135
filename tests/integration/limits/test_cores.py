"""A cap on cores on real runc: the quota page, with either backend of memory, and live changes."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support import GIB, timing
from xpu_runtime.limits import folders, pages, usage_page

from ..conftest import Bundles, Node

SLEEP = ["sleep", "1000"]
#: The driver of each topology, and the backend that holds memory there.
TOPOLOGY = {"driver": "2xT4", "library": "2xT4-R580"}


def folder(node: Node) -> Path:
    """The grant's folder of the one container that runs."""
    (grant,) = node.grants()
    return node.run_dir / "slices" / Path(folders.of(grant)).name


def page(node: Node) -> pages.Quota:
    return pages.quota(str(folder(node)))


def words(node: Node, device: int = 0) -> list[int]:
    """The page's part of a device, as bytes: memory, cores in 1/10000, adjusted, policy."""
    at = 2048 + 64 * device
    raw = (folder(node) / "quota").read_bytes()[at : at + 32]
    return [int.from_bytes(raw[place : place + 8], "little") for place in range(0, 32, 8)]


@pytest.fixture(params=list(TOPOLOGY))
def memory_by(request: pytest.FixtureRequest, node: Node) -> str:
    name: str = request.param
    node.sim(TOPOLOGY[name])
    return name


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_cap_is_in_the_page_with_any_holder_of_the_memory(
    node: Node, bundles: Bundles, memory_by: str, mode: str
) -> None:
    node.configure(f"mode: {mode}")
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    (entry,) = node.json("ps")
    held = {name: entry[name] for name in entry if name.endswith(("_backend", "_strength"))}
    assert held == {
        "memory_backend": memory_by,
        "memory_strength": "hard" if memory_by == "driver" else "soft",
        "cores_backend": "library",
        "cores_strength": "soft",
    }
    # A limit that the driver holds may change there without our knowing: the page has none then.
    assert words(node) == [4 * GIB if memory_by == "library" else pages.NO_LIMIT, 3000, 0, 0]
    seen = node.oci("exec", container, "cuda-probe", "info").stdout
    assert seen == "device 0: 4096 MiB free of 4096 MiB\n"


def test_cores_alone_and_memory_alone(node: Node, bundles: Bundles, memory_by: str) -> None:
    container = node.start(bundles("XPU_CORES=30", args=SLEEP))
    assert words(node) == [pages.NO_LIMIT, 3000, 0, 0]
    seen = node.oci("exec", container, "cuda-probe", "info").stdout
    assert seen == "device 0: 15360 MiB free of 15360 MiB\n"
    node.remove(container)
    node.start(bundles("XPU_MEM=4G", args=SLEEP))
    if memory_by == "library":
        assert words(node) == [4 * GIB, 0, 0, 0]
    else:
        assert not folder(node).exists()


def test_a_cap_changes_at_once_with_memory_or_without(node: Node, bundles: Bundles, memory_by: str) -> None:
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", "XPU_COUNT=2", args=SLEEP))
    assert page(node).cores == (30, 30)
    told = node.xpu("set", container, "--cores", "60").stdout
    assert told == f"{container}: 60% of the cores of GPU 0\n{container}: 60% of the cores of GPU 1\n"
    assert page(node).cores == (60, 60)
    node.xpu("set", container, "--cores", "5", "--mem", "6G", "--device", "1")
    assert page(node).cores == (60, 5)
    assert [entry["memory_bytes"] for entry in node.json("ps")] == [4 * GIB, 6 * GIB]
    assert [entry["cores"] for entry in node.json("ps")] == [60, 5]
    assert [device["cores_granted"] for device in node.json("devices")] == [60, 5]
    seen = node.oci("exec", container, "cuda-probe", "info").stdout
    assert seen == "device 0: 4096 MiB free of 4096 MiB\ndevice 1: 6144 MiB free of 6144 MiB\n"
    in_force: list[Any] = [
        slice_["cores_in_force"] for slice_ in node.json("inspect", container)["grants"][0]["slices"]
    ]
    assert in_force == [60, 5]


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_how_time_is_shared_stands_in_the_page_and_is_shown(node: Node, bundles: Bundles, mode: str) -> None:
    node.sim("2xT4")
    node.configure(f"mode: {mode}\ncores: {{priority: low}}\n")
    asked = ("XPU_MEM=4G", "XPU_CORES=30", "XPU_COUNT=2", "XPU_SCHED=burst")
    told = node.json("explain", *(word for variable in asked for word in ("-e", variable)))
    assert "cores are shared as burst, with low priority" in told["notes"]
    container = node.start(bundles(*asked, args=SLEEP))
    assert [words(node, device)[1:] for device in (0, 1)] == [[3000, 0, 0x101]] * 2
    told = node.xpu("set", container, "--sched", "weight", "--device", "1").stdout
    assert told == f"{container}: GPU 1: shared as weight, at low priority\n"
    told = node.xpu("set", container, "--cores", "60", "--priority", "high", "--mem", "6G").stdout
    limits = "6G and 60% of the cores of GPU 0"
    assert f"{container}: {limits}; GPU 0: shared as burst, at high priority\n" in told
    assert [words(node, device)[1:] for device in (0, 1)] == [[6000, 0, 0x201], [6000, 0, 0x202]]
    done = node.xpu("ps")
    assert "no agent runs: burst and weight hold as fixed" in done.stderr
    node.xpu("set", container, "--sched", "fixed", "--priority", "normal")
    assert node.xpu("ps").stderr == ""
    node.xpu("set", container, "--sched", "burst", "--priority", "high", "--device", "0")
    node.xpu("set", container, "--sched", "weight", "--priority", "high", "--device", "1")
    listed = [(entry["cores_sched"], entry["cores_priority"]) for entry in node.json("ps")]
    assert listed == [("burst", "high"), ("weight", "high")]
    assert "cores 60% (burst, high priority, got 0%)" in node.xpu("inspect", container).stdout


def test_ps_shows_what_a_container_gets_and_says_where_it_cannot(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    (entry,) = node.json("ps")
    assert entry["cores_got_percent"] == 0
    stop = threading.Event()
    state = {"guesses": 0}

    def use() -> None:
        """A quarter of the device's time, and charges that are guessed while `guesses` is set."""
        with (folder(node) / "usage").open("r+b", buffering=0) as usage:
            started, guesses = time.monotonic_ns(), 0
            while not stop.wait(0.001):
                guesses += state["guesses"]
                used = (time.monotonic_ns() - started) // 4
                os.pwrite(usage.fileno(), used.to_bytes(8, "little"), 2048 + 16)
                os.pwrite(usage.fileno(), guesses.to_bytes(8, "little"), 2048 + 32)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        timing.within(15, 35, lambda: node.json("ps")[0]["cores_got_percent"])
        shown = node.xpu("ps").stdout.splitlines()
        assert "GOT" in shown[0]
        assert re.search(r" 30%    \d\d%  ", shown[1])
        state["guesses"] = 1
        done = node.xpu("ps")
        assert "its use of the time of GPU 0 cannot be measured now" in done.stderr
        assert node.json("ps")[0]["cores_got_percent"] is None
    finally:
        stop.set()
        thread.join()


def test_without_a_holder_a_cap_is_refused_with_what_to_do(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    variables = ("XPU_MEM=1G", "XPU_CORES=30", "XPU_CAPABILITIES=compute,graphics")
    done = node.run(bundles(*variables))
    assert done.returncode != 0
    assert "graphics, whose work on the device the interposer libraries do not see" in done.stderr
    assert "enforcement.allow_unenforced does not list cores" in done.stderr
    node.configure("enforcement: {allow_unenforced: [cores]}")
    assert node.run(bundles(*variables)).returncode == 0


def test_what_the_driver_holds_is_counted_by_the_driver(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=4G", "XPU_CORES=30", args=["cuda-probe", "alloc", "1000", "--hold"])
    container = node.start(bundle)
    while "free of" not in (bundle / "output").read_text():
        time.sleep(0.01)
    (before,) = node.json("ps")
    # The container's own account claims three times as much, and decides nothing.
    (slot,) = [each for each in usage_page.slots(str(folder(node)), 1) if not each.dead]
    at = 4096 + 4096 + slot.slot * (64 + 192) + 64
    with (folder(node) / "usage").open("r+b") as usage:
        usage.seek(at)
        usage.write((3 * GIB).to_bytes(8, "little"))
    (after,) = node.json("ps")
    assert after["memory_used_bytes"] == before["memory_used_bytes"] < 2 * GIB
    node.xpu("set", container, "--mem", "2G")


def test_an_old_page_is_refused_with_a_clear_line(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4-R580")
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    with (folder(node) / "quota").open("r+b") as quota:
        quota.seek(8)
        quota.write((1).to_bytes(4, "little"))
    done = node.xpu("set", container, "--cores", "60", check=False)
    assert done.returncode == 1
    assert "started by another version of this runtime (pages of ABI 1, this one knows 2)" in done.stderr
    assert "start the container again" in done.stderr
    assert [entry["cores"] for entry in node.json("ps")] == [30]
    program = node.oci("exec", container, "cuda-probe", "info")
    assert program.returncode != 0
    assert "was written by an older XPU runtime than these interposer libraries" in program.stderr


def test_mig_devices_have_caps_too_in_part_or_whole(node: Node, bundles: Bundles) -> None:
    node.sim("2xA100-MIG")
    container = node.start(bundles("XPU_MEM=1G", "XPU_CORES=30", "XPU_VISIBLE_DEVICES=0:0,0:1", args=SLEEP))
    assert (page(node).limits, page(node).cores) == ((GIB, GIB), (30, 30))
    node.remove(container)
    node.start(bundles("XPU_CORES=30", "XPU_VISIBLE_DEVICES=0:0", args=SLEEP))
    (entry,) = node.json("ps")
    assert (entry["memory_backend"], entry["memory_strength"]) == ("mig", "hard")
    assert (entry["cores_backend"], entry["cores_strength"]) == ("library", "soft")
    assert words(node)[:2] == [pages.NO_LIMIT, 3000]


def test_without_a_cap_containers_have_equal_turns_and_that_is_shown(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    told = node.xpu("explain", "-e", "XPU_MEM=4G").stdout
    assert "4G, no cap on cores, equal turns with others on the device" in told
    for asked in (("XPU_MEM=4G",), ("XPU_MEM=4G",), ("XPU_MEM=2G", "XPU_CORES=30")):
        node.start(bundles(*asked, args=SLEEP))
    assert [entry["cores_shared"] for entry in node.json("ps")] == ["turns", "turns", "cap"]
    rows = node.xpu("ps").stdout.split("\n")[1:4]
    assert [" equal turns " in row for row in rows] == [True, True, False]
    assert "cores equal turns" in node.xpu("inspect", node.json("ps")[0]["container_id"]).stdout


def test_a_cap_beside_containers_without_one_is_explained_as_no_guarantee(
    node: Node, bundles: Bundles
) -> None:
    node.sim("2xT4")

    def notes(device: str) -> list[str]:
        asked = ["XPU_MEM=1G", "XPU_CORES=70", f"XPU_VISIBLE_DEVICES={device}"]
        told: list[str] = node.json("explain", *(word for each in asked for word in ("-e", each)))["notes"]
        return [each for each in told if "guarantee" in each]

    node.start(bundles("XPU_MEM=1G", "XPU_CORES=30", "XPU_VISIBLE_DEVICES=0", args=SLEEP))
    assert notes("0") == []
    node.start(bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0", args=SLEEP))
    told = "as many turns as this one, so 70% is not guaranteed"
    assert notes("0") == [f"a container without XPU_CORES has a slice of GPU 0: {told}"]
    assert notes("1") == []
    node.start(bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0", args=SLEEP))
    assert notes("0") == [f"2 containers without XPU_CORES have slices of GPU 0: each {told}"]


def test_a_device_that_is_one_containers_alone_is_shared_with_nobody(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    node.start(bundles("XPU_COUNT=1", args=SLEEP))
    (entry,) = node.json("ps")
    assert (entry["cores"], entry["cores_shared"]) == (None, None)
    assert "equal turns" not in node.xpu("ps").stdout
