"""Broken files and full disks stop only the containers that need them, with one clear line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.sharing_time import Serve

from ..conftest import Bundles, Node
from ..inside import tree
from ..refusals import log_entries, refused
from .workers import workers_are_there


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff{] garbage\n" * 400)


def a_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def a_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def a_loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(64 << 20)


def mend(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)


def commands_still_work(node: Node, container: str) -> None:
    """Those that an engine calls for a container that exists, and its end."""
    assert json.loads(node.oci("state", container).stdout)["status"] == "running"
    assert node.oci("exec", container, "echo", "hello").stdout == "hello\n"
    for words in (["pause"], ["resume"], ["update", "--pids-limit=100"], ["ps"], ["kill"]):
        done = node.oci(*words, container)
        assert done.returncode == 0, done.stderr
    assert node.oci("events", "--stats", container).returncode == 0
    node.remove(container)


BREAKAGES = (garbage, a_folder, a_fifo, a_loop, huge)


def test_a_broken_configuration_stops_new_containers_that_ask_and_nobody_else(
    node: Node, bundles: Bundles
) -> None:
    def a_wrong_key(path: Path) -> None:
        path.write_text("moed: hook\n")

    node.sim("1xT4")
    running = node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    silent, asking = bundles(args=["echo", "hello"]), bundles("XPU_MEM=1G")
    for breakage, form in zip((*BREAKAGES, a_wrong_key), ["text", "json"] * 3, strict=True):
        breakage(node.config)
        done = node.run(silent)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
        assert str(node.config) in refused(node, asking, form=form)
        if breakage is not a_wrong_key:
            mend(node.config)
    commands_still_work(node, running)
    assert node.grants() == []


def test_broken_caches_are_made_anew_or_done_without(node: Node, bundles: Bundles) -> None:
    node.configure("mode: hook")
    node.sim("1xT4")
    running = node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    silent, asking = bundles(args=["echo", "hello"]), bundles("XPU_MEM=1G", args=["nvidia-smi", "-L"])
    caches = [node.run_dir / f for f in ("config.json", "launcher.conf", "inventory.json", "runtimes.json")]
    for breakage in (empty, *BREAKAGES):
        for path in caches:
            assert os.path.lexists(path)
            breakage(path)
        done = node.run(silent)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
        done = node.run(asking)
        assert "Tesla T4" in done.stdout, done.stderr
        for path in caches:
            if path.is_dir():
                path.rmdir()
                path.touch()
    commands_still_work(node, running)
    assert node.grants() == []


def test_a_broken_ledger_stops_new_containers_that_ask_and_nobody_else(
    node: Node, bundles: Bundles, mode: str
) -> None:
    running = node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    ledger = node.run_dir / "ledger.db"
    ledger.rename(node.folder / "kept")
    silent, asking = bundles(args=["echo", "hello"]), bundles("XPU_MEM=1G")
    for breakage, form in zip(BREAKAGES, ["text", "json", "text", "json", "text"], strict=True):
        breakage(ledger)
        done = node.run(silent)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
        assert f"the ledger {ledger}" in refused(node, asking, form=form)
        if breakage is not huge:
            mend(ledger)
    commands_still_work(node, running)
    (node.folder / "kept").rename(ledger)
    node.xpu("gc")
    assert node.grants() == []


def test_a_run_folder_that_is_a_file_stops_only_those_who_ask(
    node: Node, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.sim("1xT4")
    node.configure(f"driver: {{root: {node.run_dir}/sim/root}}")
    monkeypatch.setitem(node.environ, "XPU_RUN_DIR", str(node.config))
    done = node.run(bundles(args=["echo", "hello"]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    told = refused(node, bundles("XPU_MEM=1G"))
    assert str(node.config) in told
    assert "not a directory" in told.lower()


def test_a_hook_or_shim_that_starts_while_we_are_installed_anew_says_so_in_a_line(
    node: Node, bundles: Bundles, copy: Path
) -> None:
    node.sim("1xT4")
    python = copy / "lib/xpu-container-runtime/python"
    shim = copy / "lib/xpu-container-runtime/shim.py"
    python.rename(copy / "aside")
    state = b'{"id": "c", "pid": 1, "bundle": "/", "status": "creating"}'
    todo = "if it is being installed now, start the container again; otherwise install"
    todo += " xpu-container-runtime again\n"
    for words in (
        [str(node.hook), "createRuntime"],
        ["python3", "-I", "-S", str(shim), "runc", "state", "c"],
    ):
        done = subprocess.run(words, env=node.environ, input=state, capture_output=True, timeout=60)
        told = done.stderr.decode()
        assert (done.returncode, told.count("\n")) == (1, 1)
        assert told.startswith("xpu: ")
        assert "cannot be started (No module named 'xpu_bundle'): " in told
        assert told.endswith(todo)
    # Half removed: modules that a stage imports are gone.
    (copy / "aside").rename(python)
    (python / "start.bundle").unlink()
    shutil.rmtree(python / "xpu_runtime/start")
    done = subprocess.run(
        [node.hook, "createRuntime"],
        env=node.environ,
        input=state.replace(b'"/"', f'"{bundles("XPU_MEM=1G")}"'.encode()),
        capture_output=True,
        timeout=60,
    )
    told = done.stderr.decode()
    assert (done.returncode, told.count("\n")) == (1, 1)
    assert told.startswith("xpu: a part of xpu-container-runtime cannot be started (No module named ")
    assert told.endswith(todo)


# A full disk.


@pytest.fixture
def small_disk(node: Node) -> Iterator[Callable[[Path, int], Callable[[], None]]]:
    """`small_disk(folder, kib)` mounts a file system there; the returned function fills it to the brim."""
    mounted: list[Path] = []

    def make(folder: Path, kib: int) -> Callable[[], None]:
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", folder], check=True)
        mounted.append(folder)

        def fill() -> None:
            with (folder / "filler").open("wb", buffering=0) as file:
                for size in (1 << 16, 1 << 12):
                    try:
                        while True:
                            file.write(bytes(size))
                    except OSError:
                        continue

        return fill

    yield make
    node.close_containers()
    node.xpu("sim", "down", check=False)
    for folder in reversed(mounted):
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("used_before", [True, False])
def test_on_a_full_run_folder_nothing_is_booked_and_the_reason_is_told(
    node: Node,
    bundles: Bundles,
    small_disk: Callable[[Path, int], Callable[[], None]],
    any_mode: str,
    used_before: bool,
) -> None:
    fill = small_disk(node.run_dir, 8192)
    node.sim("1xT4")
    if used_before:
        running = node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    fill()
    bundle = bundles("XPU_MEM=1G")
    told = refused(node, bundle)
    assert f"the ledger {node.run_dir}/ledger.db" in told
    assert f"free space on the file system of {node.run_dir}" in told
    assert node.run(bundles(args=["echo", "hello"])).stdout == "hello\n"
    if used_before:
        commands_still_work(node, running)
    (node.run_dir / "filler").unlink()
    node.xpu("gc")
    assert node.grants() == []
    assert node.run(bundle).returncode == 0


def test_a_run_folder_that_is_read_only_is_told_with_the_way_out(
    node: Node, bundles: Bundles, any_mode: str
) -> None:
    node.sim("1xT4")
    assert node.run(bundles("XPU_MEM=1G")).returncode == 0
    subprocess.run(["mount", "--bind", node.run_dir, node.run_dir], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", node.run_dir], check=True)
        assert f"make the file system of {node.run_dir} writable" in refused(node, bundles("XPU_MEM=1G"))
        assert doctor_says(node, "is read-only: no container with a slice can start") == "problem"
    finally:
        subprocess.run(["umount", node.run_dir], check=True)


def test_on_a_full_run_folder_a_container_ends_all_the_same_and_its_slice_is_reaped(
    node: Node,
    bundles: Bundles,
    small_disk: Callable[[Path, int], Callable[[], None]],
    start_agent: Serve,
) -> None:
    fill = small_disk(node.run_dir, 16384)
    node.sim("1xT4")
    start_agent()
    workers_are_there(node)
    container = node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    fill()
    assert doctor_says(node, "no container with a slice can start") == "problem"
    node.remove(container)
    (node.run_dir / "filler").unlink()
    node.xpu("gc")
    assert [each["event"] for each in node.events()] == ["granted", "reaped"]
    assert node.grants() == []


def doctor_says(node: Node, text: str) -> str:
    """The state of the finding that has this text."""
    done = json.loads(node.xpu("doctor", "--json", check=False).stdout)
    (found,) = [each["state"] for each in done["findings"] if text in each["text"]]
    return str(found)


def test_on_a_full_bundle_the_spec_stays_as_it_is_and_nothing_is_booked(
    node: Node, bundles: Bundles, small_disk: Callable[[Path, int], Callable[[], None]], mode: str
) -> None:
    source = bundles(
        "XPU_MEM=1G", change=lambda spec: spec["root"].update(path=str(source_root(node))), args=["true"]
    )
    rootfs = (source / "rootfs").rename(source_root(node))
    bundle = node.folder / "full"
    fill = small_disk(bundle, 64)
    shutil.copy(source / "config.json", bundle)
    fill()
    before, below = (bundle / "config.json").read_bytes(), tree(rootfs)
    log = node.folder / "log"
    done = node.oci("--log", log, "create", "--bundle", bundle, f"{node.folder.name}-full")
    assert done.returncode == 1
    (entry,) = log_entries(log, "text")
    assert entry["msg"] in done.stderr
    assert f"{bundle}/config.json: No space left on device" in entry["msg"]
    assert (bundle / "config.json").read_bytes() == before
    assert sorted(path.name for path in bundle.iterdir()) == ["config.json", "filler"]
    assert tree(rootfs) == below
    assert node.grants() == []


def source_root(node: Node) -> Path:
    return node.folder / "elsewhere"
