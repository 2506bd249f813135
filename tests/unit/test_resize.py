"""A limit that changes: on a real ledger and real pages, cut short anywhere, a container in its way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from xpu_runtime.devices.inventory import Device, Inventory
from xpu_runtime.errors import ApplyError, DeviceError
from xpu_runtime.ledger.grants import Grant, Holding, Slice, Use
from xpu_runtime.ledger.refusal import Refused
from xpu_runtime.ledger.store import Ledger, LedgerError
from xpu_runtime.linux import proc
from xpu_runtime.quota import folders, pages
from xpu_runtime.quota.resize import resize
from xpu_runtime.quota.usage import Figures
from xpu_runtime.request.units import Memory

from .accounts import own, write_slot

MIB, GIB = 1 << 20, 1 << 30
UUIDS = ("GPU-00112233-4455-6677-8899-aabbccddee00", "GPU-00112233-4455-6677-8899-aabbccddee01")
GPUS = tuple(Device(str(n), uuid, "Tesla T4", 15 * GIB, ()) for n, uuid in enumerate(UUIDS))
#: A driver that tells nothing of processes.
FOUND = Inventory("/", True, "580.82.07", "13.0", GPUS, (), (), False, "", ())
HELD = Holding("library", "soft", None, None)


class Container:
    """A grant of the `library` backend with a process and pages."""

    def __init__(self, name: str, *amounts: int) -> None:
        self.process = subprocess.Popen(["/bin/sleep", "600"])
        started = proc.start_time(self.process.pid) or 0
        slices = tuple(Slice(str(n), UUIDS[n], amount, True, None, HELD) for n, amount in enumerate(amounts))
        wanted = Grant(0, name, f"/b/{name}", self.process.pid, started, "", "running", "hook", 0.0, ())
        with Ledger() as ledger:
            granted, _ = ledger.grant(wanted, lambda uses: slices)
        assert granted is not None
        self.grant = granted
        folders.create(granted)
        self.folder = Path(folders.of(granted))

    def set(self, amount: int, *positions: int, force: bool = True, oversubscribe: float = 1.0) -> Grant:
        return resize(
            FOUND,
            self.grant,
            positions or (0,),
            Memory(bytes=amount),
            oversubscribe=oversubscribe,
            force=force,
        )

    def in_force(self) -> list[int | None]:
        return pages.limits(str(self.folder))

    def booked(self) -> list[int]:
        with Ledger() as ledger:
            (grant,) = (each for each in ledger.grants() if each.id == self.grant.id)
        return [part.memory_bytes for part in grant.slices]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        folders.remove(str(self.folder))


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def container(run_dir: Path) -> Iterator[Container]:
    found = Container("c1", 4 * GIB)
    yield found
    found.close()


@pytest.fixture
def pair(run_dir: Path) -> Iterator[Container]:
    """One container with a slice on each of two devices."""
    found = Container("c2", 4 * GIB, 8 * GIB)
    yield found
    found.close()


def test_the_ledger_and_the_page_change_together(container: Container) -> None:
    for amount in (6 * GIB, GIB, 15 * GIB, MIB):
        after = container.set(amount)
        assert [part.memory_bytes for part in after.slices] == [amount]
        assert container.booked() == container.in_force() == [amount]


def test_what_another_has_is_not_given(container: Container, pair: Container) -> None:
    with pytest.raises(Refused) as refused:
        container.set(12 * GIB)
    assert refused.value.refusal.as_plain() == {
        "code": "not-enough-memory",
        "message": "GPU 0 has not enough free memory to give this container 12288 MiB",
        "devices": [
            {
                "index": 0,
                "free_memory_bytes": 7 * GIB,
                "free_cores": 100,
                "reason": "7168 MiB free beside the 4096 MiB that it has, 12288 MiB asked",
            }
        ],
        "nearest": {"XPU_MEM": "11G"},
    }
    assert container.booked() == container.in_force() == [4 * GIB]
    container.set(11 * GIB)
    # What the configuration lets be granted twice over, is.
    container.set(12 * GIB, oversubscribe=2.0)
    # There is less than nothing free now, and to take less is no matter of what is free.
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


def test_what_has_shrunk_goes_back_when_another_slice_refuses(pair: Container) -> None:
    write_slot_of_second(pair, used=5 * GIB)
    lock = own(pair.folder, 0)
    with pytest.raises(Refused, match="uses more of GPU 1"):
        pair.set(2 * GIB, 0, 1, force=False)
    assert pair.booked() == pair.in_force() == [4 * GIB, 8 * GIB]
    os.close(lock)


def write_slot_of_second(pair: Container, *, used: int) -> None:
    """A process that has memory on the second device only."""
    fd = os.open(pair.folder / pages.USAGE, os.O_RDWR)
    at = pages._slots_at() + pages._SLOT_SIZE + pages._SLOT_DEVICE_SIZE
    os.pwrite(fd, used.to_bytes(8, "little"), at)
    os.pwrite(fd, b"\1", pages._USAGE_HEADER)
    os.close(fd)


def test_below_what_is_in_use_takes_force(container: Container) -> None:
    write_slot(container.folder, 0, pid=1, name=b"p", used=2 * GIB + 512)
    lock = own(container.folder, 0)
    with pytest.raises(Refused) as refused:
        container.set(2 * GIB, force=False)
    assert refused.value.refusal.code == "below-use"
    assert refused.value.refusal.nearest == {"XPU_MEM": "2049M"}
    assert container.booked() == container.in_force() == [4 * GIB]
    assert refused.value.refusal.devices[0].free_memory_bytes == 11 * GIB
    container.set(2049 * MIB, force=False)
    container.set(GIB)
    # What is offered is never more than it has, for more might not be free.
    with pytest.raises(Refused, match="XPU_MEM=1G"):
        container.set(512 * MIB, force=False)
    # To have more again needs no force, though it is still not enough.
    container.set(GIB + MIB, force=False)
    assert container.booked() == container.in_force() == [GIB + MIB]
    os.close(lock)


def test_what_is_allocated_between_the_question_and_the_limit_is_seen(container: Container) -> None:
    write_slot(container.folder, 0, pid=1, name=b"p", used=MIB)
    lock = own(container.folder, 0)

    def step(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code.co_qualname == "OpenQuota.set_limit":
            sys.settrace(None)
            write_slot(container.folder, 0, pid=1, name=b"p", used=3 * GIB)

    sys.settrace(step)
    try:
        with pytest.raises(Refused, match="3072 MiB in use, 2048 MiB asked"):
            container.set(2 * GIB, force=False)
    finally:
        sys.settrace(None)
    assert container.booked() == container.in_force() == [4 * GIB]
    os.close(lock)


def test_what_a_living_process_has_open_of_a_dead_one_counts_as_in_use(container: Container) -> None:
    write_slot(container.folder, 0, pid=1, name=b"maker", used=3 * GIB, exported=2 * GIB)
    write_slot(container.folder, 1, pid=2, name=b"user", used=GIB, imports=1)
    lock = own(container.folder, 1)
    with pytest.raises(Refused, match="3072 MiB in use"):
        container.set(2 * GIB, force=False)
    assert [each.kept for each in Figures(FOUND).processes(container.grant, 0)] == [2 * GIB, 0]
    os.close(lock)


def test_what_a_container_claims_to_use_is_no_more_than_the_device_has(container: Container) -> None:
    write_slot(container.folder, 0, pid=1, name=b"p", used=(1 << 64) - 1, kinds={"pool": (1 << 64) - 1})
    lock = own(container.folder, 0)
    figures = Figures(FOUND)
    assert figures.in_use(container.grant, 0) == 15 * GIB
    (process,) = figures.processes(container.grant, 0)
    assert (process.used, process.kinds, process.pid) == (15 * GIB, {"pool": 15 * GIB}, None)
    os.close(lock)


def test_what_cannot_be_known_takes_force(container: Container) -> None:
    with pytest.raises(DeviceError, match=r"is not known.*give --force"):
        container.set(GIB, force=False)
    (container.folder / pages.USAGE).unlink()
    with pytest.raises(DeviceError, match=r"No such file.*give --force"):
        container.set(GIB, force=False)
    container.set(GIB)
    assert container.in_force() == [GIB]


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
            Memory(bytes=GIB),
            oversubscribe=1.0,
            force=True,
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


# Cut short.

#: Whose lines count: where the ledger or the page changes, or what is between.
_OURS = ("Ledger.resize", "_Transaction.__enter__", "_Transaction.__exit__", "OpenQuota.set_limit")


def killed_at(line: int, container: Container, amount: int, *positions: int) -> bool:
    """Runs the change in a process that kills itself at the `line`-th line; False: it came through."""
    child = os.fork()
    if child == 0:
        left = line

        def step(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            code = frame.f_code
            if code.co_qualname not in _OURS and not code.co_filename.endswith("/resize.py"):
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return step

        try:
            sys.settrace(step)
            container.set(amount, *positions)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    return status != 0


@pytest.mark.parametrize(("before", "after"), [(4 * GIB, 6 * GIB), (6 * GIB, 4 * GIB)])
def test_killed_at_any_line_the_ledger_never_says_less_than_the_page(
    container: Container, before: int, after: int
) -> None:
    line = 0
    outcomes = set()
    while True:
        container.set(before)
        cut = killed_at(line, container, after)
        (booked,), (in_force,) = container.booked(), container.in_force()
        assert in_force is not None
        assert booked >= in_force
        outcomes.add((booked, in_force))
        container.set(after)
        assert container.booked() == container.in_force() == [after]
        if not cut:
            break
        line += 1
    # Both steps were seen on their own.
    assert outcomes == {(before, before), (max(before, after), min(before, after)), (after, after)}


def test_killed_at_any_line_one_slice_that_grows_and_one_that_shrinks(pair: Container) -> None:
    line = 0
    while True:
        pair.set(4 * GIB, 0)
        pair.set(8 * GIB, 1)
        cut = killed_at(line, pair, 6 * GIB, 0, 1)
        for booked, in_force in zip(pair.booked(), pair.in_force(), strict=True):
            assert in_force is not None
            assert booked >= in_force
        pair.set(6 * GIB, 0, 1)
        assert pair.booked() == pair.in_force() == [6 * GIB, 6 * GIB]
        if not cut:
            break
        line += 1


# At once.


def test_many_changes_at_once_end_with_one_of_them_whole(run_dir: Path) -> None:
    containers = [Container(f"c{n}", GIB) for n in range(3)]
    problems: list[BaseException] = []

    def change(container: Container, amounts: tuple[int, ...]) -> None:
        for amount in amounts:
            try:
                container.set(amount)
            except Refused:
                continue
            except BaseException as error:
                problems.append(error)

    threads = [
        threading.Thread(target=change, args=(container, amounts))
        for container in containers
        for amounts in ((6 * GIB, GIB) * 6, (2 * GIB, 9 * GIB) * 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sum(container.booked()[0] for container in containers) <= 15 * GIB
    for container in containers:
        assert container.booked() == container.in_force()
        container.close()


def test_a_containers_lease_on_its_quota_page_holds_up_no_other_container(container: Container) -> None:
    # A read lease can be had on a read-only mount by the file's owner; a writer then waits up to 45 seconds.
    program = (
        "import fcntl, os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)\n"
        "print('leased', flush=True)\n"
        "signal.sigwait([signal.SIGIO])\n"
        "print('somebody waits', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, container.folder / pages.QUOTA],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"leased\n"
    change = threading.Thread(target=container.set, args=(6 * GIB,))
    change.start()
    assert holder.stdout.readline() == b"somebody waits\n"
    # Another container's start takes place meanwhile.
    other = Container("c9", GIB)
    assert change.is_alive()
    holder.communicate(b"\n")
    change.join()
    assert container.booked() == container.in_force() == [6 * GIB]
    with Ledger() as ledger:
        assert ledger.uses()[UUIDS[0]] == Use(7 * GIB, 0, 2, False)
    other.close()
