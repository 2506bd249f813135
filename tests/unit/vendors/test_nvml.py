"""The inventory's values from NVML: memory for programs, and memory in use, on each kind of driver."""

from __future__ import annotations

from typing import Any

import pytest

from support import GIB, MIB
from support.simulation import SUCCESS, Start, Up
from xpu_runtime.vendors.nvidia import nvml

KEEPS: dict[str, Any] = {"driver": "R580", "gpus": [{"model": "T4", "reserved_mib": 360}]}


def told(root: str) -> tuple[int, int | None]:
    """Memory of the only device, and the part in use, in MiB."""
    found = nvml.discover(root)
    (device,) = found.devices
    assert found.driver is not None and device.fault is None
    used = nvml.sensors(found.driver, found.devices)[device.uuid].memory_used_bytes
    return device.memory_bytes // MIB, None if used is None else used // MIB


def test_the_drivers_own_memory_is_neither_available_nor_in_use(up: Up, process: Start) -> None:
    root = up(KEEPS).root
    assert told(root) == (15000, 0)
    one = process(root)
    assert (one.start(), one.alloc(GIB)[0]) == (SUCCESS, SUCCESS)
    assert told(root) == (15000, 1024)


@pytest.mark.parametrize("branch", ["R470", "R580"])
def test_where_it_keeps_nothing_all_is_to_be_had(up: Up, branch: str) -> None:
    assert told(up(f"1xT4-{branch}").root) == (15360, 0)


def test_a_driver_that_does_not_report_its_own_part_is_believed(up: Up) -> None:
    assert told(up({**KEEPS, "driver": "R470"}).root) == (15360, 360)


def test_partitions_have_their_own_memory(up: Up) -> None:
    found = nvml.discover(up("2xA100-MIG").root)
    assert {each.memory_bytes // MIB for each in found.devices} == {40192, 9728}


def test_memory_that_nothing_tells_is_a_fault(up: Up) -> None:
    fails = {"nvmlDeviceGetMemoryInfo_v2": "NVML_ERROR_UNKNOWN"}
    found = nvml.discover(up({"driver": "R580", "gpus": [{"model": "T4", "fail": fails}]}).root)
    assert [(each.memory_bytes, each.fault) for each in found.devices] == [(0, "Unknown Error")]
    assert found.driver is not None
    (sensors,) = nvml.sensors(found.driver, found.devices).values()
    assert (sensors.memory_used_bytes, sensors.temperature_celsius) == (None, 30)
