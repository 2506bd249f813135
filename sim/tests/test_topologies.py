"""Topologies: ours, a user's own, and the errors for invalid ones."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from support import GIB, MIB
from xpu_runtime.errors import ConfigError
from xpu_simulator import simulator, topology


def test_our_topologies_match_their_names() -> None:
    found = {entry.name: entry.gpus for entry in simulator.topologies()}
    small, large = {"1xT4": 1, "2xT4": 2, "4xT4": 4, "2xA100-MIG": 2}, {"8xA100-80GB": 8}
    assert found == {**small, **large, "1xH100": 1, "2xH200": 2}
    assert all(entry.description for entry in simulator.topologies())
    sizes = {name: {int(gpu.settings["memory"]) for gpu in topology.read(name).gpus} for name in found}
    assert sizes["4xT4"] == {15 * GIB}
    assert sizes["8xA100-80GB"] == {80 * GIB}
    assert sizes["1xH100"] == {81559 * MIB}
    assert sizes["2xH200"] == {143771 * MIB}
    assert {gpu.settings["reserved"] for gpu in topology.read("2xH200").gpus} == {615 * MIB}
    # The values were measured on an H200.
    for name in "1xH100", "2xH200":
        read = topology.read(name)
        assert {gpu.settings["context_memory"] for gpu in read.gpus} == {518 * MIB}
        assert (read.time_slice_us, read.context_switch_us) == (2048, 190)
    profiles = {part["profile"] for gpu in topology.read("2xA100-MIG").gpus for part in gpu.mig}
    assert profiles == {"3g.40gb", "1g.10gb"}


@pytest.mark.parametrize("name", topology.names())
@pytest.mark.parametrize("branch", [*topology.DRIVERS])
def test_each_has_every_driver_branch(name: str, branch: str) -> None:
    read = topology.read(f"{name}-{branch}")
    assert read.driver.startswith(f"{branch[1:]}.")
    assert read.memory_limits == (branch == "R615")
    assert [gpu.settings["uuid"] for gpu in read.gpus] == [
        gpu.settings["uuid"] for gpu in topology.read(name).gpus
    ]


def test_cards_and_parts_have_names_and_numbers_of_their_own() -> None:
    for name in topology.names():
        gpus = topology.read(name).gpus
        parts = [part for gpu in gpus for part in gpu.mig]
        uuids = [gpu.settings["uuid"] for gpu in gpus] + [part["uuid"] for part in parts]
        assert len(set(uuids)) == len(uuids)
        minors = [part[kind] for part in parts for kind in ("gi_minor", "ci_minor")]
        assert len(set(minors)) == len(minors)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("4xT5", "did you mean 4xT4?"),
        ("4xt4", "did you mean 4xT4?"),
        ("4xT5-R580", "did you mean 4xT4-R580?"),
        ("4xT4-R58", "4xT4 has no driver branch R58: there are R470, R535, R550, "),
        ("2xA100", "did you mean 2xA100-MIG?"),
        ("nonsense", "1xT4"),
        ("-R580", "-R580?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)):
        topology.read(name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus: [{model: T4, memry_mib: 5}]", "unknown key gpus[0].memry_mib: did you mean memory_mib?"),
        ("gups: []", "did you mean gpus?"),
        ("gpus: [{model: t4}]", "gpus[0].model is 't4': did you mean T4?"),
        ("gpus: [{model: A100}]", "did you mean A100-SXM4-80GB?"),
        ("gpus: [{model: T4}]\ndriver: R581", "did you mean R580?"),
        (
            "gpus: [{model: T4, fail: {nvmlDeviceGetName: NVML_ERROR_LOST}}]",
            "did you mean NVML_ERROR_GPU_IS_LOST?",
        ),
        ("gpus: [{model: T4, fail: {cuInit: NVML_ERROR_UNKNOWN}}]", "'cuInit' does not match"),
        ("gpus: [{model: T4, memory_mib: 0}]", "gpus[0].memory_mib: 0 is less than the minimum of 1"),
        ("gpus: [{model: T4, memory_mib: 9, reserved_mib: 9}]", "the driver would keep all of the memory"),
        ("gpus: [{model: T4, count: 17}]", "17 is greater than the maximum of 16"),
        ("gpus: [{model: T4, count: 16}, {model: T4}]", "there are 17 cards"),
        ("gpus: [{model: T4, mig: [1g.5gb]}]", "the MIG profiles of T4 are not simulated"),
        ("gpus: [{model: A100-SXM4-80GB, mig: [3g.40]}]", "did you mean 3g.40gb?"),
        ("gpus: [{model: A100-SXM4-80GB, mig: [4g.40gb, 4g.40gb]}]", "do not fit on one card"),
        ("gpus: [{model: A100-SXM4-80GB, mig: [3g.40gb, 3g.40gb, 1g.10gb]}]", "do not fit on one card"),
        ("gpus: [{model: T4, uuid: GPU-1}]", "gpus[0].uuid: 'GPU-1' does not match"),
        (
            "gpus: [{model: T4, count: 2, uuid: GPU-00000000-0000-0000-0000-000000000000}]",
            "gpus[0].uuid is for one card and count says 2",
        ),
        ("gpus: 3", "gpus must be a list; see "),
        ("gpus: []", "gpus"),
        ("[]", "the topology"),
        ("", "the topology"),
        ("gpus: [{model: T4}", "topology.yaml:1"),
        ("gpus: [{model: T4, model: T4}]", "topology.yaml:1"),
    ],
)
def test_an_invalid_file_is_refused_with_the_key_and_the_nearest_name(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        topology.read(str(file))
    message = str(refusal.value)
    assert says in message
    assert str(file) in message
    assert "\n" not in message


def test_a_users_own_file_may_set_everything(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "description: mine\ndriver: R580\ntime_slice_us: 500\n"
        "context_switch_us: 5\n"
        "gpus:\n"
        "  - {model: T4, count: 2, memory_mib: 1000, reserved_mib: 3, context_mib: 5}\n"
        "  - {model: H200, uuid: GPU-11111111-2222-3333-4444-555555555555, healthy: false,\n"
        "     fail: {nvmlDeviceGetMemoryInfo: NVML_ERROR_UNKNOWN}}\n"
        "  - {model: A100-SXM4-80GB, mig: []}\n"
    )
    read = topology.read(str(file))
    assert (read.driver, read.cuda) == ("580.105.08", "13.0")
    assert (read.time_slice_us, read.context_switch_us) == (500, 5)
    assert [int(gpu.settings["memory"]) // MIB for gpu in read.gpus] == [1000, 1000, 143771, 81920]
    assert [int(gpu.settings.get("reserved", 0)) // MIB for gpu in read.gpus] == [3, 3, 615, 0]
    assert read.gpus[2].settings["uuid"] == "GPU-11111111-2222-3333-4444-555555555555"
    assert read.gpus[2].faults == {"nvmlDeviceGetMemoryInfo": 999}
    assert read.gpus[3].settings["mig_enabled"] == 1


def test_a_missing_file_is_named_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(os.path.join(tmp_path, "none.yaml"))):
        topology.read(str(tmp_path / "none.yaml"))
