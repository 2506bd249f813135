"""`xpu doctor`: each fault is really made, is reported with its remedy, and is gone after the remedy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.amd import GIB, Tree

from ..conftest import Bundles, Node
from ..findings import assert_fine, examine, found, without_engines


def root_of(node: Node) -> Path:
    return node.run_dir / "sim" / "root"


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
    assert any(each["text"].startswith("the backend driver: experimental: no card") for each in findings)
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
    assert "xpu sim up" in found(node, "problem", "driver", f"is neither in {empty}/etc/ld.so.cache")["todo"]
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
    os.kill(node.driver_pid, signal.SIGKILL)
    assert "modprobe nvidia" in found(node, "problem", "driver", "nvidia is not loaded")["todo"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("rm {0}", "{0} is missing"),
        ("rm {0}; touch {0}", "{0} is not a character device"),
        ("chmod 600 {0}", "{0} has mode 0600"),
    ],
)
def test_a_wrong_device_node_is_named_and_the_advice_repairs_it(node: Node, fault: str, says: str) -> None:
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


@pytest.mark.usefixtures("copy")  # a clone may be in a folder that only root may enter
def test_without_root_doctor_names_the_checks_that_were_not_possible(node: Node) -> None:
    node.sim("1xT4")
    node.xpu("ps")
    with node.as_user():
        findings, status = examine(node)
    unknown = {each["check"]: each for each in findings if each["state"] == "unknown"}
    assert "run it as root" in unknown["installation"]["todo"]
    assert "root only" in unknown["ledger"]["text"]
    assert any(each["check"] == "low-level runtime" and each["state"] == "ok" for each in findings)
    assert status in (0, 1)


def test_cgroups_in_a_folder_of_root_are_no_internal_error_for_others(node: Node) -> None:
    node.sim("1xT4")
    place = node.folder / "closed/cgroup"
    place.mkdir(parents=True)
    place.parent.chmod(0o700)
    with node.own_mounts(f"mount -t cgroup2 none {place}"), node.as_user():
        findings, _ = examine(node)
    (kernel,) = [each for each in findings if each["check"] == "kernel"]
    assert (
        kernel["text"] == f"this check failed: the cgroups at {place} cannot be looked at: Permission denied"
    )
    assert kernel["todo"] == "do it as root"
    assert [each for each in findings if "internal error" in each["text"]] == []


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
    assert unknown.pop("dies") == "this check failed: its process died (SIGABRT)"
    assert "cannot be loaded: SyntaxError" in unknown.pop("broken")
    assert unknown == {}
    assert sum(each["check"] == "first" for each in findings) == 2
    assert any(each["check"] == "limits" for each in findings)


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
    """A false dockerd of root's with any answer (empty: bytes without an end), and its file."""
    program, file = node.folder / "dockerd", node.folder / f"{name}.json"
    if not program.exists():
        shutil.copy(os.path.realpath(sys.executable), program)
    file.write_text('{"runtimes": {"xpu": {"path": "/no/\\ud800\\u001b[31m"}}}')
    socket = node.folder / f"{name}.socket"
    words: list[str | Path] = [program, "-I", "-c", _ENGINE, socket, answer]
    words += [f"--config-file={file}", f"--host=unix://{socket}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield file
        finally:
            process.kill()


def test_an_engines_answer_is_printed_as_text_and_a_slow_engine_delays_no_other(node: Node) -> None:
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


def test_a_missing_low_level_runtime_is_named_with_its_containers(node: Node, bundles: Bundles) -> None:
    copy = node.folder / "my-runtime"
    shutil.copy("/usr/sbin/runc", copy)
    node.configure(f"low_level_runtimes: [{copy}, runc]\n")
    container = node.start(bundles())
    # It has ended, and its record is there until the next `xpu gc`: no command need reach it.
    assert node.run(bundles(args=["true"])).returncode == 0
    copy.rename(node.folder / "away")
    told = found(node, "problem", "low-level runtime", f"{copy} is gone, and has created 1 container")
    assert container in told["text"]
    done = node.oci("state", container)
    assert f"{copy} has created it, and cannot be started" in done.stderr
    (node.folder / "away").rename(copy)
    assert_fine(node, "low-level runtime")
    node.remove(container)
    copy.unlink()
    assert_fine(node, "low-level runtime")
