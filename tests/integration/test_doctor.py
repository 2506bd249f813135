"""`xpu doctor`: each fault is really made, is named with what to do, and is gone when that was done."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from binascii import crc32
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Node

Bundles = Callable[..., Path]
Finding = dict[str, Any]


def examine(node: Node) -> tuple[list[Finding], int]:
    """The findings, and the exit status."""
    done = node.xpu("doctor", "--json", check=False)
    assert done.stderr == ""
    return json.loads(done.stdout)["findings"], done.returncode


def found(node: Node, state: str, check: str, text: str) -> Finding:
    """The one finding of that kind whose text has `text` in it; the exit status must be of its kind."""
    findings, status = examine(node)
    fits = [
        each for each in findings if (each["state"], each["check"]) == (state, check) and text in each["text"]
    ]
    assert len(fits) == 1, findings
    if state == "problem":
        assert status == 1
    assert fits[0]["todo"]
    return fits[0]


def assert_fine(node: Node, check: str) -> None:
    findings, status = examine(node)
    assert [each for each in findings if each["check"] == check and each["state"] != "ok"] == []
    assert status == any(each["state"] == "problem" for each in findings)


def root_of(node: Node) -> Path:
    return node.run_dir / "sim" / "root"


def without_engines(findings: list[Finding]) -> list[Finding]:
    """Engines of tests that run at the same time come and go."""
    return [each for each in findings if each["check"] not in ("docker", "containerd")]


def test_a_node_in_order_has_no_problem_and_says_what_it_has(node: Node) -> None:
    node.sim("2xT4")
    told = json.loads(node.xpu("doctor", "--json", check=False).stdout)
    assert told["version"]
    assert told["root"] is True
    findings = without_engines(told["findings"])
    assert {each["state"] for each in findings} <= {"ok", "warning"}
    texts: dict[str, str] = {}
    for each in findings:
        assert set(each) == {"check", "state", "text", "todo"}
        texts.setdefault(each["check"], each["text"])
    assert "simulated" in texts["driver"]
    assert "615." in texts["driver"]
    assert "GPU 0, 1: memory is held by driver (hard)" in texts["limits"]
    assert "runc version" in texts["low-level runtime"]
    assert {"cgroups", "seccomp", "selinux", "apparmor", "ledger", "nodes", "caches"} <= set(texts)
    *lines, last = node.xpu("doctor", check=False).stdout.splitlines()
    shown = [line for line in lines if not line[9:].startswith(("docker:", "containerd:"))]
    assert sorted(line[9:].partition(":")[0] for line in shown) == sorted(each["check"] for each in findings)
    assert " problem(s), " in last
    # It has looked only: neither ledger nor caches are there.
    assert sorted(os.listdir(node.run_dir)) == ["sim", "sim.lock"]


def test_a_node_without_a_driver_says_so_until_there_is_one(node: Node) -> None:
    empty = node.folder / "empty"
    empty.mkdir()
    node.configure(f"driver: {{root: {empty}}}\n")
    assert "xpu sim up" in found(node, "problem", "driver", f"is not in {empty}/etc/ld.so.cache")["todo"]
    lines = node.xpu("doctor", check=False).stdout.splitlines()
    assert any(line.startswith("problem  driver: no NVIDIA driver found") for line in lines)
    node.configure("driver: {root: auto}\n")
    node.sim("1xT4")
    assert_fine(node, "driver")


def test_a_part_of_the_driver_that_is_missing_is_named(node: Node) -> None:
    node.sim("1xT4")
    root = root_of(node)
    version, devices = root / "proc/driver/nvidia/version", root / "proc/devices"
    text = version.read_text()
    version.unlink()
    version.write_text(text.replace("615.36.02", "610.11.01"))
    todo = found(node, "problem", "driver", "the loaded kernel module is 610.11.01, and ")["todo"]
    assert "reboot" in todo
    version.unlink()
    version.write_text(text)
    assert_fine(node, "driver")

    text, uvm = devices.read_text(), root / "dev/nvidia-uvm"
    device = uvm.stat().st_rdev
    devices.unlink()
    devices.write_text("".join(line for line in text.splitlines(True) if "nvidia-uvm" not in line))
    uvm.unlink()
    assert (
        "modprobe nvidia-uvm" in found(node, "problem", "driver", "CUDA does not start in containers")["todo"]
    )
    devices.write_text(text)
    os.mknod(uvm, 0o20666, device)

    (library,) = root.rglob("libcuda.so.615*")
    aside = library.rename(library.with_name("aside"))
    assert "libcuda1" in found(node, "problem", "driver", "no container can compute")["todo"]
    aside.rename(library)
    assert_fine(node, "driver")

    version.unlink()
    os.kill(json.loads((node.run_dir / "sim/state.json").read_text())["pid"], signal.SIGKILL)
    assert "modprobe nvidia" in found(node, "problem", "driver", "nvidia is not loaded")["todo"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("rm {0}", "{0} is missing"),
        ("rm {0}; touch {0}", "{0} is no character device"),
        ("chmod 600 {0}", "{0} has mode 0600"),
    ],
)
def test_a_device_node_that_is_wrong_is_named_and_what_is_told_mends_it(
    node: Node, fault: str, says: str
) -> None:
    node.sim("1xT4")
    path = root_of(node) / "dev/nvidia0"
    before = path.stat()
    subprocess.run(fault.format(path), shell=True, check=True)
    state = "warning" if "mode" in says else "problem"
    todo = found(node, state, "nodes", says.format(path))["todo"]
    subprocess.run(todo.partition(" (")[0].partition(",")[0], shell=True, check=True)
    assert (path.stat().st_rdev, path.stat().st_mode) == (before.st_rdev, before.st_mode)
    assert_fine(node, "nodes")


def test_a_configuration_that_is_wrong_is_named_with_its_line(node: Node) -> None:
    node.sim("1xT4")
    node.configure("mode: fast\n")
    assert "xpu config check" in found(node, "problem", "configuration", f"{node.config}:1:1: mode")["todo"]
    node.configure("policy: {devices: [7]}\n")
    assert "xpu devices" in found(node, "problem", "configuration", "7 is not a device of this node")["todo"]
    node.configure("low_level_runtimes: [/usr/bin/no-such-runtime]\n")
    assert "install one" in found(node, "problem", "low-level runtime", "no-such-runtime")["todo"]
    node.configure("enforcement: {allow_unenforced: []}\n")
    todo = found(node, "warning", "limits", "nothing on this node holds a limit of cores")["todo"]
    assert "allow_unenforced: [cores]" in todo
    node.configure("enforcement: {allow_unenforced: [cores]}\n")
    for check in ("configuration", "low-level runtime", "limits"):
        assert_fine(node, check)


def test_why_nothing_stronger_holds_a_limit_is_told(node: Node) -> None:
    node.sim("1xT4-R580")
    (memory,) = [each for each in examine(node)[0] if "memory is held" in each["text"]]
    assert "held by library (soft) (not driver: driver 580" in memory["text"]
    assert "R615 or newer can" in memory["text"]
    assert memory["state"] == "ok"


def test_a_ledger_that_is_damaged_or_of_another_version_is_named(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    path = node.run_dir / "ledger.db"
    container = node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    assert_fine(node, "ledger")

    whole = path.read_bytes()
    page = 4096
    path.write_bytes(whole[:page] + b"\xff" * page + whole[2 * page :])
    todo = found(node, "problem", "ledger", f"the ledger {path} is damaged")["todo"]
    assert todo.startswith("remove the file")
    path.unlink()
    assert [each["container_id"] for each in node.json("ps")] == [container]
    assert_fine(node, "ledger")

    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET version = version + 1")
    db.close()
    todo = found(node, "problem", "ledger", "written by another version of this runtime")["todo"]
    assert "install that version again" in todo
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET version = version - 1")
    db.close()
    assert_fine(node, "ledger")

    # Who asks changes nothing, also where the next start would make it anew.
    node.remove(container)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET version = version + 1")
    db.close()
    other = path.read_bytes()
    found(node, "problem", "ledger", "written by another version of this runtime")
    assert path.read_bytes() == other


def test_a_ledger_that_is_locked_is_told_with_the_process_that_locks_it(node: Node) -> None:
    node.sim("1xT4")
    node.xpu("ps")
    with (node.run_dir / "ledger.db.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finding = found(node, "problem", "ledger", f"process {os.getpid()}")
    assert f"kill -9 {os.getpid()}" in finding["todo"]
    assert_fine(node, "ledger")


def test_what_dead_containers_hold_is_told_until_xpu_gc(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    os.kill(node.grants()[0].pid, signal.SIGKILL)
    finding = found(node, "warning", "ledger", f"1 grant of ended containers: container {container[:12]}")
    node.xpu(*finding["todo"].partition(" (")[0].split()[1:])
    assert_fine(node, "ledger")


def test_a_slice_that_the_ledger_does_not_have_is_told(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    with sqlite3.connect(node.run_dir / "ledger.db") as db:
        db.execute("DELETE FROM slices")
        db.execute("DELETE FROM grants")
    db.close()
    finding = found(node, "problem", "ledger", "runs with a slice that the ledger does not have")
    assert container[:12] in finding["text"]
    node.remove(container)
    assert_fine(node, "ledger")


def test_a_container_with_pages_of_another_version_or_without_any_is_told(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4-R580")
    container = node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    assert_fine(node, "containers")
    (page,) = (node.run_dir / "slices").glob("*/quota")
    whole = page.read_bytes()
    newer = bytearray(whole)
    newer[8:16] = (2).to_bytes(4, "little") + bytes(4)
    newer[12:16] = crc32(newer[:2048]).to_bytes(4, "little")
    page.write_bytes(newer)
    found(node, "warning", "containers", "has pages of ABI 2, and this version's are 1")
    page.write_bytes(whole[:2000] + b"damage" + whole[2006:])
    found(node, "problem", "containers", "its quota page is damaged")
    page.unlink()
    todo = found(node, "problem", "containers", f"the quota page in {page.parent} cannot be read")["todo"]
    assert todo == "start the container again"
    node.remove(container)
    node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    assert_fine(node, "containers")


def test_a_device_that_is_gone_is_told_with_the_container_that_has_it(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    node.xpu("sim", "down")
    node.sim("1xT4-R580")
    with sqlite3.connect(node.run_dir / "ledger.db") as db:
        db.execute("UPDATE slices SET device_uuid = 'GPU-00000000-0000-0000-0000-000000000000'")
    db.close()
    found(node, "problem", "containers", f"container {container[:12]} has a slice of GPU-00000000")


def test_a_cache_that_is_wrong_is_named_and_what_is_told_mends_it(node: Node) -> None:
    node.sim("1xT4")
    node.configure("mode: auto\n")
    node.xpu("devices")
    assert_fine(node, "caches")

    kept = node.run_dir / "inventory.json"
    kept.write_text(kept.read_text().replace("Tesla T4", "Tesla P4"))
    todo = found(node, "problem", "caches", f"{kept} has other devices than the driver tells now")["todo"]
    node.xpu(*todo.partition(" (")[0].split()[1:])
    assert_fine(node, "caches")

    node.configure("mode: hook\n")
    os.utime(node.config, (1, 1))  # one that has just changed is not compiled yet
    todo = found(node, "warning", "caches", f"launcher.conf is of another {node.config}")["todo"]
    node.xpu(*todo.partition(" (")[0].split()[1:])
    assert_fine(node, "caches")

    (node.run_dir / "launcher.conf").chmod(0o666)
    todo = found(node, "warning", "caches", "can be written by others than root")["todo"]
    subprocess.run(todo.partition(";")[0], shell=True, check=True)
    assert_fine(node, "caches")


@pytest.fixture
def copy(node: Node) -> Path:
    """An installation of the test's own, which the node uses."""
    prefix = node.folder / "prefix"
    shutil.copytree(node.prefix, prefix, symlinks=True)
    node.use(prefix)
    return prefix


def test_an_upgrade_leaves_running_containers_their_libraries_and_that_is_told(
    node: Node, copy: Path, bundles: Bundles
) -> None:
    node.sim("1xT4-R580")
    node.start(bundles("XPU_MEM=4G", args=["sleep", "1000"]))
    for library in (copy / "lib/xpu-container-runtime/native/interposer/nvidia").iterdir():
        shutil.copy(library, library.with_suffix(".new"))
        library.with_suffix(".new").rename(library)
    texts = [each["text"] for each in examine(node)[0] if each["check"] == "containers"]
    (text,) = texts
    assert text.endswith("1 of them with our libraries of an earlier installation, until they end")


def test_an_installation_that_is_incomplete_or_old_is_named(node: Node, copy: Path) -> None:
    node.sim("1xT4")
    lib = copy / "lib/xpu-container-runtime"
    bundle, module = lib / "python/start.bundle", lib / "python/xpu_runtime/shim.py"

    whole = bundle.read_bytes()
    bundle.write_bytes(whole[:8] + b"\xff" + whole[9:])
    found(node, "warning", "caches", f"{bundle} is damaged")
    loader = lib / "python/xpu_bundle.py"
    installed = loader.read_text()
    loader.write_text(installed.replace('BUILD = "', 'BUILD = "1'))  # unpacked, and not configured yet
    found(node, "warning", "caches", "is damaged, or of another version than is installed")
    loader.write_text(installed)
    bundle.write_bytes(b"\xff" + whole[1:])
    todo = found(node, "warning", "caches", "was made by another Python")["todo"]
    subprocess.run(todo.split(), check=True)
    assert_fine(node, "caches")
    module.write_text(module.read_text().replace("def main(", "def main_(", 1))
    found(node, "problem", "caches", "has older code than is installed of xpu_runtime.shim")
    bundle.unlink()
    found(node, "warning", "caches", "start.bundle cannot be read (No such file")

    (lib / "shim.py").rename(lib / "aside")
    found(node, "problem", "installation", "shim.py is missing")
    (lib / "aside").rename(lib / "shim.py")
    node.runtime.chmod(0o644)
    found(node, "problem", "installation", f"{node.runtime} is missing or not executable")
    node.runtime.chmod(0o755)
    lines = node.hook.read_text().splitlines(True)
    node.hook.write_text("".join(["#!/usr/bin/python2.7 -IS\n", *lines[1:]]))
    found(node, "problem", "installation", "the hook starts /usr/bin/python2.7, which is missing")
    node.hook.write_text("".join(lines))
    assert_fine(node, "installation")


@pytest.mark.usefixtures("copy")  # a clone may lie in a folder that only root may enter
def test_whoever_is_not_root_is_told_what_could_not_be_looked_at(node: Node) -> None:
    node.sim("1xT4")
    node.xpu("ps")
    node.folder.chmod(0o755)
    node.view = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    try:
        findings, status = examine(node)
    finally:
        node.view = []
    unknown = {each["check"]: each for each in findings if each["state"] == "unknown"}
    assert "run it as root" in unknown["installation"]["todo"]
    assert "root only" in unknown["ledger"]["text"]
    assert any(each["check"] == "low-level runtime" and each["state"] == "ok" for each in findings)
    assert status in (0, 1)


def test_a_check_that_cannot_be_made_stops_no_other(node: Node, copy: Path) -> None:
    node.sim("1xT4")
    areas = copy / "lib/xpu-container-runtime/python/xpu_runtime/doctor/areas"
    head = "ORDER = 1\ndef look(machine):\n    from xpu_runtime import finding\n"
    head += "    yield finding.ok('first', 'seen')\n"
    (areas / "raises.py").write_text(f"{head}    raise LookupError('no such thing')\n")
    (areas / "dies.py").write_text(f"{head}    import os; os.abort()\n")
    (areas / "broken.py").write_text("ORDER = (\n")
    findings = without_engines(examine(node)[0])
    unknown = {each["check"]: each["text"] for each in findings if each["state"] == "unknown"}
    assert "LookupError: no such thing" in unknown.pop("raises")
    assert unknown.pop("dies") == "this check failed: its process died"
    assert "cannot be loaded: SyntaxError" in unknown.pop("broken")
    assert unknown == {}
    assert sum(each["check"] == "first" for each in findings) == 2
    assert any(each["check"] == "limits" for each in findings)
