"""The places of measuring programs (bench/gpu/places.py): a program sees the card or its slice, and leaves
nothing.

They are on a simulated card, by the installed runtime and the real runc.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import places
import pytest

from share import runfolder
from support import GIB, REPOSITORY
from support.sharing_time import until
from support.simulation import Up
from xpu_runtime import paths
from xpu_runtime.limits import pages
from xpu_runtime.linux import proc
from xpu_runtime.vendors.nvidia import search

from . import scripts

#: Prints the card's size and starts a child in a session of its own. With an argument it waits.
PROGRAM = """
import ctypes, subprocess, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
pointer = ctypes.c_ulonglong()
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)) == 0
print("total:", total.value, flush=True)
subprocess.run(["nvidia-smi", "--query-gpu=memory.total", "--format=csv"], check=True)
if sys.argv[1:]:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("waits", flush=True)
    sys.stdin.close()
    import signal
    signal.pause()
"""
WORDS = [sys.executable, "-c", PROGRAM]


@pytest.fixture
def machine(up: Up, installed: Path) -> places.Machine:
    return scripts.machine(os.path.realpath(up("1xT4-R580").root), installed)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    mine = f"{places.PREFIX}{os.getpid()}-*"
    yield
    assert list(runfolder.TOP.glob(mine)) == []
    assert mine[:-1] not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("kind", places.KINDS)
def test_a_program_sees_the_card_or_its_slice(machine: places.Machine, kind: str) -> None:
    with places.opened(kind, machine=machine, memory="2G") as place:
        done = place.run(WORDS, timeout=60)
    assert done.returncode == 0, done.stdout
    of_all = kind == "native"
    assert f"total: {(15 if of_all else 2) * GIB}" in done.stdout
    assert ("15360 MiB" if of_all else "2048 MiB") in done.stdout


@pytest.mark.parametrize("kind", places.KINDS)
def test_at_its_timeout_a_program_is_killed_with_its_children(machine: places.Machine, kind: str) -> None:
    with places.opened(kind, machine=machine, memory="2G") as place:
        done = place.run([*WORDS, "wait"], timeout=5)
        assert done.returncode == places.TIMED_OUT
        assert "total: " in done.stdout and done.stdout.endswith("FAILED: no end within 5 s\n")
        assert runfolder.processes(place.folder) == []


@pytest.mark.parametrize("kind", ["sandbox", "container"])
def test_a_programs_memory_is_in_the_account_until_it_is_killed(machine: places.Machine, kind: str) -> None:
    with places.opened(kind, machine=machine, memory="2G", cores=30) as place:
        child = place.start([*WORDS, "wait"])
        until(lambda: "waits" in child.output(), "it waits", 60)
        assert place.used_memory() >= GIB
        assert Path(f"/proc/{child.pid}/cmdline").read_bytes().startswith(sys.executable.encode())
        assert len(child.processes()) >= 2
        assert child.kill() == []
        assert child.poll() == 128 + signal.SIGKILL and child.processes() == []
        assert place.used_memory() == 0


@pytest.mark.parametrize("kind", ["sandbox", "container"])
def test_a_cap_is_changed_while_programs_run(machine: places.Machine, kind: str) -> None:
    with places.opened(kind, machine=machine, memory="2G", cores=30) as place:
        assert cores(place) == 30
        place.set_cores(50)
        assert cores(place) == 50


def test_containers_beside_each_other_are_on_one_node(machine: places.Machine) -> None:
    with (
        places.opened("container", machine=machine, memory="2G") as one,
        places.opened("container", machine=machine, memory="4G", beside=one) as other,
    ):
        assert f"total: {2 * GIB}" in one.run(WORDS, timeout=60).stdout
        assert f"total: {4 * GIB}" in other.run(WORDS, timeout=60).stdout
        assert isinstance(one, places.Container)
        assert one.name in (told := one.xpu("ps", "--json")) and other.name in told


def test_the_next_run_removes_a_killed_runs_leftovers(machine: places.Machine) -> None:
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(scripts.SCRIPTS)!r})
import places
root = {machine.root!r}
machine = places.Machine({machine.prefix!r}, root, sys.executable, places.find_driver(root))
with places.opened("container", machine=machine, memory="2G") as place:
    child = place.start(["sleep", "1000"])
    print(place.folder, child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    folder, pid = done.stdout.split()
    assert done.returncode == -signal.SIGKILL and Path(folder).exists() and not proc.is_ending(int(pid))
    with places.opened("native", machine=machine) as place:
        assert place.run(["true"], timeout=10).returncode == 0
        assert not Path(folder).exists() and proc.is_ending(int(pid))
    assert folder not in Path("/proc/self/mountinfo").read_text()


def test_a_containers_files_are_not_on_the_host(machine: places.Machine) -> None:
    """The runtime's mount points, which it makes in the system's folders, are not there either."""
    system = places.Machine(machine.prefix, machine.root, "/usr/bin/python3", machine.driver)
    name = f"xpu-written-{os.getpid()}"
    with places.opened("container", machine=system, memory="2G") as place:
        script = f"touch /{name} /usr/lib/{name} {place.shared}/{name}; ls /usr/lib/*/libcuda.so.1"
        done = place.run(["sh", "-ec", script], timeout=30)
        assert done.returncode == 0 and not Path(done.stdout.strip()).exists(), done.stdout
        assert not Path(f"/{name}").exists() and not Path(f"/usr/lib/{name}").exists()
        assert (place.shared / name).exists()
        tree = f"cd {REPOSITORY}; ! touch {name} 2> /dev/null; echo 'import card' > {place.shared}/new.py"
        programs = f"PYTHONPATH=bench/gpu python3 {place.shared}/new.py; touch $TRITON_CACHE_DIR"
        script = f"{tree}; ls bench/gpu; {programs}"
        done = place.run(["sh", "-ec", script], timeout=30)
        assert done.returncode == 0 and "card.py" in done.stdout, done.stdout
    assert not (REPOSITORY / name).exists()


def test_a_container_may_write_only_to_its_shared_folder_of_the_host(machine: places.Machine) -> None:
    with places.opened("container", machine=machine, memory="2G") as place:
        spec = json.loads((place.folder / f"bundle-{place.name}/config.json").read_text())
        binds = {each["destination"]: each["options"] for each in spec["mounts"] if each["type"] == "bind"}
    assert str(REPOSITORY) in binds
    assert [path for path, options in binds.items() if "ro" not in options] == [str(place.shared)]


def test_system_folders_with_file_systems_of_their_own_are_overlays_too() -> None:
    script = f"""
import sys
sys.path[:0] = [{str(scripts.SCRIPTS)!r}]
import places, pathlib
rootfs = places.bundle.overlay(pathlib.Path("/mnt/bundle"), "/usr/local/nvidia/lib64")
(rootfs / "usr/lib/written").write_text("")
mounts = places.bundle.spec("name", rootfs, {{}}, [], "/usr/local/nvidia/lib64")["mounts"]
print(*(each["source"] for each in mounts if each["type"] == "bind"))
"""
    setup = "mount -t tmpfs none /mnt; mkdir /mnt/opt; mount --bind /usr /usr; mount --bind /mnt/opt /opt"
    command = ["unshare", "-m", "sh", "-ec", f'{setup}\nexec "$@"', "sh", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "/opt" in done.stdout.split() and "/usr" not in done.stdout.split()
    assert not Path("/usr/lib/written").exists()


def test_an_exception_leaves_nothing(machine: places.Machine) -> None:
    with pytest.raises(KeyboardInterrupt), places.opened("container", machine=machine, memory="2G") as place:
        pid = place.start(["sleep", "1000"]).pid
        raise KeyboardInterrupt
    assert proc.is_ending(pid)


def test_a_driver_is_found_by_the_search_path_and_a_library_for_another_machine_is_not_taken(
    machine: places.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_cached", lambda cache: ())
    monkeypatch.setattr(search, "PLACES", (("nowhere",),))
    monkeypatch.setattr(search, "DRIVER_CONTAINER", str(tmp_path))
    monkeypatch.setattr(paths, "_caller_library_path", ())
    other = tmp_path / "lib32"
    other.mkdir()
    (other / "libnvidia-ml.so.1").write_bytes(b"\x7fELF\x01" + bytes(64))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other))
    with pytest.raises(
        places.PlaceError, match=r"libnvidia-ml\.so\.1 is neither in .* nor in LD_LIBRARY_PATH"
    ):
        places.find_driver("")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{other}:{machine.driver.folder}")
    assert places.find_driver("").paths == machine.driver.paths


def cores(place: places.Place) -> int | None:
    if isinstance(place, places.Sandbox):
        return pages.quota(str(place.folder / f"pages-{place.name}")).cores[0]
    assert isinstance(place, places.Container)
    (slice_,) = json.loads(place.xpu("ps", "--json"))
    return int(slice_["cores"])
