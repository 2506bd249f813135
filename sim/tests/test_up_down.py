"""`xpu sim up` and `down`: their leftovers on the machine, and their refusals."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.simulation import SUCCESS, Start, Up, build
from xpu_runtime.cli import sim as cli
from xpu_runtime.errors import ConfigError, DeviceError
from xpu_runtime.linux import ldcache
from xpu_runtime.vendors import discovery
from xpu_simulator import simulator
from xpu_simulator.simulator import SimState


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


def gone(state: SimState) -> bool:
    return not alive(state.pid) and not Path(state.root).exists()


def test_a_driver_root_has_the_files_of_an_installed_driver(up: Up) -> None:
    state = up("2xA100-MIG")
    root = Path(state.root)
    cache = {entry.soname: entry for entry in ldcache.parse((root / "etc/ld.so.cache").read_bytes())}
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        path = root / cache[soname].path.lstrip("/")
        assert path.resolve().name == f"{soname.removesuffix('.1')}.615.36.02"
        assert path.resolve().is_file()
    majors = {
        line.split()[1]: int(line.split()[0])
        for line in (root / "proc/devices").read_text().splitlines()
        if line[:1].isdigit()
    }
    for name, major, minor in [
        ("nvidia0", 195, 0),
        ("nvidia1", 195, 1),
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia-uvm", majors["nvidia-uvm"], 0),
        ("nvidia-uvm-tools", majors["nvidia-uvm"], 1),
    ]:
        node = os.stat(root / "dev" / name)
        assert stat.S_ISCHR(node.st_mode)
        assert (os.major(node.st_rdev), os.minor(node.st_rdev)) == (major, minor)
        assert stat.S_IMODE(node.st_mode) == 0o666
        with pytest.raises(OSError, match="No such device or address"):
            os.open(root / "dev" / name, os.O_RDWR)
    for access in (root / "proc/driver/nvidia/capabilities/gpu0/mig").rglob("access"):
        fields = dict(line.split(": ") for line in access.read_text().splitlines())
        node = os.stat(root / f"dev/nvidia-caps/nvidia-cap{fields['DeviceFileMinor']}")
        assert node.st_rdev == os.makedev(majors["nvidia-caps"], int(fields["DeviceFileMinor"]))
        assert stat.S_IMODE(node.st_mode) == int(fields["DeviceFileMode"])
    assert "615.36.02" in (root / "proc/driver/nvidia/version").read_text()
    information = (root / "proc/driver/nvidia/gpus/0000:00:11.0/information").read_text()
    assert "Device Minor: \t 1" in information


def test_up_again_changes_nothing_and_down_leaves_nothing(up: Up, run_dir: Path) -> None:
    assert discovery.simulated_root() is None
    assert simulator.status() is None
    state = up("1xT4")
    assert discovery.simulated_root() == state.root
    assert simulator.status() == state
    assert up("1xT4") == state
    assert simulator.down() is True
    assert gone(state)
    assert sorted(os.listdir(run_dir)) == ["sim.lock"]
    assert simulator.down() is False
    assert discovery.simulated_root() is None


def test_another_topology_replaces_an_unused_one(up: Up) -> None:
    first = up("1xT4")
    second = up("2xT4-R580")
    assert second.gpus == 2
    assert not alive(first.pid)
    assert simulator.status() == second


def test_a_file_that_changed_is_another_topology(up: Up) -> None:
    first = up({"gpus": [{"model": "T4"}]})
    assert up({"gpus": [{"model": "T4"}]}) == first
    second = up({"gpus": [{"model": "T4", "count": 2}]})
    assert (second.gpus, alive(first.pid)) == (2, False)


def test_one_in_use_is_not_replaced_unless_forced(up: Up, process: Start) -> None:
    state = up("1xT4")
    one = process(state.root)
    one.start()
    with pytest.raises(DeviceError, match=f"1xT4 is up and in use by process {one.pid()}: end it, or"):
        up("2xT4")
    assert simulator.users() == [one.pid()]
    assert up("1xT4") == state, "the same one is there already, whoever uses it"
    assert one.alloc(1)[0] == SUCCESS
    assert up("2xT4", force=True).gpus == 2


def test_a_failed_up_leaves_nothing(run_dir: Path, native: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        simulator.up("5xT4", native=str(native))
    with pytest.raises(DeviceError, match="is not built"):
        simulator.up("1xT4", native=str(tmp_path / "nowhere"))
    broken = tmp_path / "broken"
    shutil.copytree(native, broken)
    (broken / "xpu-sim-driver").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(DeviceError, match="did not start"):
        simulator.up("1xT4", native=str(broken))
    assert os.listdir(run_dir) == ["sim.lock"]


def test_the_next_up_clears_a_killed_ones_leftovers(up: Up, run_dir: Path) -> None:
    state = up("1xT4")
    os.kill(state.pid, signal.SIGKILL)
    (run_dir / "sim/state.json").unlink()
    (run_dir / "sim/root/etc/ld.so.cache").write_bytes(b"half")
    assert up("2xT4").gpus == 2


def test_a_pid_file_that_names_another_process_does_no_harm(up: Up, run_dir: Path) -> None:
    state = up("1xT4")
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        os.kill(state.pid, signal.SIGKILL)
        (run_dir / "sim/pid").write_text(f"{bystander.pid} 1\n")
        simulator.down()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_several_ups_at_once_bring_up_one(up: Up) -> None:
    states: list[SimState] = []
    threads = [threading.Thread(target=lambda: states.append(up("2xT4"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(states) == 6
    assert len(set(states)) == 1


@pytest.fixture(params=["nodev", "noexec", "nodev,noexec,nosuid"])
def restricted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder on a file system that forbids device nodes or programs, as /run often is."""
    folder = Path(tempfile.mkdtemp(prefix="xpu-restricted-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{request.param},mode=755", "t", folder], check=True)
    monkeypatch.setenv("XPU_RUN_DIR", str(folder))
    yield folder
    simulator.down()
    subprocess.run(["umount", folder], check=True)
    folder.rmdir()


def test_where_nodes_or_programs_are_forbidden_the_root_is_a_file_system_of_its_own(
    native: Path, restricted: Path
) -> None:
    state = simulator.up("1xT4", native=str(native))
    with pytest.raises(OSError, match="No such device or address"):
        os.open(f"{state.root}/dev/nvidia0", os.O_RDWR)
    subprocess.run([f"{state.root}/usr/bin/nvidia-smi"], check=True, capture_output=True)
    assert simulator.up("2xT4", native=str(native)).gpus == 2
    assert simulator.down() is True
    assert str(restricted / "sim") not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(restricted) == ["sim.lock"]


def test_a_run_folder_with_a_very_long_path_works(
    native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: Start
) -> None:
    folder = tmp_path / ("x" * 150) / ("y" * 150)
    monkeypatch.setenv("XPU_RUN_DIR", str(folder))
    state = simulator.up("1xT4", native=str(native))
    try:
        assert process(state.root).start() == SUCCESS
        assert simulator.users() != []
    finally:
        simulator.down()


def test_the_driver_keeps_no_descriptor_of_the_process_that_started_it(up: Up) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    state = up("1xT4")
    os.close(writer)
    assert os.read(reader, 1) == b"", "nobody else holds the pipe open"
    os.close(reader)
    assert os.readlink(f"/proc/{state.pid}/cwd") == "/"
    assert os.getsid(state.pid) != os.getsid(0)


def test_the_commands_report_their_work_and_the_next_step(
    run_dir: Path, native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xpu_runtime import paths

    library = run_dir.parent / "native"
    library.mkdir()
    (library / "sim").symlink_to(build("sim"))
    monkeypatch.setattr(paths, "NATIVE_DIR", str(library))

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli.sim, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "Up: nothing" in run("list")
    output = run("up", "--topology", "2xT4").splitlines()
    assert "2xT4 is up: 2 devices with driver 615.36.02 (CUDA 13.4), driver root" in output[0]
    assert "xpu devices" in output[-1]
    assert "is already up" in run("up", "--topology", "2xT4")
    assert "Up: 2xT4" in run("list")
    assert "Driver branches: R470, R535, " in run("list")
    assert '"topology": "2xT4"' in run("list", "--json")
    assert "2xT4 is down" in run("down")
    assert run("down") == "nothing is up\n"
    for command in ("up", "down", "list"):
        assert "Example:" in run(command, "--help")
