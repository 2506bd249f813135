"""The CUDA interposer: a program's view of the card, and no card without valid pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support import GIB, MIB
from xpu_runtime.limits import pages

from ..cuda_sandbox import NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS, Start
from ..sandboxes import FOLDER, Sandbox

Make = Callable[..., Sandbox]

T4 = 15 * GIB
TWO = {"driver": "R580", "gpus": [{"model": "T4", "count": 2}]}
SMALL = {"driver": "R580", "gpus": [{"model": "T4", "memory_mib": 1024}]}


def test_the_card_is_as_large_as_the_limit(program: Start, way: str) -> None:
    user = program(2 * GIB, way=way)
    user.start()
    assert user.total() == [SUCCESS, 2 * GIB]
    assert user.info() == [SUCCESS, 2 * GIB, 2 * GIB]
    user.alloc(512 * MIB)
    assert user.info() == [SUCCESS, 1536 * MIB, 2 * GIB]
    assert user.total_v1() == [SUCCESS, 2 * GIB]
    assert user.info_v1() == [SUCCESS, 1536 * MIB, 2 * GIB]


def test_nvml_is_the_interposer_also_after_cuda_has_used_the_real_one(sandbox: Make, program: Start) -> None:
    user = program(sandbox(2 * GIB))
    assert user.start() == SUCCESS
    assert user.nvml_total() == 2 * GIB


def test_without_a_limit_the_card_is_itself(program: Start, way: str) -> None:
    user = program(None, way=way)
    user.start()
    size = user.total()[1]
    assert T4 - GIB < size <= T4 + GIB
    assert user.info() == [SUCCESS, size, size]
    assert user.total_v1() == [SUCCESS, (1 << 32) - 1]
    assert user.info_v1() == [SUCCESS, (1 << 32) - 1, (1 << 32) - 1]


def test_no_more_is_free_than_the_card_has(sandbox: Make, program: Start) -> None:
    other, one = sandbox(None, topology=SMALL), None
    user = program(other)
    user.start()
    user.alloc(600 * MIB)
    folder = other.pages.with_name("second")
    folder.mkdir()
    entry = pages.Entry("GPU-" + user.uuid(), 900 * MIB)
    pages.create(str(folder), "another", (entry,))
    one = Sandbox(folder, other.driver_root, other.interposers)
    second = program(one)
    second.start()
    assert second.info() == [SUCCESS, 424 * MIB, 900 * MIB]
    assert second.alloc(500 * MIB)[0] == OUT_OF_MEMORY
    assert one.total() == 0


@pytest.mark.parametrize(("visible", "limits"), [("1,0", (2, 1)), ("1", (2,)), ("0,1", (1, 2))])
def test_devices_are_identified_by_uuid_in_any_order(
    program: Start, visible: str, limits: tuple[int, ...]
) -> None:
    user = program(1 * GIB, 2 * GIB, topology=TWO, CUDA_VISIBLE_DEVICES=visible)
    for device, limit in enumerate(limits):
        assert user.start(device) == SUCCESS
        assert user.total(device) == [SUCCESS, limit * GIB]
        assert user.alloc(limit * GIB)[0] == SUCCESS
        assert user.alloc(1)[0] == OUT_OF_MEMORY
        assert user.sandbox.total(limit - 1) == limit * GIB


def test_a_mig_device_is_held_as_itself(sandbox: Make, program: Start) -> None:
    mig = {"driver": "R580", "gpus": [{"model": "A100-SXM4-80GB", "mig": ["1g.10gb", "2g.20gb"]}]}
    one = sandbox(1 * GIB, topology=mig)
    caps = f"mkdir /dev/nvidia-caps; for node in {one.driver_root}/dev/nvidia-caps/*; do "
    caps += "touch /dev/nvidia-caps/${node##*/}; mount --bind $node /dev/nvidia-caps/${node##*/}; done"
    user = program(one, setup=caps)
    assert user.init() == SUCCESS
    entry = pages.Entry("MIG-" + user.uuid(), 3 * GIB, is_partition=True)
    folder = one.pages.with_name("mig")
    folder.mkdir()
    pages.create(str(folder), "mig", (entry,))
    part = Sandbox(folder, one.driver_root, one.interposers)
    inside = program(part, setup=caps)
    assert inside.start() == SUCCESS
    assert inside.info() == [SUCCESS, 3 * GIB, 3 * GIB]
    assert inside.alloc(3 * GIB)[0] == SUCCESS
    assert inside.alloc(1)[0] == OUT_OF_MEMORY
    assert part.total() == 3 * GIB


OWN = f"cp {FOLDER}/quota {FOLDER}/copy; umount {FOLDER}/quota; cp {FOLDER}/copy {FOLDER}/quota"
NEWER = f"printf '\\377' | dd of={FOLDER}/quota bs=1 seek=8 conv=notrunc status=none"


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        (f"umount {FOLDER}/quota; rm {FOLDER}/quota", "quota is missing"),
        (f"umount {FOLDER}/usage; rm {FOLDER}/usage", "usage is missing"),
        (f"umount {FOLDER}/quota", "quota is cut off"),
        (f"{OWN}; {NEWER}", "newer XPU runtime"),
    ],
)
def test_without_valid_pages_there_is_no_device(
    sandbox: Make, program: Start, way: str, setup: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    user = program(sandbox(1 * GIB), way=way, setup=setup, XPU_MEM="8G", CUDA_MEM="all")
    assert user.init() == NOT_PERMITTED
    assert user.alloc(MIB)[0] == NOT_PERMITTED
    assert user.managed(MIB)[0] == NOT_PERMITTED
    assert user.retain()[0] == NOT_PERMITTED
    assert user.create()[0] == NOT_PERMITTED
    assert user.module()[0] == NOT_PERMITTED
    assert user.flat_array("cuArrayCreate_v2", 16, 16, 0x20, 1)[0] == NOT_PERMITTED
    user.end()
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("xpu:")]
    assert len(said) == 1
    assert says in said[0]


def test_a_device_that_is_not_in_the_pages_cannot_be_used(
    program: Start, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first = program(1 * GIB, topology=TWO)
    first.init()
    folder = first.sandbox.pages.with_name("one")
    folder.mkdir()
    pages.create(str(folder), "one", (pages.Entry("GPU-" + first.uuid(), 1 * GIB),))
    user = program(Sandbox(folder, first.sandbox.driver_root, first.sandbox.interposers), way=way)
    assert user.start(0) == SUCCESS
    assert user.alloc(MIB)[0] == SUCCESS
    assert user.start(1) == NOT_PERMITTED
    assert user.create(1)[0] == NOT_PERMITTED
    assert user.total(1)[0] == NOT_PERMITTED
    user.end()
    assert "does not name" in capfd.readouterr().err


def test_a_forked_child_has_nothing_of_its_parents(program: Start) -> None:
    user = program(2 * MIB)
    user.start()
    freed, started, allocated, by_parent = user.fork()
    assert freed != SUCCESS
    assert (started, allocated) == (SUCCESS, SUCCESS)
    assert by_parent == SUCCESS
    assert user.info() == [SUCCESS, 2 * MIB, 2 * MIB]
