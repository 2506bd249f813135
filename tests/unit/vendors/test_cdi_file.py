"""The CDI file: it follows its specification, any YAML reader can read it, and only our own file is written
again."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.inventories import node, nvidia
from xpu_runtime import paths
from xpu_runtime.config.defaults import Config
from xpu_runtime.request.source import from_spec
from xpu_runtime.vendors import cdi_file
from xpu_runtime.vendors.inventory import Device, Inventory

#: SPEC.md: letters and digits, and within also '_', '-', '.' and ':'.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_GPU = "GPU-06f4c9f5-36b8-567f-9d05-eb32dca5186e"
_MIG = "MIG-5f041df8-2782-57b1-8f52-5644477f7a9d"


def _node() -> Inventory:
    whole = Device("0", _GPU, "Tesla T4", 16 << 30, (), "nvidia")
    part = Device("1:0", _MIG, "A100 MIG 1g.5gb", 5 << 30, (), "nvidia", parent="GPU-1")
    return node(nvidia("580.0"), whole, part)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its usual place, for a run folder of its own."""
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path))
    (tmp_path / "cdi").mkdir()
    return Path(paths.cdi_file())


def test_the_file_is_as_the_specification_wants_it() -> None:
    document = cdi_file.document(_node(), Config())
    assert set(document) == {"cdiVersion", "kind", "containerEdits", "devices"}
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "yoyoworks.com/xpu")
    for hook in document["containerEdits"]["hooks"]:
        assert set(hook) == {"hookName", "path", "args", "env"}
        assert hook["hookName"] in ("createRuntime", "poststop")
        assert os.path.isabs(hook["path"]) and hook["args"] == [
            os.path.basename(hook["path"]),
            hook["hookName"],
        ]
        assert all(re.fullmatch(r"[A-Z_]+=.+", each) for each in hook["env"])
    for device in document["devices"]:
        assert set(device) == {"name", "containerEdits"} and _NAME.fullmatch(device["name"])
        (variable,) = device["containerEdits"]["env"]
        assert re.fullmatch(r"XPU_CDI_[A-Z0-9_]+=.+", variable)
    names = [device["name"] for device in document["devices"]]
    assert names == ["slice", "2g", "4g", "8g", "all", "0", _GPU, "1:0", _MIG]


def test_each_device_has_a_variable_of_its_own_that_asks_for_it() -> None:
    config = Config(cdi_sizes=({"name": "a-b", "mem": "50%", "cores": 25, "count": 2},))
    asked: dict[str, Any] = {}
    for device in cdi_file.document(_node(), config)["devices"][1:]:
        (variable,) = device["containerEdits"]["env"]
        assert variable.partition("=")[0] not in [each.partition("=")[0] for each in asked]
        asked[variable] = from_spec({"process": {"env": [variable]}}, config)
    size, every, *whole = asked.values()
    assert ([each.text() for each in size.memory], size.cores, size.count) == (["50%"], 25, 2)
    assert every.choice == "all"
    assert [each.selectors for each in whole] == [("0",), (_GPU,), ("1:0",), (_MIG,)]


def test_a_mig_device_of_an_old_driver_has_its_index_alone_as_name() -> None:
    part = Device("1:0", f"MIG-{_GPU}/1/0", "A100 MIG 1g.5gb", 5 << 30, (), "nvidia", parent="GPU-1")
    names = [each["name"] for each in cdi_file.document(node(nvidia("450.80"), part), Config())["devices"]]
    assert names == ["slice", "2g", "4g", "8g", "all", "1:0"]


def test_yaml_and_json_say_the_same() -> None:
    found = cdi_file.text(_node(), Config())
    assert yaml.safe_load(found) == cdi_file.document(_node(), Config())
    assert found.startswith(cdi_file.MARK + "\n")


def test_a_device_that_the_policy_gives_to_nobody_is_not_in_it() -> None:
    names = cdi_file.devices(_node(), Config(policy_devices=("1",)))
    assert [*names][-3:] == ["all", "1:0", _MIG]
    assert "0" not in names


def test_without_devices_there_are_sizes() -> None:
    assert [*cdi_file.devices(Inventory("/", False, (), (), ()), Config())] == ["slice", "2g", "4g", "8g"]


def test_hooks_find_the_files_of_a_trial(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPU_CONFIG", "/trial.yaml")
    (env, _) = [hook["env"] for hook in cdi_file.document(_node(), Config())["containerEdits"]["hooks"]]
    assert env[1:] == ["XPU_CONFIG=/trial.yaml", f"XPU_RUN_DIR={file.parent.parent}"]


def test_a_file_of_ours_is_written_anew_when_the_devices_change(file: Path) -> None:
    file.write_text(cdi_file.text(Inventory("/", False, (), (), ()), Config()))
    cdi_file.renew(_node(), Config())
    assert file.read_text() == cdi_file.text(_node(), Config())
    before = file.stat().st_ino
    cdi_file.renew(_node(), Config())  # engines watch the folder: nothing has changed
    assert file.stat().st_ino == before


def test_a_command_of_another_installation_or_configuration_leaves_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cdi_file.text(Inventory("/", False, (), (), ()), Config())
    file.write_text(before)
    with monkeypatch.context() as other:
        other.setattr(paths, "HOOK", "/opt/bin/xpu-container-runtime-hook")
        cdi_file.renew(_node(), Config())
    assert file.read_text() == before
    with monkeypatch.context() as other:
        other.setenv("XPU_CONFIG", "/tmp/try.yaml")
        cdi_file.renew(_node(), Config())
    assert file.read_text() == before
    cdi_file.renew(_node(), Config())
    assert file.read_text() == cdi_file.text(_node(), Config())


@pytest.mark.parametrize("content", [None, "cdiVersion: 0.5.0\nkind: yoyoworks.com/xpu\n"])
def test_no_other_file_is_written(file: Path, content: str | None) -> None:
    if content is not None:
        file.write_text(content)
    cdi_file.renew(_node(), Config())
    assert (file.read_text() if file.exists() else None) == content


def test_the_usual_place_is_the_engines_for_the_usual_run_folder_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XPU_RUN_DIR", raising=False)
    assert paths.cdi_file() == "/etc/cdi/yoyoworks.com-xpu.yaml"
    monkeypatch.setenv("XPU_RUN_DIR", "/run/trial")
    assert paths.cdi_file() == "/run/trial/cdi/yoyoworks.com-xpu.yaml"
