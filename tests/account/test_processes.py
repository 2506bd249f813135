"""The account stays exact through everything that processes do to themselves and each other: forks, exec,
namespaces, users, lost descriptors and system calls, and slots that run out."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import threading
import time
from pathlib import Path

import pytest

from support import GIB, MIB
from support.sharing_time import until
from xpu_runtime.limits import pages

from .accounts import ARRAY, LINEAR, VMM, Account, Make

NOBODY = 65534


@pytest.mark.parametrize("killed", [True, False])
def test_the_end_of_a_process_gives_back_all_of_its_memory(account: Make, killed: bool) -> None:
    here = account(MIB)
    first, second = here.start(), here.start()
    assert first.charge(MIB) and not second.charge(1)
    if killed:
        first.kill()
    else:
        first.popen.communicate(timeout=10)
    assert second.charge(MIB)
    assert len(here.usage()) == 1


@pytest.mark.parametrize("how", ["fork", "clone"])
def test_a_forked_child_has_an_account_of_its_own(account: Make, how: str) -> None:
    here = account(MIB)
    parent = here.start()
    assert parent.charge(MIB // 2)
    assert parent.ask(how, "own", 0) == "0"
    assert parent.ask(how, "give", 0, LINEAR, MIB) == "ok"
    assert parent.used() == parent.own() == MIB // 2
    assert parent.ask(how, "charge", 0, LINEAR, MIB // 2) == "1"
    assert parent.ask(how, "charge", 0, LINEAR, MIB // 2 + 1) == "0"
    assert parent.used() == parent.own() == MIB // 2
    assert parent.charge(MIB // 2)


def test_a_child_keeps_its_own_memory_when_its_parent_dies(account: Make) -> None:
    here = account(MIB)
    parent, other = here.start(), here.start()
    assert parent.charge(MIB // 2)
    answer, child = parent.ask("child", "charge", 0, VMM, MIB // 4).split()
    assert answer == "1" and other.used() == MIB * 3 // 4
    os.kill(parent.popen.pid, signal.SIGKILL)
    parent.popen.wait()
    # The child does not keep its parent's slot alive.
    assert other.used() == MIB // 4
    assert [entry.pid for entry in here.usage() if entry.used] == [int(child)]
    os.kill(int(child), signal.SIGKILL)
    until(lambda: other.used() == 0, "the child, which is not ours, has ended")


def test_a_child_that_uses_no_device_keeps_nothing_alive(account: Make) -> None:
    here = account(MIB)
    parent, other = here.start(), here.start()
    assert parent.charge(MIB)
    parent.ask("child", "limit", 0)
    os.kill(parent.popen.pid, signal.SIGKILL)
    parent.popen.wait()
    assert other.used() == 0


def test_vfork_and_a_program_in_the_child_leave_the_parent_as_it_was(account: Make) -> None:
    process = account(MIB).start()
    assert process.charge(MIB)
    assert process.ask("vfork", "/bin/true") == "0"
    assert process.used() == process.own() == MIB
    process.give(MIB)
    assert process.used() == 0


def test_exec_gives_back_the_memory_of_the_program_before(account: Make, place: object) -> None:
    here = account(MIB)
    process, other = here.start(), here.start()
    assert process.charge(MIB)
    pid = process.ask("pid")
    process.ask("child", "limit", 0)
    assert process.popen.stdin
    process.popen.stdin.write(f"exec {here.place.build('worker.c', '-static')}\n")
    assert process.ask("pid") == pid
    assert process.own() == 0
    assert other.used() == 0
    assert process.charge(MIB) and process.used() == MIB


def test_processes_of_another_pid_namespace_share_the_account(account: Make) -> None:
    here = account(MIB)
    outside = here.start()
    inside = [here.start("unshare", "--pid", "--fork", "--kill-child") for _ in range(2)]
    assert {process.ask("pid") for process in inside} == {"1"}
    assert all(process.charge(MIB // 4) for process in inside)
    assert outside.used() == MIB // 2
    assert [entry.pid for entry in here.usage() if entry.used] == [1, 1]
    inside[0].kill()
    until(lambda: outside.used() == MIB // 4, "the namespace's process has ended")
    assert inside[1].own() == MIB // 4


def test_a_pid_that_another_process_has_keeps_no_dead_process_alive(account: Make) -> None:
    """Process 1 of a PID namespace dies. Another process 1 lives in its own namespace."""
    here = account(MIB)
    first = here.start("unshare", "--pid", "--fork", "--kill-child")
    assert first.charge(MIB) and first.ask("pid") == "1"
    first.kill()
    second = here.start("unshare", "--pid", "--fork", "--kill-child")
    assert second.ask("pid") == "1"
    until(lambda: second.used() == 0, "the namespace's process has ended")
    assert second.charge(MIB)


def test_a_setuid_program_is_counted_and_writes_no_log(account: Make, tmp_path: Path) -> None:
    here = account(MIB)
    program = here.place.folder / "setuid-worker"
    shutil.copy(here.place.build("worker.c", "-static"), program)
    os.chown(program, NOBODY, NOBODY)
    program.chmod(0o4755)
    log = here.place.folder / "log-of-setuid"
    here.place.folder.chmod(0o777)
    process = here.start(program=program, user=1234, group=1234, env={"XPU_LOG": f"debug:{log}"})
    assert process.ask("secure") == f"1234 {NOBODY}"
    assert process.charge(MIB) and not process.charge(1)
    assert not log.exists()
    root = here.start()
    assert root.used() == MIB and not root.charge(1)
    process.kill()
    assert root.charge(MIB)
    plain = here.start(user=1234, group=1234, env={"XPU_LOG": f"debug:{log}"})
    assert not plain.charge(MIB)
    assert log.exists() and log.stat().st_uid == 1234
    here.place.folder.chmod(0o755)


def test_a_process_that_gives_up_its_user_goes_on(account: Make) -> None:
    here = account(MIB)
    victim, process = here.start(), here.start()
    assert victim.charge(MIB // 2) and process.charge(MIB // 4)
    assert process.ask("user", NOBODY) == "0"
    victim.kill()
    assert process.charge(MIB * 3 // 4) and process.used() == MIB


BARE = """
mount -t tmpfs -o mode=755 bare {root}
mkdir -p {root}{pages}
cp {program} {root}/worker
for name in quota usage; do touch {root}{pages}/$name; mount --bind {pages}/$name {root}{pages}/$name; done
mount -o remount,bind,ro {root}{pages}/quota
mount -o remount,ro {root}
exec chroot {root} /worker
"""


def test_a_read_only_root_without_proc_tmp_dev_and_shm_is_enough(account: Make, tmp_path: Path) -> None:
    here = account(MIB)
    root = tmp_path / "root"
    root.mkdir()
    program = here.place.build("worker.c", "-static")
    script = BARE.format(root=root, pages=here.place.pages, program=program)
    bare = [here.start("unshare", "-m", "sh", "-ec", script) for _ in range(2)]
    assert all(process.charge(MIB // 2) for process in bare)
    assert not bare[0].charge(1)
    bare[0].kill()
    assert bare[1].charge(MIB // 2) and bare[1].used() == MIB


def test_a_program_that_closes_every_descriptor_stays_counted(account: Make) -> None:
    here = account(MIB)
    process, other = here.start(), here.start()
    assert process.charge(MIB // 2)
    open_before = os.listdir(f"/proc/{process.popen.pid}/fd")
    assert sorted(open_before) == ["0", "1", "2"]  # no descriptor of ours can be closed
    process.ask("closefrom", 2)
    assert other.used() == MIB // 2 and not other.charge(MIB)
    assert process.charge(MIB // 2)
    other.kill()
    assert process.used() == MIB
    process.give(MIB)
    assert process.charge(MIB)


@pytest.mark.parametrize("what", [("chroot", "/var/empty"), ("seccomp", "noopen")])
def test_a_process_that_cannot_open_the_page_any_more_is_counted(
    account: Make, what: tuple[str, str], tmp_path: Path
) -> None:
    here = account(MIB)
    process, other = here.start(), here.start()
    assert process.charge(MIB // 4) and other.charge(MIB // 4)
    assert process.ask(what[0], tmp_path if what[0] == "chroot" else what[1]) == "0"
    assert process.charge(MIB // 2) and not process.charge(1)
    assert process.used() == process.own() + MIB // 4 == MIB
    process.give(MIB // 4)
    assert other.used() == MIB * 3 // 4
    # It cannot see which processes are dead. Others see it.
    other.kill()
    assert not process.charge(MIB)
    assert here.start().used() == MIB // 2
    assert process.charge(MIB // 2)
    assert "cannot open" in process.ask("fork", "take")


def test_a_root_that_holds_another_account_is_not_mistaken_for_its_own(account: Make, tmp_path: Path) -> None:
    """In the new root the page's path leads to a file without locks."""
    here = account(MIB)
    there = tmp_path / str(here.place.pages).lstrip("/")
    there.mkdir(parents=True)
    for name in (pages.QUOTA, pages.USAGE):
        shutil.copy(here.place.pages / name, there / name)
    process, other = here.start(), here.start()
    assert process.charge(4096) and other.charge(MIB // 2)
    process.ask("chroot", tmp_path)
    assert process.used() == MIB // 2 + 4096
    assert not process.charge(MIB)
    assert other.own() == MIB // 2


def test_no_system_call_is_made_for_a_charge(account: Make) -> None:
    process = account(MIB).start()
    assert process.charge(4096)
    assert process.ask("seccomp", "strict") == "0"  # any system call but read and write kills the process
    for _ in range(100):
        assert process.charge(MIB // 2)
        process.give(MIB // 2)
    process.ask("move", 0, LINEAR, VMM, 4096)
    assert process.kind(VMM) == process.own() == 4096


def test_slots_run_out_with_a_reason_and_come_back(account: Make) -> None:
    here = account(GIB, slots=4)
    four = [here.start() for _ in range(4)]
    assert all(process.charge(MIB) for process in four)
    fifth = here.start()
    assert "too many processes" in fifth.ask("take")
    assert not fifth.charge(1)
    assert fifth.used() == 4 * MIB  # it can look, though
    four[2].kill()
    assert fifth.charge(MIB)
    assert fifth.used() == 4 * MIB
    assert len({entry.slot for entry in here.usage()}) == 4


def test_every_slot_of_a_real_page_can_be_taken(account: Make) -> None:
    """All 4095 slots. The last is taken by a process that finds 4094 taken."""
    here = account(GIB, slots=pages.SLOTS)
    holder = _lock(here, 0, pages.SLOTS - 1)
    with (here.place.pages / "usage").open("r+b") as page:
        page.seek(4096)
        page.write(b"\1" * (pages.SLOTS - 1))
    last, late = here.start(), here.start()
    assert last.charge(MIB)
    assert [entry.slot for entry in here.usage() if entry.used] == [pages.SLOTS - 1]
    assert "too many processes" in late.ask("take")
    os.close(holder)
    assert late.charge(MIB) and late.used() == 2 * MIB
    assert len(here.usage()) == 2


@pytest.mark.alone  # a time is measured
def test_a_stopped_process_keeps_its_memory_and_stops_no_other(account: Make) -> None:
    here = account(MIB)
    stopped, other = here.start(), here.start()
    assert stopped.charge(MIB // 2)
    os.kill(stopped.popen.pid, signal.SIGSTOP)
    started = time.monotonic()
    assert other.charge(MIB // 2) and not other.charge(1)
    assert time.monotonic() - started < 1
    assert other.used() == MIB
    os.kill(stopped.popen.pid, signal.SIGCONT)
    assert stopped.own() == MIB // 2


@pytest.mark.alone  # a time is measured
def test_a_stopped_cleaner_delays_others_only_briefly(account: Make) -> None:
    """A process that is refused asks again after a moment, and cleans up without the cleaner's byte."""
    here = account(MIB)
    victim, process = here.start(), here.start()
    assert victim.charge(MIB) and process.charge(0)
    cleaner = _lock(here, here.slots, 1)
    victim.kill()
    started = time.monotonic()
    assert process.charge(MIB)
    assert time.monotonic() - started < 0.1
    os.close(cleaner)


def test_threads_of_one_process_charge_at_once(account: Make) -> None:
    here = account(GIB)
    process, other = here.start(), here.start()
    assert process.charge(MIB, ARRAY)
    assert process.ask("threads", 8, 20000) == "0"
    assert process.own() == process.kind(ARRAY) == other.used() == MIB


def test_threads_and_forks_at_once_neither_hang_nor_leak(account: Make) -> None:
    here = account(GIB)
    process, other = here.start(), here.start()
    assert process.ask("forks", 4, 300) == "0"
    assert process.own() == other.used() == 0
    assert [entry.pid for entry in here.usage()] == [process.popen.pid]


def test_signal_handlers_may_charge_and_give_back(account: Make) -> None:
    here = account(GIB)
    process = here.start()
    assert int(process.ask("signals", 3000)) >= 3000
    assert process.own() == process.used() == 0


def test_three_hundred_processes_start_at_once(account: Make) -> None:
    here = account(GIB, slots=pages.SLOTS)
    many = [here.start() for _ in range(300)]
    answers: list[bool] = []
    threads = [
        threading.Thread(target=lambda process=process: answers.append(process.charge(MIB)))
        for process in many
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 300
    assert len({entry.slot for entry in here.usage()}) == 300
    assert many[0].used() == 300 * MIB
    for process in many[1:]:
        process.kill()
    assert many[0].used() == MIB


def _lock(here: Account, first: int, count: int) -> int:
    """A descriptor with an OFD lock on these bytes of the usage page."""
    fd = os.open(here.place.pages / pages.USAGE, os.O_RDWR)
    # struct flock: l_type, l_whence, l_start, l_len, l_pid
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, count, 0))
    return fd
