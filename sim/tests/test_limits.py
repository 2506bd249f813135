"""Memory limits of a cgroup, in drivers since R615: the right to set them, and their effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import GIB, MIB
from support.simulation import (
    NO_LIMIT,
    NVML_INVALID,
    NVML_NO_FUNCTION,
    NVML_NO_PERMISSION,
    NVML_NOT_FOUND,
    NVML_NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    Start,
    Up,
)

Cgroup = Callable[..., Path]
T4 = 15360 * MIB


def test_a_limit_is_the_total_inside_and_nothing_outside(up: Up, process: Start, cgroup: Cgroup) -> None:
    root = up("2xT4").root
    group = cgroup()
    inside, outside = process(root, cgroup=group), process(root)
    assert outside.limit(str(group), 0, 4 * GIB) == SUCCESS
    inside.start(), outside.start()
    assert outside.alloc(GIB)[0] == SUCCESS
    assert inside.info() == [SUCCESS, 4 * GIB, 4 * GIB]
    assert inside.alloc(4 * GIB + 1)[0] == OUT_OF_MEMORY
    assert inside.alloc(3 * GIB)[0] == SUCCESS
    assert inside.alloc(GIB + 512)[0] == OUT_OF_MEMORY
    memory = inside.nvml("nvmlDeviceGetMemoryInfo")
    assert memory == {"total": 4 * GIB, "free": GIB, "used": 3 * GIB}
    assert inside.nvml("nvmlDeviceGetMemoryInfo", 0, 0x02000028)["total"] == 4 * GIB
    assert inside.nvml("nvmlDeviceGetMemoryInfo", 1)["total"] == T4, "another device has no limit"
    assert outside.nvml("nvmlDeviceGetMemoryInfo") == {"total": T4, "free": T4 - 4 * GIB, "used": 4 * GIB}
    assert outside.limits(str(group)) == [SUCCESS, 0, 4 * GIB, 3 * GIB]
    assert outside.alloc(11 * GIB)[0] == SUCCESS


def test_processes_and_child_cgroups_share_one_limit(up: Up, process: Start, cgroup: Cgroup) -> None:
    root = up("1xT4").root
    parent = cgroup()
    child = cgroup(parent)
    one, two = process(root, cgroup=parent), process(root, cgroup=child)
    three = process(root, cgroup=child)
    for worker in (one, two, three):
        worker.start()
    assert three.limit(str(parent), 0, 6 * GIB) == SUCCESS
    assert one.alloc(2 * GIB)[0] == SUCCESS
    assert two.alloc(2 * GIB)[0] == SUCCESS
    assert three.alloc(2 * GIB + 1)[0] == OUT_OF_MEMORY
    assert three.info() == [SUCCESS, 2 * GIB, 6 * GIB]
    assert three.alloc(2 * GIB)[0] == SUCCESS
    two.kill()
    assert one.alloc(2 * GIB)[0] == SUCCESS, "what a dead process had is free again"
    assert one.limits(str(child)) == [SUCCESS, 0, NO_LIMIT, 2 * GIB]


def test_the_nearest_limit_is_reported_and_every_one_above_it_holds(
    up: Up, process: Start, cgroup: Cgroup
) -> None:
    root = up("1xT4").root
    parent = cgroup()
    child = cgroup(parent)
    one = process(root, cgroup=child)
    one.start()
    one.limit(str(parent), 0, 2 * GIB)
    one.limit(str(child), 0, 3 * GIB)
    assert one.info() == [SUCCESS, 3 * GIB, 3 * GIB]
    assert one.alloc(2 * GIB + 1)[0] == OUT_OF_MEMORY
    assert one.alloc(2 * GIB)[0] == SUCCESS


def test_a_limit_can_be_moved_and_cleared(up: Up, process: Start, cgroup: Cgroup) -> None:
    root = up("1xT4").root
    group = cgroup()
    one = process(root, cgroup=group)
    one.start()
    assert one.limits(str(group)) == [SUCCESS, 0, NO_LIMIT, 0]
    assert one.limit(str(group), GIB, 2 * GIB) == SUCCESS
    assert one.limits(str(group)) == [SUCCESS, GIB, 2 * GIB, 0]
    _, pointer = one.alloc(2 * GIB)
    assert one.limit(str(group), 0, GIB) == SUCCESS, "below what is in use: nothing is taken away"
    assert one.info() == [SUCCESS, 0, GIB]
    assert one.alloc(1)[0] == OUT_OF_MEMORY
    assert one.free(pointer) == SUCCESS
    assert one.alloc(GIB)[0] == SUCCESS
    assert one.limit(str(group), 0, NO_LIMIT) == SUCCESS
    assert one.info()[2] == T4
    assert one.alloc(10 * GIB)[0] == SUCCESS


def test_a_cgroup_made_anew_under_the_same_name_has_no_limit(up: Up, process: Start, cgroup: Cgroup) -> None:
    root = up("1xT4").root
    group = cgroup()
    observer = process(root)
    observer.limit(str(group), 0, GIB)
    first = process(root, cgroup=group)
    first.start()
    assert first.alloc(GIB)[0] == SUCCESS
    first.kill()
    group.rmdir()
    assert observer.limits(str(group))[0] == NVML_NOT_FOUND
    group.mkdir()
    second = process(root, cgroup=group)
    second.start()
    assert second.info()[2] == T4
    assert second.alloc(2 * GIB)[0] == SUCCESS
    assert observer.limits(str(group)) == [SUCCESS, 0, NO_LIMIT, 2 * GIB]


def test_memory_stays_with_the_cgroup_that_it_was_allocated_in(
    up: Up, process: Start, cgroup: Cgroup
) -> None:
    root = up("1xT4").root
    first, second = cgroup(), cgroup()
    one = process(root, cgroup=first)
    one.start()
    _, pointer = one.alloc(GIB)
    (second / "cgroup.procs").write_text(str(one.pid()))
    assert one.alloc(2 * GIB)[0] == SUCCESS
    assert one.limits(str(first))[3] == GIB
    assert one.limits(str(second))[3] == 2 * GIB
    one.free(pointer)
    assert one.limits(str(first))[3] == 0


def test_only_root_on_the_host_may_set_a_limit(up: Up, process: Start, cgroup: Cgroup) -> None:
    root = up("1xT4").root
    group = cgroup()
    nobody = process(root)
    nobody.become(65534)
    assert nobody.limit(str(group), 0, GIB) == NVML_NO_PERMISSION
    nodes = "mount -t tmpfs t /dev; mknod /dev/nvidiactl c 195 255; mknod /dev/nvidia0 c 195 0"
    contained = process(root, setup=nodes)
    assert contained.count() == nobody.count(), "it sees the device"
    assert contained.limit(str(group), 0, GIB) == NVML_NO_PERMISSION
    assert contained.limits(str(group))[0] == NVML_NO_PERMISSION
    assert process(root).limits(str(group)) == [SUCCESS, 0, NO_LIMIT, 0]


def test_invalid_limits_and_places_without_limits_are_refused(
    up: Up, process: Start, cgroup: Cgroup, cgroup2: Path, tmp_path: Path
) -> None:
    group = cgroup()
    one = process(up("1xT4").root)
    for soft, hard in ((2 * GIB, GIB), (0, T4 + 1), (T4 + 1, NO_LIMIT), (NO_LIMIT, NO_LIMIT)):
        assert one.limit(str(group), soft, hard) == NVML_INVALID, (soft, hard)
        assert one.limits(str(group)) == [SUCCESS, 0, NO_LIMIT, 0]
    # The root of the tree has no limits either.
    for path in (cgroup2 / "cgroup.procs", cgroup2, tmp_path, "relative", ""):
        assert one.limit(str(path), 0, GIB) == NVML_INVALID, path
    for path in (cgroup2 / "no-such-cgroup", "/" + "x" * 5000):
        assert one.limit(str(path), 0, GIB) == NVML_NOT_FOUND, path


def test_a_card_in_mig_mode_has_no_limits(up: Up, process: Start, cgroup: Cgroup) -> None:
    group = cgroup()
    one = process(up("2xA100-MIG").root)
    assert one.limit(str(group), 0, GIB) == NVML_NOT_SUPPORTED
    assert one.limits(str(group))[0] == NVML_NOT_SUPPORTED


@pytest.mark.parametrize("branch", ["R470", "R580", "R610"])
def test_drivers_before_r615_do_not_have_the_functions(
    up: Up, process: Start, cgroup: Cgroup, branch: str
) -> None:
    group = cgroup()
    one = process(up(f"1xT4-{branch}").root)
    assert one.limit(str(group), 0, GIB) == NVML_NO_FUNCTION
    assert one.limits(str(group))[0] == NVML_NO_FUNCTION
    assert one.start() == SUCCESS


def test_limits_of_removed_cgroups_do_not_pile_up(up: Up, process: Start, cgroup: Cgroup) -> None:
    state = up("1xT4")
    one = process(state.root)
    parent = cgroup()
    group = parent / "group"

    def resident() -> int:
        lines = Path(f"/proc/{state.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def come_and_go(times: int) -> None:
        for _ in range(times):
            group.mkdir()
            assert one.limit(str(group), 0, GIB) == SUCCESS
            group.rmdir()

    come_and_go(200)
    before = resident()
    come_and_go(4000)
    assert resident() - before < 512, "KiB; four thousand cgroups' limits are more than that"
