"""The programs for the kernel driver's boundary, with a file in the place of a device."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support import MIB
from support.simulation import Up, libraries

from .scripts import SCRIPTS, failures

SOURCES = SCRIPTS / "boundary"


CLIENT = """
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* FILE SIZE WRAPPED [stay]: an RM_ALLOC of video memory, and FB_GET_INFO_V2; a call of nvidia-uvm (beside
 * FILE) that has the same number as the resource manager's; then that it is ready. */
int main(int count, char **words) {
    unsigned char memory[128] = {0};
    uint64_t size = strtoull(words[2], 0, 10);
    struct { uint32_t root, parent, object, class; uint64_t at, rights; uint32_t bytes, flags, status, pad; }
        alloc = {1, 2, 3, 0x40, (uintptr_t)memory, 0, sizeof memory, 0, 0, 0};
    struct { uint32_t command, size; uint64_t at; } wrapped = {0x2b, sizeof alloc, (uintptr_t)&alloc};
    uint32_t info[4] = {1, 8, 0, 0};
    struct { uint32_t client, object, command, flags; uint64_t at; uint32_t size, status; }
        control = {1, 4, 0x20801303, 0, (uintptr_t)info, sizeof info, 0};
    int fd = open(words[1], O_RDWR);
    memcpy(memory + 64, &size, sizeof size);
    if (atoi(words[3]))
        ioctl(fd, _IOWR('F', 211, wrapped), &wrapped);
    else
        ioctl(fd, _IOWR('F', 0x2b, alloc), &alloc);
    ioctl(fd, _IOWR('F', 0x2a, control), &control);
    strcpy(strrchr(words[1], '/'), "/nvidia-uvm");
    ioctl(open(words[1], O_RDWR), 0x2a, 0);
    ioctl(-1, 0x58505505, 0);
    if (count > 4)
        pause();
    return 0;
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The boundary's programs, and `client`."""
    folder = tmp_path_factory.mktemp("boundary")
    subprocess.run(["make", "-s", "-C", str(SOURCES), f"OUT={folder}"], check=True, timeout=120)
    (folder / "client.c").write_text(CLIENT)
    subprocess.run(["cc", "-Wall", "-Werror", "-o", folder / "client", folder / "client.c"], check=True)
    for node in ("nvidiactl", "nvidia-uvm"):
        (folder / node).touch()
    return folder


def boundary(programs: Path, name: str, *client: str) -> tuple[int, str]:
    paths = [str(programs / each) for each in (f"boundary-{name}", "client", "nvidiactl")]
    words = [paths[0], "--anyway", *paths[1:], *client]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize("wrapped", ["0", "1"])
def test_an_allocation_is_seen_with_its_size(programs: Path, wrapped: str) -> None:
    status, text = boundary(programs, "trace", str(256 * MIB), wrapped)
    assert status == 0, text
    assert "ioctls, start: 3: nvidiactl 0x2a x 1, 0x2b x 1; nvidia-uvm 0x2a x 1 (" in text
    assert "RM_ALLOC: 48 bytes x 1\n" in text and "RM_CONTROL: 32 bytes x 1\n" in text
    assert "ok: 256 MiB are an RM_ALLOC of class 0x40 with their size at byte 64" in text


def test_an_allocation_of_another_size_is_reported(programs: Path) -> None:
    status, text = boundary(programs, "trace", str(255 * MIB), "0")
    assert status == 1
    assert f"RM_ALLOC of class 0x40: 1, the largest of {255 * MIB} bytes" in text
    assert failures(text) == ["FAILED: 256 MiB are an RM_ALLOC of class 0x40 with their size at byte 64"]


def test_a_control_is_repeated_on_a_copy_of_the_descriptor(programs: Path) -> None:
    """The file has no driver: the copy is of that file, and the kernel refuses the ioctl."""
    status, text = boundary(programs, "duplicate", "0", "0", "stay")
    assert status == 0, text
    refused = "the ioctl fails: Inappropriate ioctl for device"
    assert f"FB_GET_INFO_V2 again on a copy of the program's descriptor: {refused}" in text
    assert "another process's control on a copy is taken: no" in text


# ---- the supervisors, against a stand-in for the driver ----


@pytest.fixture(scope="module")
def stand_ins(programs: Path) -> Path:
    """Adds `asks` and `driver.so` to the programs."""
    sources = Path(__file__).parent / "boundary"
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-o"]
    subprocess.run([*command, programs / "asks", sources / "asks.c"], check=True)
    library = [str(programs / "driver.so"), "-shared", "-fPIC", str(sources / "driver.c"), "-ldl"]
    subprocess.run([*command, *library], check=True)
    return programs


def supervised(folder: Path, name: str, *steps: str, driver: bool = False, root: str = "") -> tuple[int, str]:
    node = folder / "nvidiactl"
    words = [str(folder / f"boundary-{name}"), "--anyway"]
    if steps:
        words += [str(folder / "asks"), str(node), *steps]
    variables = {"NODE": str(node), "LD_PRELOAD": str(folder / "driver.so")} if driver else {}
    if root:
        variables["LD_LIBRARY_PATH"] = str(libraries(root))
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=variables)
    assert not done.stderr
    return done.returncode, done.stdout


def test_an_allocation_beyond_the_rest_is_answered_with_no_memory(stand_ins: Path) -> None:
    """The file refuses calls that are let through: error 25, ENOTTY, and the status stays unwritten."""
    status, text = supervised(stand_ins, "refuse", "600", "600", "400", "free", "w600", "w600", "400")
    made, refused = "error 25, status 0xffff", "error 0, status 0x51"
    asked = [line.split(" MiB, ")[1].split(", at")[0] for line in text.splitlines() if "asked:" in line]
    assert asked == [made, refused, made, made, refused, refused], text
    # Ioctls of other numbers and sizes do not reach the supervisor.
    assert "notifications, start and context: 7, 3 refused" in text
    assert "most counted: 1000.0 MiB" in text and status == 0


def test_an_allocation_is_made_by_the_supervisor(stand_ins: Path) -> None:
    status, text = supervised(stand_ins, "supervise", "64", "w64", driver=True)
    answered = "asked: 64 MiB, error 0, status 0x0, at 0x5000, own addresses 1\n"
    assert text.count(answered) == 2, text
    assert "allocations: 2 seen, 2 made, 0 refused" in text and status == 0
    kept = re.search(r"capabilities kept: 0x([0-9a-f]{16})\n", text)
    assert kept and not int(kept[1], 16) & (1 << 21 | 1 << 23 | 1 << 38)  # ADMIN, NICE, PERFMON


def test_an_ioctl_that_fails_for_the_supervisor_fails_for_the_program(stand_ins: Path) -> None:
    status, text = supervised(stand_ins, "supervise", "64")
    assert "asked: 64 MiB, error 25, status 0xffff, at 0x0, own addresses 1\n" in text
    assert failures(text) == ["FAILED: the driver makes an allocation for another process"] and status == 1


@pytest.mark.parametrize("name", ["refuse", "supervise"])
def test_the_supervised_program_of_cuda_goes_through_its_steps(stand_ins: Path, up: Up, name: str) -> None:
    """With a libcuda that asks the driver all checks hold, except that kernels compute: they do not there."""
    _, text = supervised(stand_ins, name, driver=True, root=up("1xT4-R580").root)
    assert failures(text) and all(
        "a kernel's result" in line or "comes to its end" in line for line in failures(text)
    ), text
    assert re.search(r"us of 64 MiB, no filter: cuMemAlloc \d+\.\d, cuMemFree \d+\.\d\n", text)
    assert "ok: the program has all its steps behind it" in text
    if name == "refuse":
        assert "ok: cuMemAlloc of 2048 MiB is out of memory past the limit" in text
        assert "video memory of the context: 100.0 MiB in 1 objects" in text
        assert "left of the limit: 768.0 MiB before 2 GiB by cuMemAlloc\n" in text
        assert "notifications, 768 MiB: 5, 1 refused" in text
    else:
        assert "NVML counts the memory to the program: yes" in text
        assert "free 600.0, so used 400.0; NVML: total " in text


def test_time_slices_are_measured_though_no_channel_group_is_seen(programs: Path, up: Up) -> None:
    status, text = supervised(programs, "timeslice", root=up("1xT4-R580").root)
    assert status == 0, text
    seen = re.search(r"before: (\d+)\.\d and (\d+)\.\d kernels in a second, \d+\.\d % are the first's", text)
    assert seen and int(seen[1]) > 0 and int(seen[2]) > 0, text
    assert "not reached: no channel group was seen" in text


def test_time_slices_that_change_nothing_are_reported(stand_ins: Path, up: Up) -> None:
    status, text = supervised(stand_ins, "timeslice", driver=True, root=up("1xT4-R580").root)
    assert "SET_TIMESLICE to 16384 us: 0x5c: get 0x0 (2048 us), set 0x0\n" in text
    assert re.search(r"asked 0\.5 to 1: got \d\.\d\d to 1\n", text), text
    assert "the work follows the slice: no" in text and status == 0


def test_a_libcuda_that_never_asks_is_found(stand_ins: Path, up: Up) -> None:
    status, text = supervised(stand_ins, "refuse", root=up("1xT4-R580").root)
    assert "FAILED: cuMemAlloc of 2048 MiB is out of memory past the limit" in failures(text), text
    assert status == 1
