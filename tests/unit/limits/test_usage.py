"""Which processes on the host are a container's, with and without a cgroup of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import usage_page
from xpu_runtime.limits.usage import _host_pid, processes
from xpu_runtime.linux import cgroups, proc


@contextmanager
def namespace() -> Iterator[int]:
    """A PID namespace with two programs in it; the process on the host that is its first."""
    child = subprocess.Popen(
        ["unshare", "-p", "-f", "--kill-child", "sh", "-c", "sleep 600 & echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    (first,) = children(child.pid)
    yield first
    child.kill()
    child.communicate()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def grant(pid: int, cgroup: str = "") -> Grant:
    return Grant(1, "c1", "/b", pid, proc.start_time(pid) or 0, cgroup, "running", "hook", 0.0, ())


def slot(pid: int, name: str) -> usage_page.ProcessUsage:
    return usage_page.ProcessUsage(0, pid, name, 0, 0, {})


def test_without_a_cgroup_the_pid_namespace_shows_the_containers_processes() -> None:
    with namespace() as first:
        (second,) = children(first)
        assert sorted(processes(grant(first)) or ()) == sorted([first, second])


def test_a_container_in_the_hosts_pid_namespace_and_without_a_cgroup_has_no_known_processes() -> None:
    assert processes(grant(os.getpid())) is None


def test_a_process_that_got_the_number_of_a_containers_is_not_taken_for_it() -> None:
    with namespace() as other:
        gone = grant(other).replace(start_time=1)
        assert processes(gone) == []


@pytest.fixture
def cgroup() -> Iterator[Path]:
    mountpoint = next(each.mountpoint for each in cgroups.mounted() if each.version == 2)
    folder = Path(mountpoint) / f"xpu-test-usage-{os.getpid()}"
    (folder / "inner").mkdir(parents=True)
    yield folder
    (folder / "inner").rmdir()
    folder.rmdir()


def test_the_processes_of_a_cgroup_are_those_below_it_too(cgroup: Path) -> None:
    sleepers = [subprocess.Popen(["/bin/sleep", "600"]) for _ in range(2)]
    for child, folder in zip(sleepers, (cgroup, cgroup / "inner")):
        (folder / "cgroup.procs").write_text(str(child.pid))
    found = processes(grant(sleepers[0].pid, str(cgroup)))
    assert sorted(found or ()) == sorted(each.pid for each in sleepers)
    for child in sleepers:
        child.kill()
        child.wait()
    assert processes(grant(1, str(cgroup))) == []
    assert processes(grant(1, str(cgroup / "gone"))) == []


def test_a_process_is_found_by_the_number_that_it_knows_itself_by() -> None:
    with namespace() as first:
        there: dict[int, list[int]] = {}
        for pid in (first, *children(first)):
            there.setdefault(proc.innermost_pid(pid) or 0, []).append(pid)
        assert there[1][0] == first
        assert _host_pid(slot(1, proc.name(first)), there) == first
        assert _host_pid(slot(77, "sleep"), there) is None


@contextmanager
def program(path: Path) -> Iterator[int]:
    """A program of this file's name, and its process."""
    if not path.exists():
        shutil.copy("/bin/sleep", path)
    child = subprocess.Popen([path, "600"])
    while proc.name(child.pid) == proc.name(os.getpid()):
        pass  # exec(2) gives it its name a moment after Popen has returned
    yield child.pid
    child.kill()
    child.wait()


def test_of_two_with_one_number_the_name_decides(tmp_path: Path) -> None:
    with program(tmp_path / "one") as one, program(tmp_path / "two") as two:
        assert _host_pid(slot(5, "two"), {5: [one, two]}) == two
        assert _host_pid(slot(5, "neither"), {5: [one, two]}) is None
        with program(tmp_path / "two") as another:
            assert _host_pid(slot(5, "two"), {5: [one, two, another]}) is None


def test_a_name_cannot_steer_a_terminal(tmp_path: Path) -> None:
    with program(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\x1b[2Jx\xff"))) as pid:
        assert proc.name(pid) == "?[2Jx?"
    assert proc.name(pid) == ""
    assert proc.innermost_pid(pid) is None


def test_many_groups_do_not_hide_the_number() -> None:
    child = subprocess.Popen(["/bin/sleep", "600"], extra_groups=range(100_000, 160_000))
    assert proc.innermost_pid(child.pid) == child.pid
    child.kill()
    child.wait()
