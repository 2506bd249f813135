"""Device programs on v2 cgroups: those of real runtimes, and all kinds that the kernel can hold."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xpu_runtime.errors import ApplyError
from xpu_runtime.linux import cgroups, device_bpf, syscalls
from xpu_runtime.linux.cgroups import DeviceRule

from .conftest import Opener

GPU0, CONTROL = DeviceRule("c", 195, 0), DeviceRule("c", 195, 255)
F_OVERRIDE, F_MULTI = 1, 2


def instruction(code: int, registers: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhi", code, registers, offset, immediate)


RETURN_0 = instruction(0xB7) + instruction(0x95)
RETURN_1 = instruction(0xB7, immediate=1) + instruction(0x95)


def load(code: bytes) -> int:
    text, license = bytearray(code), bytearray(b"GPL\0")
    attributes = struct.pack(
        "=IIQQ44xI", 15, len(code) // 8, syscalls.address_of(text), syscalls.address_of(license), 6
    )
    return syscalls.bpf(5, bytearray(attributes))


@pytest.fixture
def attach() -> Callable[..., None]:
    def attach_program(folder: Path, code: bytes, flags: int = F_MULTI) -> None:
        cgroup, program = os.open(folder, os.O_RDONLY), load(code)
        try:
            syscalls.bpf(8, bytearray(struct.pack("=IIIII", cgroup, program, 6, flags, 0)))
        finally:
            os.close(program)
            os.close(cgroup)

    return attach_program


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


def test_a_cgroup_that_denies_all_opens_what_is_allowed_and_no_more(
    cgroup: Path, attach: Callable[..., None], opens: Opener
) -> None:
    attach(cgroup, RETURN_0)
    assert opens(cgroup, 195, 0) == errno.EPERM
    assert device_bpf.allow(str(cgroup), [GPU0, CONTROL]) == [GPU0, CONTROL]
    assert opens(cgroup, 195, 0) == errno.ENXIO
    assert opens(cgroup, 195, 255) == errno.ENXIO
    assert opens(cgroup, 195, 1) == errno.EPERM
    assert opens(cgroup, 1, 0) == errno.EPERM
    assert opens(cgroup, 195, 0, mknod=True) == errno.EPERM
    assert opens(cgroup, 195, 0, kind=stat.S_IFBLK) == errno.EPERM


def test_an_access_that_is_not_named_stays_denied(
    cgroup: Path, attach: Callable[..., None], opens: Opener
) -> None:
    attach(cgroup, RETURN_0)
    device_bpf.allow(str(cgroup), [DeviceRule("c", 195, 0, "r"), DeviceRule("c", 195, 1, "m")])
    assert opens(cgroup, 195, 0, flags=os.O_RDONLY) == errno.ENXIO
    assert opens(cgroup, 195, 0, flags=os.O_WRONLY) == errno.EPERM
    assert opens(cgroup, 195, 0, flags=os.O_RDWR) == errno.EPERM
    assert opens(cgroup, 195, 1, mknod=True) == 0
    assert opens(cgroup, 195, 1) == errno.EPERM


def test_what_the_program_allowed_it_still_allows(
    cgroup: Path, attach: Callable[..., None], opens: Opener
) -> None:
    only_null = (
        instruction(0x61, 0x12, 4)  # major
        + instruction(0x55, 0x02, 4, 1)
        + instruction(0x61, 0x12, 8)  # minor
        + instruction(0x55, 0x02, 2, 3)
        + RETURN_1
        + RETURN_0
    )
    attach(cgroup, only_null)
    device_bpf.allow(str(cgroup), [GPU0])
    assert opens(cgroup, 1, 3) == 0
    assert opens(cgroup, 1, 5) == errno.EPERM
    assert opens(cgroup, 195, 0) == errno.ENXIO


def test_allowing_again_changes_nothing_and_allowing_more_adds(
    cgroup: Path, attach: Callable[..., None], opens: Opener
) -> None:
    attach(cgroup, RETURN_0)
    assert device_bpf.allow(str(cgroup), [GPU0, GPU0]) == [GPU0]
    before = attached(cgroup)
    assert device_bpf.allow(str(cgroup), [GPU0]) == []
    assert attached(cgroup) == before
    assert device_bpf.allow(str(cgroup), [GPU0, CONTROL]) == [CONTROL]
    assert len(attached(cgroup)) == 1
    assert instructions(attached(cgroup)[0]).count("exit") == 3
    assert opens(cgroup, 195, 0) == opens(cgroup, 195, 255) == errno.ENXIO


def test_what_was_allowed_can_be_taken_back(cgroup: Path, attach: Callable[..., None], opens: Opener) -> None:
    attach(cgroup, RETURN_0)
    before = instructions(attached(cgroup)[0])
    device_bpf.allow(str(cgroup), [GPU0, CONTROL])
    device_bpf.deny(str(cgroup), [CONTROL])
    assert opens(cgroup, 195, 255) == errno.EPERM
    assert opens(cgroup, 195, 0) == errno.ENXIO
    device_bpf.deny(str(cgroup), [GPU0])
    assert instructions(attached(cgroup)[0]) == before


def test_every_one_of_several_programs_allows_it(
    cgroup: Path, attach: Callable[..., None], opens: Opener
) -> None:
    for body in (RETURN_0, RETURN_1, instruction(0xB7, 2) + RETURN_0):
        attach(cgroup, body)
    device_bpf.allow(str(cgroup), [GPU0])
    assert len(attached(cgroup)) == 3
    assert opens(cgroup, 195, 0) == errno.ENXIO
    assert opens(cgroup, 195, 1) == errno.EPERM


@pytest.mark.parametrize("flags", [0, F_OVERRIDE])
def test_a_cgroup_that_holds_one_program_only_gets_the_new_one(
    cgroup: Path, attach: Callable[..., None], opens: Opener, flags: int
) -> None:
    attach(cgroup, RETURN_0, flags)
    device_bpf.allow(str(cgroup), [GPU0])
    assert len(attached(cgroup)) == 1
    assert opens(cgroup, 195, 0) == errno.ENXIO
    assert opens(cgroup, 195, 1) == errno.EPERM


def test_a_cgroup_without_a_program_stays_without(cgroup: Path) -> None:
    assert device_bpf.allow(str(cgroup), [GPU0]) == []
    assert attached(cgroup) == []


def test_a_long_program_with_long_jumps_is_kept_whole(
    cgroup: Path, attach: Callable[..., None], opens: Opener
) -> None:
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
    cgroup: Path, attach: Callable[..., None], opens: Opener, body: Callable[[], bytes]
) -> None:
    attach(cgroup, body())
    before = attached(cgroup)
    with pytest.raises(ApplyError, match=r"uses maps or calls functions: set `mode: spec`"):
        device_bpf.allow(str(cgroup), [GPU0])
    assert attached(cgroup) == before
    assert opens(cgroup, 195, 0) == errno.EPERM


def test_where_one_of_several_is_refused_none_is_changed(cgroup: Path, attach: Callable[..., None]) -> None:
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


def test_a_wide_constant_is_no_map(cgroup: Path, attach: Callable[..., None], opens: Opener) -> None:
    attach(cgroup, instruction(0x18, 0x01, 0, -1) + instruction(0, immediate=7) + RETURN_0)
    device_bpf.allow(str(cgroup), [GPU0])
    assert opens(cgroup, 195, 0) == errno.ENXIO


def test_no_descriptor_stays_open(cgroup: Path, attach: Callable[..., None]) -> None:
    attach(cgroup, RETURN_0)
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


def test_what_the_verifier_says_is_passed_on(cgroup: Path, attach: Callable[..., None]) -> None:
    with pytest.raises(OSError, match=r"R0 !read_ok"):
        device_bpf._load(instruction(0x95), True)


@pytest.fixture
def nodes(bundle: Callable[..., Path]) -> Iterator[Path]:
    """A bundle whose container sleeps, with device nodes 195:0, 195:1 and null in its root."""
    folder = bundle(args=["sleep", "1000"])
    for name, major, minor in (("gpu0", 195, 0), ("gpu1", 195, 1), ("null", 1, 3)):
        os.mknod(folder / "rootfs" / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    yield folder


CAP_SYS_RESOURCE = 24


def has_capability(number: int) -> bool:
    lines = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(lines["CapEff"], 16) >> number & 1)


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_real_container_on_v2_opens_the_granted_device_only(
    nodes: Path, tmp_path: Path, container_id: Callable[[], str], in_child: Callable[..., None], runtime: str
) -> None:
    program = shutil.which(runtime)
    if program is None:
        pytest.skip(f"{runtime} is not installed")
    if runtime == "crun" and not has_capability(CAP_SYS_RESOURCE):
        pytest.skip("crun on v2 raises RLIMIT_MEMLOCK, which needs CAP_SYS_RESOURCE")
    command = [program, "--root", str(tmp_path / "v2-state")]
    name = container_id()

    def opened(path: str) -> str:
        asked = subprocess.run([*command, "exec", name, "cat", path], capture_output=True, text=True)
        return asked.stderr.strip().rpartition(": ")[2]

    def live() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("none", "/sys/fs/cgroup", "cgroup2", 0)
        subprocess.run(
            [*command, "run", "--detach", "--bundle", nodes, name],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            state = subprocess.run([*command, "state", name], check=True, capture_output=True)
            pid = json.loads(state.stdout)["pid"]
            folder = cgroups.v2_folder(pid)
            assert folder is not None
            assert len(attached(Path(folder))) == 1
            assert opened("/gpu0") == "Operation not permitted"
            assert cgroups.allow_devices(pid, [GPU0]) == [GPU0]
            assert opened("/gpu0") == "No such device or address"
            assert opened("/gpu1") == "Operation not permitted"
            assert opened("/null") == ""
            assert cgroups.allow_devices(pid, [GPU0]) == []
            cgroups.deny_devices(pid, [GPU0])
            assert opened("/gpu0") == "Operation not permitted"
        finally:
            subprocess.run([*command, "delete", "--force", name], check=True)

    in_child(live)
