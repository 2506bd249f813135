"""A limit that changes, on a real ledger and real pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from xpu_runtime.errors import ApplyError, DeviceError
from xpu_runtime.ledger.grants import MEMORY
from xpu_runtime.ledger.refusal import DeviceStatus, Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.limits import pages
from xpu_runtime.limits.resize import Wanted, resize
from xpu_runtime.limits.usage import OfDrivers, Usage
from xpu_runtime.request.units import Memory

from .accounts import lock_slots, write_slot
from .resizing import FOUND, GIB, GPUS, MIB, UUIDS, Container


def test_memory_of_another_slice_is_not_given(container: Container, pair: Container) -> None:
    with pytest.raises(Refused) as refused:
        container.set(12 * GIB)
    found = refused.value.refusal
    assert found.code == "not-enough-memory"
    assert found.message == "GPU 0 does not have enough free memory for a limit of 12G"
    reason = "7G free and 4G already its own, 12G requested"
    assert found.devices == (DeviceStatus("0", 7 * GIB, 100, reason),)
    assert found.nearest == {"XPU_MEM": "11G"}
    assert container.booked() == container.in_force() == [4 * GIB]
    container.set(11 * GIB)
    # The configuration may allow granting memory twice over.
    container.set(12 * GIB, oversubscribe=2.0)
    # Less than nothing is free now; a smaller limit needs no free memory.
    container.set(12 * GIB - MIB)
    with pytest.raises(Refused, match=r"XPU_MEM=12287M"):
        container.set(12 * GIB)


def test_of_two_slices_both_change_or_none(pair: Container, container: Container) -> None:
    pair.set(6 * GIB, 0, 1)
    assert pair.booked() == pair.in_force() == [6 * GIB, 6 * GIB]
    container.set(9 * GIB)
    # The second would shrink, the first cannot grow.
    with pytest.raises(Refused):
        pair.set(5 * GIB, 1) and pair.set(7 * GIB, 0, 1)
    assert pair.booked() == pair.in_force() == [6 * GIB, 5 * GIB]


def test_a_smaller_limit_goes_back_when_another_slice_refuses(pair: Container) -> None:
    write_slot_of_second(pair, used=5 * GIB)
    lock = lock_slots(pair.folder, 0)
    with pytest.raises(Refused, match="uses more of GPU 1"):
        pair.set(2 * GIB, 0, 1, force=False)
    assert pair.booked() == pair.in_force() == [4 * GIB, 8 * GIB]
    os.close(lock)


def write_slot_of_second(pair: Container, *, used: int) -> None:
    """A process that has memory on the second device only."""
    fd = os.open(pair.folder / pages.USAGE, os.O_RDWR)
    at = pages.slots_at() + pages.SLOT_SIZE + pages.SLOT_DEVICE_SIZE
    os.pwrite(fd, used.to_bytes(8, "little"), at)
    os.pwrite(fd, b"\1", pages.USAGE_HEADER)
    os.close(fd)


def test_a_limit_below_the_use_needs_force(container: Container) -> None:
    write_slot(container.folder, 0, pid=1, name=b"p", used=2 * GIB + 512)
    lock = lock_slots(container.folder, 0)
    with pytest.raises(Refused) as refused:
        container.set(2 * GIB, force=False)
    assert refused.value.refusal.code == "below-use"
    assert refused.value.refusal.nearest == {"XPU_MEM": "2049M"}
    assert container.booked() == container.in_force() == [4 * GIB]
    assert refused.value.refusal.devices[0].free_memory_bytes == 11 * GIB
    container.set(2049 * MIB, force=False)
    container.set(GIB)
    # The offer is never more than the slice has, because more might not be free.
    with pytest.raises(Refused, match="XPU_MEM=1G"):
        container.set(512 * MIB, force=False)
    # To have more again needs no force, though it is still not enough.
    container.set(GIB + MIB, force=False)
    assert container.booked() == container.in_force() == [GIB + MIB]
    os.close(lock)


def test_an_allocation_between_the_question_and_the_limit_is_seen(container: Container) -> None:
    write_slot(container.folder, 0, pid=1, name=b"p", used=MIB)
    lock = lock_slots(container.folder, 0)

    def step(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code is pages.OpenQuota.set_limit.__code__:
            sys.settrace(None)
            write_slot(container.folder, 0, pid=1, name=b"p", used=3 * GIB)

    sys.settrace(step)
    try:
        with pytest.raises(Refused, match="3G in use, 2G requested"):
            container.set(2 * GIB, force=False)
    finally:
        sys.settrace(None)
    assert container.booked() == container.in_force() == [4 * GIB]
    os.close(lock)


def test_memory_of_a_dead_process_that_a_living_one_has_open_counts_as_in_use(container: Container) -> None:
    write_slot(container.folder, 0, pid=1, name=b"maker", used=3 * GIB, exported=2 * GIB)
    write_slot(container.folder, 1, pid=2, name=b"user", used=GIB, imports=1)
    lock = lock_slots(container.folder, 1)
    with pytest.raises(Refused, match="3G in use"):
        container.set(2 * GIB, force=False)
    assert [each.kept for each in Usage(FOUND).processes(container.grant, 0)] == [2 * GIB, 0]
    os.close(lock)


def test_a_containers_claimed_use_is_no_more_than_the_device_has(container: Container) -> None:
    write_slot(container.folder, 0, pid=1, name=b"p", used=(1 << 64) - 1, kinds={"pool": (1 << 64) - 1})
    lock = lock_slots(container.folder, 0)
    usage = Usage(FOUND)
    assert usage.in_use(container.grant, 0) == 15 * GIB
    (process,) = usage.processes(container.grant, 0)
    assert (process.used, process.kinds, process.pid) == (15 * GIB, {"pool": 15 * GIB}, None)
    os.close(lock)


def test_the_driver_is_asked_only_where_the_account_does_not_tell(container: Container) -> None:
    asked: list[str] = []

    def ask() -> OfDrivers:
        asked.append("asked")
        return OfDrivers({}, {}, ("the driver does not answer",))

    write_slot(container.folder, 0, pid=1, name=b"p", used=MIB)
    lock = lock_slots(container.folder, 0)
    usage = Usage(FOUND, ask)
    assert usage.in_use(container.grant, 0) == MIB
    limit = usage.in_force(container.grant, 0, MEMORY)
    assert limit is not None and limit.limit == 4 * GIB
    assert (asked, usage.problems) == ([], [])
    os.close(lock)
    usage = Usage(FOUND, ask)
    assert usage.in_use(container.grant, 0) is None
    assert usage.in_use(container.grant, 0) is None
    assert (asked, usage.problems) == (["asked"], ["the driver does not answer"])


@pytest.mark.parametrize(
    ("told", "in_use"),
    [
        (OfDrivers({UUIDS[0]: {}}, {}, ()), MIB),
        (OfDrivers({}, {}, ()), MIB),  # such drivers there are
        (OfDrivers({UUIDS[0]: {}}, {}, ("GPU 1 is lost",)), MIB),
        (OfDrivers({}, {}, ("GPU is lost",)), None),
        (OfDrivers({}, {}, ("the driver does not answer",), silent=True), None),
    ],
)
def test_use_that_a_failed_driver_does_not_report_is_not_known(
    container: Container, told: OfDrivers, in_use: int | None
) -> None:
    """A process that the account lacks can have memory."""
    write_slot(container.folder, 0, pid=1, name=b"p", used=MIB)
    lock = lock_slots(container.folder, 0)
    assert Usage(FOUND, lambda: told).larger(container.grant, 0) == in_use
    os.close(lock)


def test_an_unknown_use_needs_force(container: Container) -> None:
    with pytest.raises(DeviceError, match=r"is not known.*give --force"):
        container.set(GIB, force=False)
    (container.folder / pages.USAGE).unlink()
    with pytest.raises(DeviceError, match=r"No such file.*give --force"):
        container.set(GIB, force=False)
    container.set(GIB)
    assert container.in_force() == [GIB]
    # To have more it need not be known.
    container.set(2 * GIB, force=False)
    assert container.booked() == container.in_force() == [2 * GIB]


def test_without_its_page_nothing_changes(container: Container) -> None:
    (container.folder / pages.QUOTA).unlink()
    with pytest.raises(ApplyError, match=r"quota page.*No such file.*start the container again"):
        container.set(6 * GIB)
    assert container.booked() == [4 * GIB]


def test_a_device_that_is_gone_is_told(container: Container) -> None:
    with pytest.raises(DeviceError, match=r"GPU 0.*no longer there"):
        resize(
            FOUND.replace(devices=GPUS[1:]),
            container.grant,
            (0,),
            Wanted(Memory(bytes=GIB)),
            oversubscribe=1.0,
            usage=None,
            clear=lambda _: None,
        )


def test_a_container_that_ends_meanwhile_is_told(container: Container) -> None:
    container.process.kill()
    container.process.wait()
    with pytest.raises(ApplyError, match="has ended"):
        container.set(6 * GIB)
    with Ledger() as ledger:
        assert ledger.grants() == []
    assert not container.folder.exists()


def test_a_ledger_that_cannot_be_written_leaves_the_limit_as_it_was(run_dir: Path) -> None:
    small = run_dir / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], check=True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XPU_RUN_DIR", str(small))
            container = Container("c1", 4 * GIB)
            with (small / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(4096))
            with pytest.raises(LedgerError, match="free space"):
                container.set(GIB)
            assert container.in_force() == [4 * GIB]
            (small / "filler").unlink()
            assert container.booked() == [4 * GIB]
            container.close()
    finally:
        subprocess.run(["umount", small], check=True)
