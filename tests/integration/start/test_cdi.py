"""A CDI device of ours in a spec, as engines inject it: the same grant, with our runtime in front of runc or
without."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import GIB

from ..conftest import Bundles, Node

Change = Callable[[dict[str, Any]], None]


def injected(node: Node, *names: str) -> Change:
    """Puts these devices into a spec, as the CDI library does (pkg/cdi/container-edits.go: Apply)."""
    path = node.folder / "cdi.json"
    node.xpu("cdi", "generate", "--output", path)
    file = json.loads(path.read_text())
    devices = {each["name"]: each["containerEdits"] for each in file["devices"]}

    def change(spec: dict[str, Any]) -> None:
        for edits in (file["containerEdits"], *(devices[name] for name in names)):
            spec["process"]["env"] += edits.get("env", [])
            for hook in edits.get("hooks", []):
                of_spec = {key: value for key, value in hook.items() if key != "hookName"}
                spec.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(of_spec)

    return change


def test_a_device_gives_a_slice_without_our_runtime(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    info = ["cuda-probe", "info"]
    done = node.run_by_runc(bundles(args=info, change=injected(node, "4g")))
    assert done.stdout == "device 0: 4096 MiB free of 4096 MiB\n", done.stderr
    done = node.run_by_runc(bundles("XPU_MEM=2G", args=info, change=injected(node, "slice")))
    assert done.stdout == "device 0: 2048 MiB free of 2048 MiB\n", done.stderr
    assert node.grants() == []


def test_a_refusal_is_in_the_low_level_runtimes_error(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    done = node.run_by_runc(bundles("XPU_MEM=40G", change=injected(node, "slice")))
    assert "xpu: refused: no device has 40G of memory free" in done.stderr
    done = node.run_by_runc(bundles(change=injected(node, "slice")))
    assert "xpu: nothing says how much yoyoworks.com/xpu=slice is: add XPU_MEM" in done.stderr
    assert node.grants() == []


def test_a_cdi_device_under_our_runtime_is_booked_once(node: Node, bundles: Bundles, any_mode: str) -> None:
    node.sim("2xT4")
    bundle = bundles(args=["sleep", "1000"], change=injected(node, "4g", "8g"))
    container = node.start(bundle)
    # runc calls the hooks in the spec: ours are there once, with the shim's additions.
    for hooks in json.loads((bundle / "config.json").read_text())["hooks"].values():
        assert len(hooks) == 1
    assert [entry["memory_bytes"] for entry in node.json("ps")] == [4 * GIB, 8 * GIB]
    assert [line.split()[1] for line in node.xpu("events").stdout.splitlines()] == ["granted"]
    node.remove(container)
    assert node.grants() == []


def test_a_container_of_our_runtime_may_ask_by_a_device_alone(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    done = node.run(bundles(args=["nvidia-smi", "-L"], change=injected(node, "0")))
    assert done.stdout.startswith("GPU 0: Tesla T4 (UUID: GPU-"), done.stderr


def test_the_file_follows_the_devices(node: Node) -> None:
    assert "4 devices" in node.xpu("cdi", "generate").stdout
    file = node.run_dir / "cdi" / "yoyoworks.com-xpu.yaml"
    assert 'name: "0"' not in file.read_text()
    node.sim("1xT4")
    node.xpu("devices")
    assert 'name: "0"' in file.read_text()
    node.xpu("sim", "down")
    assert 'name: "0"' not in file.read_text()
    node.xpu("sim", "up", "--topology", "2xT4")
    assert 'name: "1"' in file.read_text()
    file.rename(target := node.folder / "behind")
    file.symlink_to(target)
    node.xpu("sim", "down")
    assert file.is_symlink() and 'name: "1"' not in target.read_text()
    node.sim("1xT4")
    target.unlink()
    node.xpu("cdi", "generate")
    assert file.is_symlink() and target.is_file()
    file.write_text(of_others := f"# A copy\n{file.read_text()}")
    done = node.xpu("cdi", "generate", check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"xpu: {file} was not written by `xpu cdi generate`: move it away, then do this again\n"
    )
    node.xpu("devices")
    assert file.read_text() == of_others


@pytest.mark.parametrize("command", [("cdi", "generate"), ("devices",)])
def test_the_file_is_on_the_disk_before_it_has_its_name(node: Node, command: tuple[str, ...]) -> None:
    node.sim("1xT4")
    node.xpu("cdi", "generate")
    (node.run_dir / "inventory.json").unlink()
    file = node.run_dir / "cdi" / "yoyoworks.com-xpu.yaml"
    file.write_text(file.read_text().replace('name: "0"', 'name: "9"'))
    trace = node.folder / "trace"
    calls: list[str | Path] = ["strace", "-f", "-y", "-o", trace, "-e", "trace=fsync,renameat,renameat2"]
    calls += [node.prefix / "bin" / "xpu", *command]
    subprocess.run(calls, env=node.environ, check=True, capture_output=True)
    lines = [line.partition(" ")[2] for line in trace.read_text().splitlines()]
    named = [at for at, line in enumerate(lines) if f'"{file.name}"' in line]
    assert named
    for at in named:
        # A power cut would leave an empty file, which engines refuse and nobody knows for ours.
        assert "fsync(" in lines[at - 1] and f"<{file.parent}/.{file.name}." in lines[at - 1]
        assert "fsync(" in lines[at + 1] and f"<{file.parent}>" in lines[at + 1]


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_file_that_cannot_be_written_anew_is_told_and_refuses_no_container(
    node: Node, bundles: Bundles, copy: Path, system_log: socket.socket, is_broken: bool
) -> None:
    node.sim("1xT4")
    node.xpu("cdi", "generate")
    file = node.run_dir / "cdi" / "yoyoworks.com-xpu.yaml"
    file.write_text(stale := file.read_text().replace('name: "0"', 'name: "9"'))
    (node.run_dir / "inventory.json").unlink()
    if is_broken:  # half an installation
        (copy / "lib/xpu-container-runtime/python/start.bundle").unlink()
        (copy / "lib/xpu-container-runtime/python/xpu_runtime/vendors/cdi_file.py").unlink()
        why = "a part of xpu-container-runtime cannot be started (cannot import name 'cdi_file'"
    else:
        mount = f"mount --bind {file.parent} {file.parent}; mount -o remount,bind,ro {file.parent}"
        subprocess.run([*node.view, "sh", "-ec", mount], check=True)
        why = "Read-only file system; after that is mended: xpu cdi generate"
    done = node.run(bundles("XPU_MEM=4G", args=["nvidia-smi", "-L"]))
    assert done.stdout.startswith("GPU 0: Tesla T4"), done.stderr
    told = system_log.recv(4096).decode()
    assert f"xpu: {file} cannot be written anew for the devices that there are now: {why}" in told
    assert file.read_text() == stale


def test_only_a_file_is_replaced_by_output(node: Node, tmp_path: Path) -> None:
    os.mknod(device := tmp_path / "null.yaml", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    os.mkfifo(fifo := tmp_path / "fifo")
    for path in (device, fifo, tmp_path):
        before = os.lstat(path)
        done = node.xpu("cdi", "generate", "--output", path, check=False)
        assert (done.returncode, done.stderr) == (
            1,
            f"xpu: {path} is not a regular file: give another path; nothing was written\n",
        )
        assert os.path.samestat(before, os.lstat(path))
    # It leads to this test's pipe, which has no path.
    done = node.xpu("cdi", "generate", "--output", "/dev/stdout", check=False)
    assert done.stderr == "xpu: /dev/stdout is not a regular file: give another path; nothing was written\n"
    (loop := tmp_path / "loop").symlink_to("loop")
    done = node.xpu("cdi", "generate", "--output", loop, check=False)
    assert "Too many levels of symbolic links" in done.stderr and loop.is_symlink()
    (target := tmp_path / "file").write_text("before")
    (link := tmp_path / "link.json").symlink_to(target)
    node.xpu("cdi", "generate", "--output", link)
    assert link.is_symlink() and json.loads(target.read_text())["kind"] == "yoyoworks.com/xpu"


def test_an_empty_output_is_the_usual_place(node: Node) -> None:
    file = node.run_dir / "cdi" / "yoyoworks.com-xpu.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("of somebody else")
    assert "was not written by" in node.xpu("cdi", "generate", "--output", "", check=False).stderr
    assert file.read_text() == "of somebody else"


def test_list_shows_the_names_for_engines_and_their_requests(node: Node) -> None:
    node.configure("cdi: {sizes: [{name: half, mem: 50%, cores: 50, count: 2}]}")
    assert node.json("cdi", "list") == [
        {"name": "yoyoworks.com/xpu=slice", "request": {}},
        {
            "name": "yoyoworks.com/xpu=half",
            "request": {"XPU_MEM": "50%", "XPU_CORES": "50", "XPU_COUNT": "2"},
        },
    ]
    table = node.xpu("cdi", "list").stdout.splitlines()
    assert table[1].split() == ["yoyoworks.com/xpu=slice", "-"]
    assert table[2].split() == ["yoyoworks.com/xpu=half", "XPU_MEM=50%", "XPU_CORES=50", "XPU_COUNT=2"]


def test_explain_takes_a_device_as_docker_does(node: Node) -> None:
    node.configure("mode: spec")
    node.sim("2xT4")
    done = node.xpu("explain", "--device", "yoyoworks.com/xpu=4g", "--device", "yoyoworks.com/xpu=8g")
    assert [line.split(" (")[0] for line in done.stdout.splitlines() if "GPU" in line] == [
        "  GPU 0",
        "  GPU 1",
    ]
    stale = f"note: {node.run_dir}/cdi/yoyoworks.com-xpu.yaml, which engines read, is not there or stale: "
    assert stale + "xpu cdi generate" in done.stdout
    assert "hook mode: a CDI device brings our hooks with it" in done.stdout
    node.xpu("cdi", "generate")
    assert node.json("explain", "--device", "yoyoworks.com/xpu=1")["notes"] == [
        "XPU_MEM is not set: all memory of GPU 1 is booked, and no other container gets a slice of it"
    ]
    (file := node.run_dir / "cdi" / "yoyoworks.com-xpu.yaml").unlink()
    file.mkdir()  # no engine can read it
    notes = node.json("explain", "--device", "yoyoworks.com/xpu=1")["notes"]
    assert stale.removeprefix("note: ") in str(notes)
    done = node.xpu("explain", "--device", "yoyoworks.com/xpu=slice", "-e", "XPU_MEM=40G", check=False)
    assert done.returncode == 3
    assert done.stdout.startswith("refused: no device has 40G of memory free (GPU 0, 1: 15G free")
    assert node.grants() == []


def test_explain_names_the_device_that_is_meant(node: Node) -> None:
    node.sim("1xT4")
    for name, meant in {
        "yoyoworks.com/xpu=4G": "4g",
        "8g": "8g",
        "0": "0",
        "slcie": "slice",
        "nvidia.com/gpu=0": "0",
        "yoyoworks.com/xpu=6g": "4g or yoyoworks.com/xpu=8g",
        "1024M": "2g",
        "12GiB": "8g",
        "yoyoworks.com/xpu=50%": "",
    }.items():
        done = node.xpu("explain", "--device", name, check=False)
        assert done.returncode == 2
        question = f"; did you mean yoyoworks.com/xpu={meant}?" if meant else ""
        line = f"there is no CDI device '{name}' of ours: `xpu cdi list` shows them{question}"
        assert done.stderr.endswith(f"Error: {line}\n")
    node.configure("cdi: {sizes: [{name: 4g-half, mem: 4G, cores: 50}, {name: 4g, mem: 4G}]}")
    assert "did you mean yoyoworks.com/xpu=4g?" in node.xpu("explain", "--device", "4g", check=False).stderr
    node.configure("cdi: {sizes: [{name: half, mem: 50%}]}")
    assert "did you mean" not in node.xpu("explain", "--device", "6g", check=False).stderr
    assert (
        "did you mean yoyoworks.com/xpu=half?" in node.xpu("explain", "--device", "hal", check=False).stderr
    )
