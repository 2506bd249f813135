"""`xpu doctor` on the ledger, pages and caches: each fault is really made, named, and gone after the
advice."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from binascii import crc32

import pytest

from ..conftest import SLEEP, Bundles, Node
from ..findings import assert_fine, examine, found


def test_a_ledger_that_is_damaged_or_of_another_version_is_named(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    path = node.run_dir / "ledger.db"
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    assert_fine(node, "ledger")

    whole = path.read_bytes()
    page = 4096
    path.write_bytes(whole[:page] + b"\xff" * page + whole[2 * page :])
    todo = found(node, "problem", "ledger", f"the ledger {path} is damaged")["todo"]
    assert todo.startswith("remove the file")
    path.unlink()
    assert [each["container_id"] for each in node.json("ps")] == [container]
    assert_fine(node, "ledger")

    node.change_ledger("UPDATE meta SET version = version + 1")
    todo = found(node, "problem", "ledger", "written by another version of this runtime")["todo"]
    assert "install that version again" in todo
    node.change_ledger("UPDATE meta SET version = version - 1")
    assert_fine(node, "ledger")

    # doctor changes nothing, even if the next start would make it anew.
    node.remove(container)
    node.change_ledger("UPDATE meta SET version = version + 1")
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


def test_slices_of_dead_containers_are_reported_until_xpu_gc(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    os.kill(node.grants()[0].pid, signal.SIGKILL)
    finding = found(node, "warning", "ledger", f"1 grant of ended containers: container {container[:12]}")
    node.xpu(*finding["todo"].partition(" (")[0].split()[1:])
    assert_fine(node, "ledger")


def test_a_slice_that_the_ledger_does_not_have_is_told(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    node.change_ledger("DELETE FROM slices")
    node.change_ledger("DELETE FROM grants")
    finding = found(node, "problem", "ledger", "runs with a slice that the ledger does not have")
    assert container[:12] in finding["text"]
    node.remove(container)
    assert_fine(node, "ledger")


def test_a_container_with_pages_of_another_version_or_without_any_is_told(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4-R580")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
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
    node.start(bundles("XPU_MEM=4G", args=SLEEP))
    assert_fine(node, "containers")


def test_a_device_that_is_gone_is_told_with_the_container_that_has_it(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    node.xpu("sim", "down")
    node.sim("1xT4-R580")
    node.change_ledger("UPDATE slices SET device_uuid = 'GPU-00000000-0000-0000-0000-000000000000'")
    found(node, "problem", "containers", f"container {container[:12]} has a slice of GPU-00000000")


def test_a_wrong_cache_is_named_and_the_advice_repairs_it(node: Node) -> None:
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
    todo = found(node, "warning", "caches", f"launcher.conf is of an earlier {node.config}")["todo"]
    node.xpu(*todo.partition(" (")[0].split()[1:])
    assert_fine(node, "caches")

    other = node.run_dir / "other.yaml"
    other.write_text("mode: hook\n")
    os.utime(other, (1, 1))
    words = [str(node.prefix / "bin" / "xpu"), "explain", "-e", "XPU_MEM=1G"]
    subprocess.run(words, env={**node.environ, "XPU_CONFIG": str(other)}, check=True, capture_output=True)
    todo = found(node, "warning", "caches", f"launcher.conf is of {other}, not of {node.config}")["todo"]
    subprocess.run(todo.partition(";")[0], shell=True, check=True)
    node.xpu("devices")
    assert_fine(node, "caches")

    (node.run_dir / "launcher.conf").chmod(0o666)
    todo = found(node, "warning", "caches", "users other than root can write to")["todo"]
    subprocess.run(todo.partition(";")[0], shell=True, check=True)
    assert_fine(node, "caches")


@pytest.mark.parametrize(
    "fault", ["mkdir {0}; touch {0}/x", "mkfifo {0}", "truncate -s 3G {0}", "head -c 3000 /dev/urandom > {0}"]
)
def test_something_in_the_caches_place_is_named_and_removing_it_helps(node: Node, fault: str) -> None:
    node.sim("1xT4")
    node.configure("mode: auto\n")
    os.utime(node.config, (1, 1))  # one that has just changed is not compiled yet
    node.xpu("devices")
    names = ["inventory.json", "config.json", "runtimes.json"]
    if "urandom" not in fault:  # launcher.conf is no JSON: another content is renewed like another version
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


def test_a_slice_of_another_ledger_on_the_same_device_is_told(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    # The root that a configuration names counts as a real driver's.
    node.configure(f"driver: {{root: {node.run_dir}/sim/root}}")
    one, other = node.environ["XPU_RUN_DIR"], str(node.folder / "other")
    container = node.start(bundles("XPU_MEM=10G", args=SLEEP))
    assert_fine(node, "ledger")
    node.environ["XPU_RUN_DIR"] = other
    text = f"the ledger in {one} has granted slices of GPU 0 (container {container[:12]})"
    assert "one XPU_RUN_DIR" in found(node, "problem", "ledger", text)["todo"]
    # The simulated driver belongs to the first run folder.
    node.environ["XPU_RUN_DIR"] = one
    node.remove(container)
    node.environ["XPU_RUN_DIR"] = other
    assert [each for each in examine(node)[0] if f"the ledger in {one} " in each["text"]] == []
