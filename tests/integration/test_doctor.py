"""`xpu doctor`: each fault is really made, is named with what to do, and is gone when that was done."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from binascii import crc32
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.amd import GIB, Tree

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
    node.configure("")
    for check in ("configuration", "low-level runtime", "limits"):
        assert_fine(node, check)


def test_limits_that_nothing_can_hold_are_told_unless_the_configuration_allows_them(node: Node) -> None:
    root = node.folder / "root"
    Tree(root).gpu(64 * GIB)
    node.configure(f"driver: {{root: {root}}}\n")
    for kind in ("memory", "cores"):
        todo = found(node, "warning", "limits", f"nothing on this node holds a limit of {kind}")["todo"]
        assert f"allow_unenforced: [{kind}]" in todo
    node.configure(f"driver: {{root: {root}}}\nenforcement: {{allow_unenforced: [memory, cores]}}\n")
    assert_fine(node, "limits")


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
    newer[8:16] = (3).to_bytes(4, "little") + bytes(4)
    newer[12:16] = crc32(newer[:2048]).to_bytes(4, "little")
    page.write_bytes(newer)
    found(node, "warning", "containers", "has pages of ABI 3, and this version's are 2")
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


SECRET = "Hunter2"
_SYSLOG = f"""\
Nov 22 17:00:01 host CRON[7]: (root) CMD (podman --runtime /usr/bin/xpu-container-runtime run -p{SECRET})
Nov 22 17:00:02 host systemd[1]: Started r1 - podman --runtime xpu-container-runtime -e db_pwd={SECRET}.
Nov 22 17:00:03 host logger: Nov 22 17:00:03 host xpu-container-runtime[1]: xpu: {SECRET}
Nov 22 17:00:04 host xpu-container-runtime[8]: xpu: it is full
2026-11-22T17:00:05.123456+00:00 host xpu-container-runtime[9]: xpu: refused: A_PW=a,{SECRET} PW='a {SECRET}'
"""
_DMESG = f"""\
[    0.000000] Command line: nvidia-drm.modeset=1 netroot=iscsi:bob:{SECRET}@192.0.2.1::3260::x
[    9.1] audit: type=1309 audit(1.2:3): argc=2 a0="nvidia-smi" a1="{SECRET}"
[    9.2] systemd[1]: Started nvidia-persistenced {SECRET}
[    9.3] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  615.36.02
[   10.4] NVRM: Xid (PCI:0000:01:00): 31, pid=7, name={SECRET}, Ch 00000010
[   10.5] nvidia 0000:01:00.0: enabling device
"""
_DAEMON = {
    "exec-opts": [f"pw={SECRET}"],
    SECRET: 1,
    "labels": [SECRET],
    "runtimes": {SECRET: {"path": "/usr/bin/crun", "runtimeArgs": [SECRET]}},
}
_CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".registry.configs."u:{SECRET}@reg".auth]
username = "{SECRET}"
[plugins."io.containerd.grpc.v1.cri".registry.configs."u:{SECRET}@reg".tls]
"""


def programs(node: Node, **texts: str) -> None:
    """Puts programs that print these texts in front of the machine's."""
    folder = node.folder / "programs"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
        (folder / name).write_text(f"#!/bin/sh\ncat {folder}/{name}.txt\n")
        (folder / name).chmod(0o755)
    node.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def contents(file: Path) -> dict[str, str]:
    """The texts of a bug report by their names."""
    found = {}
    with tarfile.open(file) as archive:
        for entry in archive:
            member = archive.extractfile(entry)
            assert member is not None
            found[entry.name.partition("/")[2]] = member.read().decode()
    return found


@pytest.mark.parametrize("broken", [False, True])
def test_a_bug_report_has_no_secret_of_other_programs(node: Node, tmp_path: Path, broken: bool) -> None:
    programs(node, dmesg=_DMESG, journalctl="")
    there = node.folder / "there"
    there.mkdir()
    (there / "syslog").write_text(_SYSLOG)
    (there / "daemon.json").write_text(f'{{"{SECRET}": 1, "{SECRET}": 2}}' if broken else json.dumps(_DAEMON))
    again = f'[plugins."{SECRET}"]\n[plugins."{SECRET}"]\n' if broken else ""
    (there / "config.toml").write_text(_CONTAINERD + again)
    script = ""
    for folder, name in (("log", "syslog"), ("docker", "daemon.json"), ("containerd", "config.toml")):
        place = f"/var/{folder}" if folder == "log" else f"/etc/{folder}"
        script += f"mkdir -p {place}; mount -t tmpfs none {place}; cp {there}/{name} {place}/\n"
    file = tmp_path / "report.tar.gz"
    with node.own_mounts(script):
        node.xpu("doctor", "--bundle", file)
    parts = contents(file)
    assert [name for name, text in parts.items() if SECRET in name + text] == []
    assert not any(name.startswith("not-collected/") for name in parts)
    assert [line.split()[-2:] for line in parts["log.txt"].splitlines()] == [
        ["is", "full"],
        ["PW=[left", "out]"],
    ]
    assert parts["kernel.txt"].count("\n") == 3
    assert "Xid (PCI:0000:01:00): 31" in parts["kernel.txt"]
    if broken:
        texts = [each["text"] for each in json.loads(parts["doctor.json"])["findings"]]
        assert any("/etc/docker/daemon.json:1:" in text for text in texts)
    else:
        daemon = json.loads(parts["engines/docker/etc-docker-daemon.json.json"])
        assert daemon["runtimes"] == {"[left out]": {"path": "/usr/bin/crun", "runtimeArgs": ["[left out]"]}}


_ENGINE = """
import socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print(flush=True)
while True:
    connection, _ = server.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
    for byte in sys.argv[2].encode() if sys.argv[2] else iter(lambda: 32, None):
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            break
        if not sys.argv[2]:
            time.sleep(0.2)
    connection.close()
"""


@contextmanager
def engine(node: Node, name: str, answer: str) -> Iterator[Path]:
    """A dockerd that is root's and says what it likes, byte by byte without an end where that is nothing;
    its file."""
    program, file = node.folder / "dockerd", node.folder / f"{name}.json"
    if not program.exists():
        shutil.copy(os.path.realpath(sys.executable), program)
    file.write_text('{"runtimes": {"xpu": {"path": "/no/\\ud800\\u001b[31m"}}}')
    socket = node.folder / f"{name}.socket"
    words: list[str | Path] = [
        program,
        "-I",
        "-c",
        _ENGINE,
        socket,
        answer,
        f"--config-file={file}",
        f"--host=unix://{socket}",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield file
        finally:
            process.kill()


def test_what_an_engine_says_of_itself_is_printed_as_text_and_the_slow_one_delays_none(node: Node) -> None:
    runtimes = {"xpu": {"path": "/no/\ud800\x1b[31m"}}
    says = json.dumps({"ServerVersion": "28 \ud800\x1b]0;x\x07", "Runtimes": runtimes})
    with engine(node, "quick", says) as file:
        with engine(node, "slow", "") as slow:
            told = [each for each in examine(node)[0] if each["check"] == "docker"]
        assert sum(str(slow) in each["text"] or "slow.socket" in each["text"] for each in told) >= 2
        assert any("slow.socket: it did not end" in each["text"] for each in told)
        (fine,) = [each for each in told if f"has read {file}" in each["text"]]
        assert "28 ??]0;x? has read" in fine["text"]
        node.environ["LC_ALL"] = "C"
        done = node.xpu("doctor", check=False)
        assert done.stderr == ""
        assert f"28 ??]0;x? has read {file}" in done.stdout
        assert done.stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "fault", ["mkdir {0}; touch {0}/x", "mkfifo {0}", "truncate -s 3G {0}", "head -c 3000 /dev/urandom > {0}"]
)
def test_what_is_no_cache_is_told_to_be_removed_and_then_all_is_well(node: Node, fault: str) -> None:
    node.sim("1xT4")
    node.configure("mode: auto\n")
    os.utime(node.config, (1, 1))  # one that has just changed is not compiled yet
    node.xpu("devices")
    names = ["inventory.json", "config.json", "runtimes.json"]
    if (
        "urandom" not in fault
    ):  # it is no JSON, and one of another content is renewed like one of another version
        names.append("launcher.conf")
    for name in names:
        path = node.run_dir / name
        subprocess.run(f"rm -rf {path}; {fault.format(path)}", shell=True, check=True)
    findings = [each for each in examine(node)[0] if each["check"] == "caches"]
    assert {each["text"].split()[0] for each in findings} == {str(node.run_dir / name) for name in names}
    for each in findings:
        assert each["state"] == "warning"
        subprocess.run(each["todo"].partition("(")[2].partition(")")[0], shell=True, check=True)
    assert_fine(node, "caches")


def test_an_installation_that_others_can_change_or_that_cannot_start_is_named(node: Node, copy: Path) -> None:
    node.sim("1xT4")
    lib = copy / "lib/xpu-container-runtime"
    bundle, module = lib / "python/start.bundle", lib / "python/xpu_runtime/start/hook_mode.py"
    for fault in (
        f"chmod 666 {bundle}",
        f"chmod 666 {lib}/shim.py",
        f"chmod 777 {lib}/python",
        f"chown 65534 {module}",
        f"chmod 775 {node.runtime}",
    ):
        subprocess.run(fault.split(), check=True)
    finding = found(node, "problem", "installation", "5 installed files can be changed by others than root")
    assert finding["text"].endswith(" and 1 more")
    subprocess.run(finding["todo"].rpartition(";")[0], shell=True, check=True)
    assert_fine(node, "installation")

    whole = bundle.read_bytes()
    bundle.write_bytes(whole[: len(whole) // 2])
    todo = found(node, "warning", "caches", f"{bundle} is damaged")["todo"]
    subprocess.run(todo.split(), check=True)
    assert_fine(node, "caches")
    bundle.unlink()
    bundle.mkdir()
    todo = found(node, "warning", "caches", f"{bundle} cannot be read (not a regular file)")["todo"]
    subprocess.run(todo.partition("(")[2].partition(")")[0], shell=True, check=True)
    subprocess.run(todo.rpartition("then ")[2].split(), check=True)
    assert_fine(node, "caches")

    library = lib / "native/interposer/nvidia/libcuda.so.1"
    aside = library.rename(library.with_name("aside"))
    found(node, "problem", "installation", f"{library} is missing")
    aside.rename(library)
    text = module.read_text()
    module.write_text(f"{text}\ndef (:\n")
    found(node, "problem", "installation", "cannot be imported: xpu_runtime.start.hook_mode (SyntaxError")
    module.unlink()
    found(node, "problem", "installation", "cannot be imported: xpu_runtime.start.hook_mode (ModuleNotFound")
    found(node, "problem", "caches", "has older code than is installed of xpu_runtime.start.hook_mode")
    module.write_text(text)
    assert_fine(node, "installation")


@pytest.mark.usefixtures("copy")
def test_a_bug_report_that_cannot_be_written_is_told_with_the_name_asked_for(node: Node) -> None:
    assert '"" names no file' in node.xpu("doctor", "--bundle", "", check=False).stderr
    node.folder.chmod(0o755)
    node.view = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    try:
        done = node.xpu("doctor", "--bundle", node.folder / "a", check=False)
    finally:
        node.view = []
    assert done.returncode == 1
    assert done.stderr == f"xpu: {node.folder}/a: Permission denied: run it as root\n"
