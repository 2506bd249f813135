"""Memory by NVML in a sandbox: the card has the slice's size, and its used memory is this container's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pynvml

from support import GIB, MIB
from support.simulation import SUCCESS, Process
from xpu_runtime.limits import pages

from ..nvml_sandbox import nvml, smi
from ..sandboxes import Make, Sandbox

Start = Callable[..., Process]
V2 = pynvml.nvmlMemory_v2


def memory(process: Process, device: int = 0) -> tuple[int, int, int]:
    """Total, used, free."""
    info = process.nvml("nvmlDeviceGetMemoryInfo", device)
    return info["total"], info["used"], info["free"]


def using(process: Process, size: int, device: int = 0) -> None:
    assert process.start(device) == SUCCESS
    assert process.alloc(size)[0] == SUCCESS


def test_the_card_has_the_slices_size_and_this_containers_use(sandbox: Make, worker: Start) -> None:
    inside = sandbox(4 * GIB)
    one, two = worker(inside), worker(inside)
    assert memory(two) == (4 * GIB, 0, 4 * GIB)
    using(one, 338 * MIB)
    total, used, free = memory(two)
    assert (total, used, free) == (4 * GIB, inside.total(), 4 * GIB - used)
    assert 338 * MIB <= used < 400 * MIB
    assert memory(one) == (total, used, free)
    using(two, GIB)
    assert memory(one)[1] == inside.total() >= used + GIB
    newer = one.nvml("nvmlDeviceGetMemoryInfo", 0, V2)
    assert newer["total"] == 4 * GIB == newer["used"] + newer["free"] + newer["reserved"]
    assert (newer["used"], newer["reserved"]) == (inside.total(), 0)


def test_cuda_and_nvml_say_the_same(sandbox: Make, worker: Start) -> None:
    one = worker(sandbox(4 * GIB))
    using(one, 100 * MIB)
    result, free, total = one.info()
    assert (result, total, free) == (SUCCESS, memory(one)[0], memory(one)[2])


def test_other_containers_use_is_not_shown(sandbox: Make, worker: Start, tmp_path: Path) -> None:
    first = sandbox(4 * GIB)
    second = beside(first, tmp_path, 2 * GIB)
    one, two = worker(first), worker(second)
    using(one, 3 * GIB)
    assert memory(two) == (2 * GIB, 0, 2 * GIB)
    using(two, GIB)
    assert memory(one)[1] == first.total() < 3 * GIB + 100 * MIB
    assert memory(two)[1] == second.total() < GIB + 100 * MIB


def beside(first: Sandbox, folder: Path, *limits: int | None, uuids: tuple[str, ...] = ()) -> Sandbox:
    """Another sandbox on the first one's devices, or on those named."""
    listed = smi(first, "--query-gpu=uuid", "--format=csv,noheader")
    entries = tuple(map(pages.Entry, uuids or listed.split(), limits))
    made = folder / "beside"
    made.mkdir()
    pages.create(str(made), "another-sandbox", entries)
    return Sandbox(made, first.driver_root, first.interposers)


def test_with_overcommitted_limits_free_memory_is_the_cards(
    sandbox: Make, worker: Start, tmp_path: Path
) -> None:
    first = sandbox(12 * GIB)
    one, two = worker(first), worker(beside(first, tmp_path, 12 * GIB))
    using(one, 10 * GIB)
    using(two, GIB)
    free = 15 * GIB - 11 * GIB
    total, used, shown = memory(two)
    assert total == 12 * GIB
    assert free - 200 * MIB < shown <= free
    newer = two.nvml("nvmlDeviceGetMemoryInfo", 0, V2)
    assert newer["used"] + newer["free"] + newer["reserved"] == newer["total"] == 12 * GIB
    assert (newer["used"], newer["free"]) == (used, shown)


def test_a_killed_processs_memory_is_free_again(sandbox: Make, worker: Start) -> None:
    inside = sandbox(4 * GIB)
    one, two = worker(inside), worker(inside)
    using(one, GIB)
    assert memory(two)[1] >= GIB
    one.kill()
    assert memory(two) == (4 * GIB, 0, 4 * GIB)


def test_a_changed_limit_is_seen_at_once(sandbox: Make, worker: Start) -> None:
    inside = sandbox(4 * GIB)
    one = worker(inside)
    using(one, GIB)
    used = memory(one)[1]
    inside.set_limit(6 * GIB)
    assert memory(one) == (6 * GIB, used, 6 * GIB - used)
    inside.set_limit(512 * MIB)
    assert memory(one) == (512 * MIB, 512 * MIB, 0)
    newer = one.nvml("nvmlDeviceGetMemoryInfo", 0, V2)
    assert [newer[name] for name in ("total", "used", "free", "reserved")] == [512 * MIB, 512 * MIB, 0, 0]
    inside.set_limit(None)
    assert memory(one)[0] == 15360 * MIB


def test_a_limit_above_the_cards_size_shows_the_cards(sandbox: Make, worker: Start) -> None:
    assert memory(worker(sandbox(20 * GIB))) == (15360 * MIB, 0, 15360 * MIB)


def test_the_drivers_own_memory_is_not_in_a_slice(sandbox: Make, worker: Start) -> None:
    whole = (143771 - 615) * MIB
    one = worker(sandbox(whole, topology="2xH200-R580"))
    assert memory(one) == (whole, 0, whole)
    using(one, GIB)
    used = memory(one)[1]
    assert memory(one) == (whole, used, whole - used)
    newer = one.nvml("nvmlDeviceGetMemoryInfo", 0, V2)
    assert [newer[name] for name in ("total", "used", "free", "reserved")] == [whole, used, whole - used, 0]
    assert one.total() == whole and one.info() == [SUCCESS, whole - used, whole]


def test_each_device_has_its_own_limit(sandbox: Make, worker: Start) -> None:
    one = worker(sandbox(4 * GIB, 2 * GIB, topology="2xT4"))
    using(one, 300 * MIB, 1)
    assert memory(one, 0) == (4 * GIB, 0, 4 * GIB)
    assert memory(one, 1)[0] == 2 * GIB
    assert memory(one, 1)[1] >= 300 * MIB


def test_the_bar1_window_is_bounded_by_the_slice(sandbox: Make, worker: Start) -> None:
    inside = sandbox(64 * MIB)
    one = worker(inside)
    window = one.nvml("nvmlDeviceGetBAR1MemoryInfo")
    assert window == {"bar1Total": 64 * MIB, "bar1Free": 64 * MIB, "bar1Used": 0}
    assert one.start() == SUCCESS
    window = one.nvml("nvmlDeviceGetBAR1MemoryInfo")
    assert window["bar1Used"] == min(MIB, inside.total())
    assert window["bar1Used"] + window["bar1Free"] == window["bar1Total"] == 64 * MIB


def test_a_mig_device_has_its_slices_limit(sandbox: Make, tmp_path: Path) -> None:
    card = sandbox(topology="2xA100-MIG")
    uuids = [line.split("UUID: ")[1].rstrip(")") for line in smi(card, "-L").splitlines()]
    inside = beside(card, tmp_path, 4 * GIB, uuids=(uuids[2],))
    script = f"""
mig = nvmlDeviceGetHandleByUUID({uuids[2]!r})
other = nvmlDeviceGetHandleByUUID({uuids[1]!r})
said = [ask(nvmlDeviceGetMemoryInfo, mig), ask(nvmlDeviceGetMemoryInfo, other),
        ask(nvmlDeviceGetMemoryInfo, card), ask(nvmlDeviceGetAttributes_v2, mig)["memorySizeMB"],
        ask(nvmlDeviceGetAttributes_v2, other)["memorySizeMB"], ask(nvmlDeviceGetUtilizationRates, card)]
"""
    mig, other, whole, size, other_size, rates = nvml(inside, script)
    assert (mig["total"], size) == (4 * GIB, 4096)
    assert (other["total"], other_size) == (40192 * MIB, 40192)
    assert whole["total"] == 81920 * MIB
    assert rates == {"error": pynvml.NVML_ERROR_NOT_SUPPORTED}
    table = " ".join(smi(inside).split())
    assert "0MiB / 4096MiB" in table
    assert "0MiB / 40192MiB" in table


def test_errors_are_the_drivers(sandbox: Make) -> None:
    script = """
library = ctypes.CDLL("libnvidia-ml.so.1")
memory, newer = c_nvmlMemory_t(), c_nvmlMemory_v2_t()
newer.version = 1
said = [library.nvmlDeviceGetMemoryInfo(card, None),
        library.nvmlDeviceGetMemoryInfo(None, ctypes.byref(memory)),
        library.nvmlDeviceGetMemoryInfo_v2(card, ctypes.byref(newer))]
nvmlShutdown()
said += [library.nvmlDeviceGetMemoryInfo(card, ctypes.byref(memory)), library.nvmlShutdown()]
"""
    assert nvml(sandbox(GIB), script) == [2, 2, 25, 1, 1]


def test_an_old_driver_answers_with_the_functions_that_it_has(sandbox: Make) -> None:
    script = """
said = [ask(nvmlDeviceGetMemoryInfo, card)["total"],
        ask(nvmlDeviceGetMemoryInfo, card, nvmlMemory_v2)["total"],
        ask(nvmlDeviceGetComputeRunningProcesses_v2, card), ask(nvmlDeviceGetDynamicPstatesInfo, card)]
"""
    missing = {"error": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    assert nvml(sandbox(GIB, topology="1xT4-R470"), script) == [GIB, GIB, [], missing]
