"""Several vendors: their order, their numbers, a vendor that fails, and one of a test's own."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import inventories
from support.amd import Tree, write
from xpu_runtime import vendors
from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import DeviceError
from xpu_runtime.vendors import discovery, registry
from xpu_runtime.vendors.amd import VENDOR as AMD
from xpu_runtime.vendors.inventory import Device, Inventory
from xpu_runtime.vendors.nvidia import VENDOR as NVIDIA
from xpu_runtime.vendors.vendor import Discovered, Sensors

CARDS = (
    Device("0", "GPU-0", "a card", 1 << 30, (), "nvidia"),
    Device("1:0", "MIG-0", "a partition", 1 << 30, (), "nvidia", parent="GPU-1"),
    Device("1:1", "MIG-1", "a partition", 1 << 30, (), "nvidia", parent="GPU-1"),
)


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card and two MIG devices of another."""
    driver = inventories.nvidia("580.82.07")
    monkeypatch.setattr(type(NVIDIA), "discover", lambda self, root: Discovered(CARDS, driver))


def test_a_vendors_devices_are_counted_on_from_the_gpus_of_those_before(nvidia: None, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.gpu(unique_id=1)
    tree.gpu(unique_id=2)
    found = registry.discover(str(tmp_path), False)
    assert [device.index for device in found.devices] == ["0", "1:0", "1:1", "2", "3"]
    assert [driver.vendor for driver in found.drivers] == ["nvidia", "amd"]
    assert found.facts(found.devices[3])["vendor"] == "amd"
    assert found.driver("amd").common_nodes
    assert found.driver("ascend").common_nodes == ()


def test_a_node_without_any_driver_says_of_each_why(tmp_path: Path) -> None:
    found = registry.discover(str(tmp_path), False)
    assert found.missing.startswith("no NVIDIA driver found: libnvidia-ml.so.1 is neither in ")
    assert "; no AMD driver found: " in found.missing


def _fail(self: object, root: str) -> Discovered:
    raise DeviceError("NVML does not start")


def test_a_driver_that_does_not_answer_takes_no_others_devices_away(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(NVIDIA), "discover", _fail)
    with pytest.raises(DeviceError, match="NVML does not start"):
        registry.discover(str(tmp_path), False)
    Tree(tmp_path).gpu()
    found = discovery.load(Config(driver_root=str(tmp_path)))
    assert [device.vendor for device in found.devices] == ["amd"]
    assert found.problems == ("NVML does not start",)
    # It may answer the next start.
    assert not (run_dir / "inventory.json").exists()


def test_an_inventory_is_used_until_its_sources_change(tmp_path: Path, run_dir: Path) -> None:
    config = Config(driver_root=str(tmp_path))
    tree = Tree(tmp_path)
    tree.gpu(unique_id=1)
    first = discovery.load(config)
    assert len(first.devices) == 1
    assert discovery.load(config) == first
    tree.gpu(unique_id=2)  # makes a node in /dev/dri
    assert len(discovery.load(config).devices) == 2


_DAMAGED: tuple[object, ...] = (5, None, "x", [[]], {"a": 1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("format", other) for other in (0, 1, 1000, "2", None)),
        ("build", "another"),
        *(("stamps", damaged) for damaged in _DAMAGED),
    ],
)
def test_a_cache_of_another_version_or_a_damaged_one_is_as_good_as_none(
    tmp_path: Path, run_dir: Path, field: str, value: object
) -> None:
    config = Config(driver_root=str(tmp_path))
    Tree(tmp_path).gpu()
    found = discovery.load(config)
    cache = run_dir / "inventory.json"
    record = json.loads(cache.read_text())
    other = {**record, field: value}
    if field == "stamps":  # of the inventory
        kept = record["inventory"]
        other = {**record, "inventory": [*kept[:4], value, *kept[5:]]}
    cache.write_text(json.dumps(other))
    assert discovery.load(config) == found
    assert json.loads(cache.read_text()) == record


_ONE_MORE = """
from xpu_runtime.vendors.inventory import Device, Driver
from xpu_runtime.vendors.vendor import Discovered, Vendor


class Acme(Vendor):
    name = "acme"
    order = 9

    def discover(self, root):
        device = Device("0", "XPU-acme-0", "Acme", 1 << 30, (), self.name)
        return Discovered((device,), Driver(self.name, "1"))


VENDOR = Acme()
"""


def test_a_vendor_is_registered_by_being_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "vendors/acme.py", _ONE_MORE)
    monkeypatch.setattr(vendors, "__path__", [*vendors.__path__, str(tmp_path / "vendors")])
    importlib.invalidate_caches()
    found = registry.discover(str(tmp_path), False)
    assert [device.uuid for device in found.devices] == ["XPU-acme-0"]
    assert [vendor.name for vendor in registry.every()] == ["nvidia", "amd", "acme"]
    assert registry.memory_by_process(found, []) == {}  # this one's driver reports no process


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def", "acme in .* cannot be loaded: SyntaxError"),
        ("import no_such_module", "acme in .* cannot be loaded: ModuleNotFoundError"),
        (_ONE_MORE.replace("device = ", "raise OSError(5, "), "acme in .* cannot be loaded: SyntaxError"),
        (
            _ONE_MORE.replace('Device("0"', "Device(1 / 0"),
            "looking for acme devices failed: ZeroDivisionError",
        ),
        (_ONE_MORE.replace('Device("0"', 'Device("x"'), "looking for acme devices failed: ValueError"),
        (_ONE_MORE.replace("return Disc", "return None and Disc"), "looking for acme .*: AttributeError"),
    ],
)
def test_a_vendors_file_that_is_broken_takes_no_other_vendors_devices_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    Tree(tmp_path).gpu()
    write(tmp_path / "vendors/acme.py", text)
    monkeypatch.setattr(vendors, "__path__", [*vendors.__path__, str(tmp_path / "vendors")])
    monkeypatch.delitem(sys.modules, f"{vendors.__name__}.acme", raising=False)
    importlib.invalidate_caches()
    found = registry.discover(str(tmp_path), False)
    assert [device.vendor for device in found.devices] == ["amd"]
    assert re.search(why, found.problems[0])
    assert len(found.problems) == 1


@pytest.fixture
def two_vendors(nvidia: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    """NVIDIA's driver, which does not answer any more, and AMD's with one card."""
    tree = Tree(tmp_path)
    tree.gpu(unique_id=1)
    found = registry.discover(str(tmp_path), False)
    for each in ("memory_by_process", "sensors", "utilization"):
        monkeypatch.setattr(type(NVIDIA), each, _does_not_answer)
        monkeypatch.setattr(type(AMD), each, _answers[each])
    return found


def _does_not_answer(self: object, *_: object, whole: bool = False) -> Callable[[], object]:
    raise DeviceError("NVML does not answer")


_answers = {
    "memory_by_process": lambda *_: {"XPU-1": {7: 1024}},
    "sensors": lambda *_: {"XPU-1": Sensors(temperature_celsius=40.0)},
    "utilization": lambda *_, whole: lambda: {"XPU-1": {7: 0.5}},
}


def test_a_driver_that_does_not_answer_takes_no_others_answers_away_and_is_told(
    two_vendors: Inventory,
) -> None:
    problems: list[str] = []
    assert registry.memory_by_process(two_vendors, problems) == {"XPU-1": {7: 1024}}
    assert registry.sensors(two_vendors, problems) == {"XPU-1": Sensors(temperature_celsius=40.0)}
    assert problems == ["NVML does not answer"] * 2
    told: list[str] = []
    source = registry.utilization(two_vendors, tell=told.append)
    assert [source(), source()] == [{"XPU-1": {7: 0.5}}] * 2
    assert told == ["NVML does not answer"]


@pytest.mark.parametrize(("again_s", "asked"), [(0.0, True), (60.0, False)])
def test_it_is_opened_again_after_some_time(
    two_vendors: Inventory, monkeypatch: pytest.MonkeyPatch, again_s: float, asked: bool
) -> None:
    monkeypatch.setattr(registry, "_AGAIN_S", again_s)
    source = registry.utilization(two_vendors)
    readings = iter([{"GPU-0": {3: 0.9}}, {"GPU-0": {3: 0.1}}])  # the first is of a time before it was open
    monkeypatch.setattr(type(NVIDIA), "utilization", lambda *_, whole: lambda: next(readings))
    assert source() == {"XPU-1": {7: 0.5}, **({"GPU-0": {3: 0.1}} if asked else {})}


def test_where_no_driver_answers_that_is_an_error(
    two_vendors: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(AMD), "utilization", lambda *_, whole: None)  # as if it reported no process
    with pytest.raises(DeviceError, match="NVML does not answer"):
        registry.utilization(two_vendors)
