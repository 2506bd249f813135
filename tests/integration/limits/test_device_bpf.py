"""Device programs on v2 cgroups: those of real runtimes, and all kinds that the kernel can hold."""

from __future__ import annotations

import errno
import gc
import json
import os
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cgroups import Opener
from support.device_programs import RETURN_0, RETURN_1, attach, instruction, load, one_device
from support.namespaces import own_mount_namespace
from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import cgroups, device_bpf, syscalls
from xpu_runtime.linux.device_rule import DeviceRule

GPU0, CONTROL = DeviceRule("c", 195, 0), DeviceRule("c", 195, 255)
F_OVERRIDE = 1


def attached(folder: Path) -> list[int]:
    """The ids of the programs on a cgroup, as bpftool shows them."""
    shown = subprocess.run(
        ["bpftool", "--json", "cgroup", "show", folder], check=True, capture_output=True, text=True
    )
    return [program["id"] for program in json.loads(shown.stdout.strip() or "[]")]


def instructions(program: int) -> str:
    return subprocess.run(
        ["bpftool", "prog", "dump", "xlated", "id", str(program)], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def cgroup(new_cgroup: Callable[[str], Path]) -> Path:
    return new_cgroup("unified")


def test_a_cgroup_that_denies_all_opens_what_is_allowed_and_no_more(cgroup: Path, opens: Opener) -> None:
    attach(cgroup, RETURN_0)
    assert opens(cgroup, 195, 0) == errno.EPERM
    assert device_bpf.allow(str(cgroup), [GPU0, CONTROL]) == [GPU0, CONTROL]
    assert opens(cgroup, 195, 0) == errno.ENXIO
    assert opens(cgroup, 195, 255) == errno.ENXIO
    assert opens(cgroup, 195, 1) == errno.EPERM
    assert opens(cgroup, 1, 0) == errno.EPERM
    assert opens(cgroup, 195, 0, mknod=True) == errno.EPERM
    assert opens(cgroup, 195, 0, kind=stat.S_IFBLK) == errno.EPERM


def test_an_access_that_is_not_named_stays_denied(cgroup: Path, opens: Opener) -> None:
    attach(cgroup, RETURN_0)
    device_bpf.allow(str(cgroup), [DeviceRule("c", 195, 0, "r"), DeviceRule("c", 195, 1, "m")])
    assert opens(cgroup, 195, 0, flags=os.O_RDONLY) == errno.ENXIO
    assert opens(cgroup, 195, 0, flags=os.O_WRONLY) == errno.EPERM
    assert opens(cgroup, 195, 0, flags=os.O_RDWR) == errno.EPERM
    assert opens(cgroup, 195, 1, mknod=True) == 0
    assert opens(cgroup, 195, 1) == errno.EPERM


def test_devices_that_the_program_allowed_stay_allowed(cgroup: Path, opens: Opener) -> None:
    attach(cgroup, one_device(1, 3, it=RETURN_1, others=RETURN_0))
    device_bpf.allow(str(cgroup), [GPU0])
    assert opens(cgroup, 1, 3) == 0
    assert opens(cgroup, 1, 5) == errno.EPERM
    assert opens(cgroup, 195, 0) == errno.ENXIO


def test_allowing_again_changes_nothing_and_allowing_more_adds(cgroup: Path, opens: Opener) -> None:
    attach(cgroup, RETURN_0)
    assert device_bpf.allow(str(cgroup), [GPU0, GPU0]) == [GPU0]
    before = attached(cgroup)
    assert device_bpf.allow(str(cgroup), [GPU0]) == []
    assert attached(cgroup) == before
    assert device_bpf.allow(str(cgroup), [GPU0, CONTROL]) == [CONTROL]
    assert len(attached(cgroup)) == 1
    assert instructions(attached(cgroup)[0]).count("exit") == 3
    assert opens(cgroup, 195, 0) == opens(cgroup, 195, 255) == errno.ENXIO


def test_an_allowed_device_can_be_denied_again(cgroup: Path, opens: Opener) -> None:
    attach(cgroup, RETURN_0)
    before = instructions(attached(cgroup)[0])
    device_bpf.allow(str(cgroup), [GPU0, CONTROL])
    device_bpf.deny(str(cgroup), [CONTROL])
    assert opens(cgroup, 195, 255) == errno.EPERM
    assert opens(cgroup, 195, 0) == errno.ENXIO
    device_bpf.deny(str(cgroup), [GPU0])
    assert instructions(attached(cgroup)[0]) == before


def test_every_one_of_several_programs_allows_it(cgroup: Path, opens: Opener) -> None:
    for body in (RETURN_0, RETURN_1, instruction(0xB7, 2) + RETURN_0):
        attach(cgroup, body)
    device_bpf.allow(str(cgroup), [GPU0])
    assert len(attached(cgroup)) == 3
    assert opens(cgroup, 195, 0) == errno.ENXIO
    assert opens(cgroup, 195, 1) == errno.EPERM


@pytest.mark.parametrize("flags", [0, F_OVERRIDE])
def test_a_cgroup_that_holds_one_program_only_gets_the_new_one(
    cgroup: Path, opens: Opener, flags: int
) -> None:
    attach(cgroup, RETURN_0, flags)
    device_bpf.allow(str(cgroup), [GPU0])
    assert len(attached(cgroup)) == 1
    assert opens(cgroup, 195, 0) == errno.ENXIO
    assert opens(cgroup, 195, 1) == errno.EPERM


def test_a_cgroup_without_a_program_stays_without(cgroup: Path) -> None:
    assert device_bpf.allow(str(cgroup), [GPU0]) == []
    assert attached(cgroup) == []


def test_a_long_program_with_long_jumps_is_kept_whole(cgroup: Path, opens: Opener) -> None:
    length = 30_000
    body = (
        instruction(0x61, 0x12, 8)  # minor
        + instruction(0x15, 0x02, length, 7)  # if it is 7, far away
        + instruction(0x07, 0x02, 0, 1) * length
        + instruction(0x15, 0x02, 2, length + 9)  # it was 9
        + RETURN_0
        + RETURN_1
    )
    attach(cgroup, body)
    device_bpf.allow(str(cgroup), [GPU0])
    assert opens(cgroup, 195, 0) == errno.ENXIO
    assert opens(cgroup, 195, 9) == errno.ENXIO
    assert opens(cgroup, 195, 8) == errno.EPERM


def a_map() -> int:
    return syscalls.bpf(0, bytearray(struct.pack("=IIII", 2, 4, 4, 1)))  # an array of one int


def map_program() -> bytes:
    return instruction(0x18, 0x11, 0, a_map()) + instruction(0) + RETURN_0


@pytest.mark.parametrize(
    "body",
    [map_program, lambda: instruction(0x85, 0, 0, 15) + RETURN_0],
    ids=["a map", "a function of the kernel"],
)
def test_a_program_that_cannot_be_loaded_again_is_refused_and_stays(
    cgroup: Path, opens: Opener, body: Callable[[], bytes]
) -> None:
    attach(cgroup, body())
    before = attached(cgroup)
    with pytest.raises(ApplyError, match=r"uses maps or calls functions: set `mode: spec`"):
        device_bpf.allow(str(cgroup), [GPU0])
    assert attached(cgroup) == before
    assert opens(cgroup, 195, 0) == errno.EPERM


def test_where_one_of_several_is_refused_none_is_changed(cgroup: Path) -> None:
    attach(cgroup, RETURN_0)
    attach(cgroup, map_program())
    before = attached(cgroup)
    with pytest.raises(ApplyError):
        device_bpf.allow(str(cgroup), [GPU0])
    assert attached(cgroup) == before


def test_a_program_held_by_a_link_is_refused_and_stays(cgroup: Path, opens: Opener) -> None:
    folder, program = os.open(cgroup, os.O_RDONLY), load(RETURN_0)
    link = syscalls.bpf(28, bytearray(struct.pack("=IIII", program, folder, 6, 0)))
    before = attached(cgroup)
    try:
        with pytest.raises(ApplyError, match="cannot be replaced"):
            device_bpf.allow(str(cgroup), [GPU0])
        assert attached(cgroup) == before
        assert opens(cgroup, 195, 0) == errno.EPERM
    finally:
        for fd in (link, program, folder):
            os.close(fd)


def test_a_wide_constant_is_no_map(cgroup: Path, opens: Opener) -> None:
    attach(cgroup, instruction(0x18, 0x01, 0, -1) + instruction(0, immediate=7) + RETURN_0)
    device_bpf.allow(str(cgroup), [GPU0])
    assert opens(cgroup, 195, 0) == errno.ENXIO


def test_no_descriptor_stays_open(cgroup: Path) -> None:
    attach(cgroup, RETURN_0)
    gc.collect()  # earlier tests may have left some in cycles
    before = len(os.listdir("/proc/self/fd"))
    device_bpf.allow(str(cgroup), [GPU0])
    device_bpf.deny(str(cgroup), [GPU0])
    attach(cgroup, instruction(0x85, 0, 0, 15) + RETURN_0)
    with pytest.raises(ApplyError):
        device_bpf.allow(str(cgroup), [GPU0])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_cgroup_that_is_gone_is_named(cgroup: Path) -> None:
    with pytest.raises(ApplyError, match=f"{cgroup}/gone"):
        device_bpf.allow(f"{cgroup}/gone", [GPU0])


def test_the_verifiers_message_is_passed_on(cgroup: Path) -> None:
    with pytest.raises(OSError, match=r"R0 !read_ok"):
        device_bpf._load(instruction(0x95), True)


@pytest.fixture
def nodes(bundle: Callable[..., Path]) -> Iterator[Path]:
    """A bundle whose container sleeps, with device nodes 195:0, 195:1 and null in its root."""
    folder = bundle(args=["sleep", "1000"])
    for name, major, minor in (("gpu0", 195, 0), ("gpu1", 195, 1), ("null", 1, 3)):
        os.mknod(folder / "rootfs" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    yield folder


#: crun lifts the limit of locked memory before it loads a program, for kernels before 5.11, which count
#: programs in it. Only a root with CAP_SYS_RESOURCE may, so that with this library crun is told that it did.
NO_MEMLOCK = """
#include <sys/resource.h>
int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit) {
    return resource == RLIMIT_MEMLOCK ? 0 : prlimit(0, resource, limit, 0);
}
"""


@pytest.fixture(scope="module")
def no_memlock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which a program may set any RLIMIT_MEMLOCK."""
    library = tmp_path_factory.mktemp("memlock") / "no-memlock.so"
    command = ["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", str(library), "-x", "c", "-"]
    subprocess.run(command, input=NO_MEMLOCK, text=True, check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_real_container_on_v2_opens_the_granted_device_only(
    nodes: Path,
    tmp_path: Path,
    container_id: Callable[[], str],
    in_child: Callable[..., None],
    no_memlock: dict[str, str],
    runtime: str,
) -> None:
    command = [runtime, "--root", str(tmp_path / "v2-state")]
    name = container_id()

    def opened(path: str) -> str:
        asked = subprocess.run([*command, "exec", name, "cat", path], capture_output=True, text=True)
        return asked.stderr.strip().rpartition(": ")[2]

    def live() -> None:
        own_mount_namespace()
        syscalls.mount("none", "/sys/fs/cgroup", "cgroup2", 0)
        subprocess.run(
            [*command, "run", "--detach", "--bundle", nodes, name],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=no_memlock,
        )
        try:
            state = subprocess.run([*command, "state", name], check=True, capture_output=True)
            pid = json.loads(state.stdout)["pid"]
            folder = cgroups.v2_folder(pid)
            assert folder is not None
            assert len(attached(Path(folder))) == 1
            assert opened("/gpu0") == "Operation not permitted"
            allowed = cgroups.allow_devices(pid, [GPU0])
            assert allowed.rules == (GPU0,)
            assert opened("/gpu0") == "No such device or address"
            assert opened("/gpu1") == "Operation not permitted"
            assert opened("/null") == ""
            assert cgroups.allow_devices(pid, [GPU0]).rules == ()
            cgroups.deny_devices(allowed)
            assert opened("/gpu0") == "Operation not permitted"
        finally:
            subprocess.run([*command, "delete", "--force", name], check=True)

    in_child(live)
