"""Doctor's findings about CDI: our file, docker's switch, and files that give devices past the ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.inventories import node, nvidia
from xpu_runtime import paths
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.doctor.areas import cdi, docker
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.finding import OK, PROBLEM, UNKNOWN, WARNING
from xpu_runtime.observe.engine import Process
from xpu_runtime.vendors import cdi_file as content
from xpu_runtime.vendors.inventory import Device, Inventory

NODE = node(nvidia("580.0"), Device("0", "GPU-1", "T4", 1 << 30, (), "nvidia"))
EMPTY = Inventory("/", False, (), (), ())


def machine(inventory: Inventory | None, settings: Config = DEFAULTS) -> Machine:
    return Machine(settings, (), "/", True, inventory, "", "", (), True)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our file's usual place, for a run folder of its own, with a hook that is there."""
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path))
    (tmp_path / "cdi").mkdir()
    hook = tmp_path / "hook"
    hook.touch(0o755)
    monkeypatch.setattr(paths, "HOOK", str(hook))
    return Path(paths.cdi_file())


@pytest.fixture
def written(file: Path) -> Path:
    """The file as `xpu cdi generate` has written it."""
    file.write_text(content.text(NODE, DEFAULTS))
    return file


def test_no_file_is_no_problem_and_is_told_with_the_command(file: Path) -> None:
    for is_link in (False, True):
        if is_link:
            file.symlink_to("nowhere")
        (found,) = cdi.own(machine(NODE), str(file))
        assert found.state == OK and "is not there" in found.text and "xpu cdi generate" in found.text


def test_a_file_that_is_right(written: Path) -> None:
    (found,) = cdi.own(machine(NODE), str(written))
    assert found.state == OK and "has 7 devices" in found.text


@pytest.mark.parametrize(
    ("now", "settings"), [(EMPTY, DEFAULTS), (NODE, Config(cdi_sizes=({"name": "a", "mem": "1G"},)))]
)
def test_a_stale_file_is_told(written: Path, now: Inventory, settings: Config) -> None:
    (found,) = cdi.own(machine(now, settings), str(written))
    assert (found.state, found.todo) == (WARNING, "xpu cdi generate")
    assert "does not match the present devices, settings or version" in found.text


def test_where_the_devices_are_not_known_the_file_is_not_called_stale(written: Path) -> None:
    (found,) = cdi.own(machine(None), str(written))
    assert found.state == UNKNOWN


def test_a_file_of_another_installation_is_told(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "HOOK", "/opt/hook")
    (found,) = cdi.own(machine(NODE), str(written))
    assert found.state == WARNING and "of another installation than this one (/opt/hook)" in found.text


def test_a_file_of_another_configuration_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPU_CONFIG", "/srv/other.yaml")
    file.write_text(content.text(NODE, DEFAULTS))
    monkeypatch.delenv("XPU_CONFIG")
    (found,) = cdi.own(machine(NODE), str(file))
    assert found.state == WARNING and '"XPU_CONFIG=/srv/other.yaml"' in found.text


def test_a_hook_that_is_gone_is_a_problem(written: Path) -> None:
    Path(paths.HOOK).unlink()
    (found,) = cdi.own(machine(NODE), str(written))
    assert found.state == PROBLEM and "no container with such a device starts" in found.text


@pytest.mark.parametrize("change", [lambda text: text[:100], lambda text: text.replace("\n", "\r\n")])
def test_a_file_that_was_cut_or_edited_above_its_hooks_is_a_problem(
    file: Path, change: Callable[[str], str]
) -> None:
    file.write_bytes(change(content.text(NODE, DEFAULTS)).encode())
    (found,) = cdi.own(machine(NODE), str(file))
    assert (found.state, found.todo) == (PROBLEM, "xpu cdi generate")
    assert f"{file} names no hook of ours" in found.text


def test_a_folder_at_its_place_is_no_matter_of_the_user(file: Path) -> None:
    file.mkdir()
    (found,) = cdi.own(machine(NODE), str(file))
    assert (found.state, found.todo) == (UNKNOWN, "move it away, then xpu cdi generate")


def test_somebody_elses_file_at_its_place_is_told(file: Path) -> None:
    file.write_text("kind: yoyoworks.com/xpu\n")
    (found,) = cdi.own(machine(NODE), str(file))
    assert found.state == WARNING and "is not ours" in found.text


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "nvidia.com/gpu"),
        ("n.json", '{\n  "cdiVersion": "0.5.0",\n  "kind": "nvidia.com/gpu",\n}', "nvidia.com/gpu"),
        ("amd.json", '{\n "kind":"amd.com/gpu"}', "amd.com/gpu"),
        ("line.json", '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu"}', "nvidia.com/gpu"),
        ("q.yaml", "cdiVersion: '0.5.0'\nkind: 'nvidia.com/gpu'\n", "nvidia.com/gpu"),
        ("ours.yaml", content.text(NODE, DEFAULTS), ""),
        ("nvidia.yaml.old", "kind: nvidia.com/gpu\n", ""),
        ("other.yaml", "kind: example.com/device  # not nvidia.com/gpu\n", ""),
    ],
)
def test_files_that_give_whole_devices_are_told(tmp_path: Path, name: str, text: str, kind: str) -> None:
    (tmp_path / name).write_text(text)
    found = [*cdi.others((str(tmp_path), str(tmp_path / "none")), "/none")]
    assert [each.state for each in found] == ([WARNING] if kind else [])
    for each in found:
        assert f"{name} has devices {kind}=" in each.text
        assert f"rm {tmp_path / name}" in (each.todo or "")


def test_a_second_file_with_our_devices_is_a_problem(file: Path, tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    folders = (str(file.parent), str(run))
    file.write_text(content.text(NODE, DEFAULTS))
    assert [*cdi.others(folders, str(file))] == []
    for second in (file.parent / "mine.json", run / "mine.yaml"):
        second.write_text('{"kind": "yoyoworks.com/xpu"}')
        (found,) = cdi.others(folders, str(file))
        assert found.state == PROBLEM and found.text.startswith(f"{second} has devices yoyoworks.com/xpu=...")
        assert f"rm {second}" in (found.todo or "")
        # A trial's file is elsewhere, and its engines do not read these folders.
        assert [*cdi.others((str(run),), str(file))] == []
        second.unlink()


def _compared(told: dict[str, Any], ours: str | None = None) -> list[tuple[str, str]]:
    found = docker.compared(Process(1, ("dockerd",), 0.0), "/daemon.json", {}, ours, told)
    return [(each.state, each.text) for each in found]


def test_a_docker_that_gives_cdi_devices_needs_no_runtime(file: Path) -> None:
    told = {"Runtimes": {"runc": {}}, "CDISpecDirs": [str(file.parent)], "ServerVersion": "28.5.1"}
    assert [state for state, _ in _compared(told)] == [WARNING]  # there is no file yet
    file.write_text(content.text(NODE, DEFAULTS))
    ((state, text),) = _compared(told)
    assert state == OK and "does not know the runtime xpu, and gives slices as CDI devices" in text


@pytest.mark.parametrize(
    ("version", "folders", "says"),
    [
        ("20.10.24+dfsg1", None, "version 20.10.24+dfsg1 knows none, 25 does; use --runtime=xpu"),
        ("26.1.5", [], 'it takes {"features": {"cdi": true}} in its file, and a restart'),
        ("28.5.1", ["/elsewhere"], "it looks for files in /elsewhere, and ours is "),
    ],
)
def test_a_docker_without_cdi_is_told_why(
    written: Path, version: str, folders: list[str] | None, says: str
) -> None:
    told = {"Runtimes": {"runc": {}, "xpu": {"path": "/x"}}, "CDISpecDirs": folders, "ServerVersion": version}
    _, (state, text) = _compared(told, "/x")
    assert state == OK and "gives no CDI devices: " in text and says in text


@pytest.mark.parametrize(
    ("version", "is_told"), [("26.1.5+dfsg1", True), ("28.1.1", True), ("28.2.0", False)]
)
def test_a_docker_that_restarts_no_container_with_a_device_is_told(
    written: Path, version: str, is_told: bool
) -> None:
    told = {"Runtimes": {"runc": {}}, "CDISpecDirs": [str(written.parent)], "ServerVersion": version}
    found = [state for state, text in _compared(told) if "by their restart policy" in text]
    assert found == ([OK] if is_told else [])
