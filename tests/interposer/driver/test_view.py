"""The CUDA interposer: a program's view of the card, and no card without valid pages."""

from __future__ import annotations

import pytest

from support import GIB, MIB
from xpu_runtime.limits import pages

from ..calls import NOT_PERMITTED, OUT, OUT_OF_MEMORY, SUCCESS, Program, Start, number
from ..sandboxes import FOLDER, Make, Sandbox

T4 = 15 * GIB
TWO = {"driver": "R580", "gpus": [{"model": "T4", "count": 2}]}
SMALL = {"driver": "R580", "gpus": [{"model": "T4", "memory_mib": 1024}]}


def info_v1(user: Program) -> list[int]:
    """The result, free and total by 32-bit numbers."""
    result, *sizes = user.call("symbol:cuMemGetInfo", OUT, OUT)
    return [result, *map(number, sizes)]


def test_the_card_is_as_large_as_the_limit(caller: Start, way: str) -> None:
    user = caller(2 * GIB, way=way)
    assert user.total() == [SUCCESS, 2 * GIB]
    assert user.info() == [SUCCESS, 2 * GIB, 2 * GIB]
    user.alloc(512 * MIB)
    assert user.info() == [SUCCESS, 1536 * MIB, 2 * GIB]
    assert user.pair("symbol:cuDeviceTotalMem", OUT, 0) == [SUCCESS, 2 * GIB]
    assert info_v1(user) == [SUCCESS, 1536 * MIB, 2 * GIB]


def test_nvml_is_the_interposer_also_after_cuda_has_used_the_real_one(sandbox: Make, caller: Start) -> None:
    user = caller(sandbox(2 * GIB))
    assert user.nvml_total() == 2 * GIB


def test_without_a_limit_the_card_is_itself(caller: Start, way: str) -> None:
    user = caller(None, way=way)
    size = user.total()[1]
    assert T4 - GIB < size <= T4 + GIB
    assert user.info() == [SUCCESS, size, size]
    assert user.pair("symbol:cuDeviceTotalMem", OUT, 0) == [SUCCESS, (1 << 32) - 1]
    assert info_v1(user) == [SUCCESS, (1 << 32) - 1, (1 << 32) - 1]


def test_no_more_is_free_than_the_card_has(sandbox: Make, caller: Start) -> None:
    other, one = sandbox(None, topology=SMALL), None
    user = caller(other)
    user.alloc(600 * MIB)
    folder = other.pages.with_name("second")
    folder.mkdir()
    entry = pages.Entry("GPU-" + user.uuid(), 900 * MIB)
    pages.create(str(folder), "another", (entry,))
    one = Sandbox(folder, other.driver_root, other.interposers)
    second = caller(one)
    assert second.info() == [SUCCESS, 424 * MIB, 900 * MIB]
    assert second.alloc(500 * MIB)[0] == OUT_OF_MEMORY
    assert one.total() == 0


@pytest.mark.parametrize(("visible", "limits"), [("1,0", (2, 1)), ("1", (2,)), ("0,1", (1, 2))])
def test_devices_are_identified_by_uuid_in_any_order(
    caller: Start, visible: str, limits: tuple[int, ...]
) -> None:
    user = caller(1 * GIB, 2 * GIB, topology=TWO, CUDA_VISIBLE_DEVICES=visible, device=None)
    for device, limit in enumerate(limits):
        assert user.start(device) == SUCCESS
        assert user.total(device) == [SUCCESS, limit * GIB]
        assert user.alloc(limit * GIB)[0] == SUCCESS
        assert user.alloc(1)[0] == OUT_OF_MEMORY
        assert user.sandbox.total(limit - 1) == limit * GIB


def test_a_mig_device_is_held_as_itself(sandbox: Make, caller: Start) -> None:
    mig = {"driver": "R580", "gpus": [{"model": "A100-SXM4-80GB", "mig": ["1g.10gb", "2g.20gb"]}]}
    one = sandbox(1 * GIB, topology=mig)
    caps = f"mkdir /dev/nvidia-caps; for node in {one.driver_root}/dev/nvidia-caps/*; do "
    caps += "touch /dev/nvidia-caps/${node##*/}; mount --bind $node /dev/nvidia-caps/${node##*/}; done"
    user = caller(one, setup=caps, device=None)
    assert user.init() == SUCCESS
    entry = pages.Entry("MIG-" + user.uuid(), 3 * GIB, is_partition=True)
    folder = one.pages.with_name("mig")
    folder.mkdir()
    pages.create(str(folder), "mig", (entry,))
    part = Sandbox(folder, one.driver_root, one.interposers)
    inside = caller(part, setup=caps)
    assert inside.info() == [SUCCESS, 3 * GIB, 3 * GIB]
    assert inside.alloc(3 * GIB)[0] == SUCCESS
    assert inside.alloc(1)[0] == OUT_OF_MEMORY
    assert part.total() == 3 * GIB


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        (f"umount {FOLDER}/quota; rm {FOLDER}/quota", "quota is missing"),
        (f"umount {FOLDER}/usage; rm {FOLDER}/usage", "usage is missing"),
        (f"umount {FOLDER}/quota", "quota is cut off"),
    ],
)
def test_without_valid_pages_there_is_no_device(
    sandbox: Make, caller: Start, way: str, setup: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    user = caller(sandbox(1 * GIB), way=way, setup=setup, XPU_MEM="8G", CUDA_MEM="all", device=None)
    assert user.init() == NOT_PERMITTED
    assert user.alloc(MIB)[0] == NOT_PERMITTED
    assert user.alloc_managed(MIB)[0] == NOT_PERMITTED
    assert user.code("cuDevicePrimaryCtxRetain", OUT, 0) == NOT_PERMITTED
    assert user.create_context()[0] == NOT_PERMITTED
    assert user.module()[0] == NOT_PERMITTED
    assert user.flat_array("cuArrayCreate_v2", 16, 16, 0x20, 1)[0] == NOT_PERMITTED
    user.end()
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("xpu:")]
    assert len(said) == 1
    assert says in said[0]


def test_a_device_that_is_not_in_the_pages_cannot_be_used(
    caller: Start, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first = caller(1 * GIB, topology=TWO, device=None)
    first.init()
    folder = first.sandbox.pages.with_name("one")
    folder.mkdir()
    pages.create(str(folder), "one", (pages.Entry("GPU-" + first.uuid(), 1 * GIB),))
    user = caller(Sandbox(folder, first.sandbox.driver_root, first.sandbox.interposers), way=way, device=None)
    assert user.start(0) == SUCCESS
    assert user.alloc(MIB)[0] == SUCCESS
    assert user.start(1) == NOT_PERMITTED
    assert user.create_context(1)[0] == NOT_PERMITTED
    assert user.total(1)[0] == NOT_PERMITTED
    user.end()
    assert "does not name" in capfd.readouterr().err


def test_a_forked_child_has_nothing_of_its_parents(caller: Start) -> None:
    user = caller(2 * MIB)
    pointer = user.alloc(1 * MIB)[1]
    freed, started, allocated = user.fork(
        ["cuMemFree_v2", pointer], ["start"], ["cuMemAlloc_v2", OUT, 1 * MIB]
    )
    assert freed[0] != SUCCESS
    assert (started, allocated[0]) == (SUCCESS, SUCCESS)
    assert user.free(pointer) == SUCCESS
    assert user.info() == [SUCCESS, 2 * MIB, 2 * MIB]
