"""Devices that are missing, devices that are withheld, and the node's reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.inventories import node, nvidia
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.kubernetes.device_plugin import node as described
from xpu_runtime.kubernetes.device_plugin.cards import cards, with_known
from xpu_runtime.kubernetes.device_plugin.shared_ledger import Taken
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Use
from xpu_runtime.request.assignment import Share
from xpu_runtime.vendors import marks
from xpu_runtime.vendors.inventory import Device, Driver, Inventory

GIB = 1 << 30
ONE = Device("0", "GPU-a", "Tesla T4", 15 * GIB, (), "nvidia")
TWO = Device("1", "GPU-b", "Tesla T4", 15 * GIB, (), "nvidia")
PARTS = tuple(
    Device(f"1:{n}", f"MIG-{n}", "A100 MIG 1g.10gb", 10 * GIB, (), "nvidia", parent="GPU-b") for n in range(2)
)
AMD = Device("2", "GPU-amd", "MI300X", 192 * GIB, (), "amd")
NVIDIA = nvidia("580.82.07")


def faults(inventory: Inventory) -> dict[str, str | None]:
    return {each.uuid: each.fault for each in inventory.devices}


def test_devices_reported_now_replace_earlier_ones() -> None:
    assert with_known(None, node(NVIDIA, ONE)) == node(NVIDIA, ONE)
    assert with_known(node(NVIDIA, ONE, TWO), node(NVIDIA, ONE)) == node(NVIDIA, ONE)


def test_a_card_that_tells_neither_uuid_nor_memory_is_the_one_that_it_was() -> None:
    lost = Device("1", "GPU-unknown-1", "unknown", 0, (), "nvidia", fault="GPU is lost")
    found = with_known(node(NVIDIA, ONE, TWO), node(NVIDIA, ONE, lost))
    assert faults(found) == {"GPU-a": None, "GPU-b": "GPU is lost"}
    assert found.devices[1].memory_bytes == 15 * GIB
    # A second time, with the result of the first; then the device recovers.
    assert with_known(found, node(NVIDIA, ONE, lost)) == found
    assert faults(with_known(found, node(NVIDIA, ONE, TWO))) == {"GPU-a": None, "GPU-b": None}
    # One that was lost from the start is what it says.
    assert faults(with_known(None, node(NVIDIA, ONE, lost))) == {
        "GPU-a": None,
        "GPU-unknown-1": "GPU is lost",
    }


def test_mig_devices_of_a_card_that_is_lost_are_told_still() -> None:
    lost = TWO.replace(fault="GPU is lost", memory_bytes=0)
    found = with_known(node(NVIDIA, ONE, *PARTS), node(NVIDIA, ONE, lost))
    assert faults(found) == {"GPU-a": None, "MIG-0": "GPU is lost", "MIG-1": "GPU is lost"}


def test_one_mig_device_with_a_fault_is_itself() -> None:
    sick = PARTS[1].replace(fault="no capability")
    found = with_known(node(NVIDIA, ONE, *PARTS), node(NVIDIA, ONE, PARTS[0], sick))
    assert faults(found) == {"GPU-a": None, "MIG-0": None, "MIG-1": "no capability"}


def test_a_driver_that_is_unloaded_leaves_its_devices_unhealthy() -> None:
    gone = Inventory("/", False, (), (), (), "no NVIDIA driver found")
    found = with_known(node(NVIDIA, ONE), gone)
    assert "no NVIDIA driver found" in (found.devices[0].fault or "")
    assert found.driver("nvidia").version == "580.82.07"


def test_a_vendor_whose_driver_fails_leaves_its_devices_unhealthy_and_no_others() -> None:
    both = Inventory("/", False, (ONE, AMD), (NVIDIA, Driver("amd")), ())
    now = Inventory("/", False, (AMD,), (Driver("amd"),), (), problems=("NVML does not start",))
    assert faults(with_known(both, now)) == {"GPU-amd": None, "GPU-a": "NVML does not start"}
    # A device without a fault has been taken out: it is gone.
    assert faults(with_known(both, now.replace(problems=()))) == {"GPU-amd": None}


def test_drained_reserved_and_unlisted_devices_are_withheld(run_dir: Path) -> None:
    inventory = node(NVIDIA, ONE, TWO, *PARTS)
    marks.drain("GPU-a", "loud")
    marks.reserve("GPU-b", marks.Reservation("team", ""))
    found = cards(inventory, "", DEFAULTS, Taken())
    assert [each.withheld for each in found] == ["drained: loud", *["reserved for team"] * 3]
    listed = cards(inventory, "", DEFAULTS.replace(policy_devices=("1",)), Taken())
    assert listed[0].withheld == "policy.devices does not list it"
    assert not any(each.fault for each in found)


def test_marks_that_cannot_be_read_withhold_everything(run_dir: Path) -> None:
    (run_dir / "state").mkdir()
    (run_dir / "state" / marks.DRAINED).write_text("no folder")
    (found,) = cards(node(NVIDIA, ONE), "", DEFAULTS, Taken())
    assert "the drained and reserved devices are not known" in found.withheld


def test_a_driver_that_does_not_answer_makes_all_unhealthy(run_dir: Path) -> None:
    found = cards(node(NVIDIA, ONE, TWO), "it hangs", DEFAULTS, Taken())
    assert [each.fault for each in found] == ["it hangs", "it hangs"]


def test_a_node_that_places_itself_gives_one_vendors_devices(run_dir: Path) -> None:
    both = Inventory("/", False, (ONE, AMD), (NVIDIA, Driver("amd")), ())
    assert [each.withheld for each in cards(both, "", DEFAULTS, Taken())] == [
        "",
        "this node gives pods its nvidia devices",
    ]
    by_extender = DEFAULTS.replace(kubernetes_placement="extender")
    assert [each.withheld for each in cards(both, "", by_extender, Taken())] == ["", ""]


def test_the_annotation_says_what_each_device_is_and_what_others_have(run_dir: Path) -> None:
    inventory = node(NVIDIA, ONE, TWO.replace(fault="GPU is lost"))
    taken = Taken({"GPU-a": Use(9 * GIB, 50, 2)}, {"GPU-a": Use(4 * GIB, 20, 1)})
    shares: dict[str, tuple[Share, ...]] = {
        "one": (Share("GPU-a", 4 * GIB, 30),),
        "other": (Share("GPU-a", 1 * GIB, None),),
    }
    reserved = {
        "uid-1": Allocation("uid-1", "default", "two", 0.0, shares, key_id="old"),
        "uid-2": Allocation("uid-2", "default", "whole", 0.0, {"one": (Share("GPU-b", None, None),)}),
    }
    seen = cards(inventory, "", DEFAULTS, taken)
    value = described.annotation(inventory, seen, "extender", reserved, keys=["new", "old"])
    first, second = json.loads(value)["devices"]
    assert first == {
        "uuid": "GPU-a",
        "index": "0",
        "model": "Tesla T4",
        "memory": 15 * GIB,
        "cores": 100,
        "healthy": True,
        "why": "",
        "others": {"memory": 4 * GIB, "cores": 20, "whole": False},
        "vendor": "nvidia",
        "memory_strength": "",
        "cores_strength": "",
        "capacity": 15 * GIB,
    }
    assert (second["healthy"], second["why"]) == (False, "GPU is lost")
    assert json.loads(value) | {"devices": []} == {
        "v": 1,
        "driver": "580.82.07",
        "placement": "extender",
        "memory_unit": 1 << 30,
        "keys": ["new", "old"],
        "aliases": [],
        "devices": [],
        "reserved": {"uid-1": [["GPU-a", 5 * GIB, 30]], "uid-2": [["GPU-b", None, None]]},
        "signed": {"uid-1": "old"},
    }


@pytest.mark.parametrize(
    ("unenforced", "told"),
    [
        ((), [("hard", "none"), ("none", "none")]),
        (("cores",), [("hard", "unenforced"), ("none", "unenforced")]),
    ],
)
def test_the_annotation_says_which_limits_a_device_holds_or_may_leave_unheld(
    run_dir: Path, unenforced: tuple[str, ...], told: list[tuple[str, str]]
) -> None:
    inventory, strengths = node(NVIDIA, ONE, TWO), [("hard", ""), ("unenforced", "")]
    there = cards(inventory, "", DEFAULTS, Taken())
    value = described.annotation(inventory, there, "extender", {}, strengths, unenforced)
    found = json.loads(value)["devices"]
    assert [(each["memory_strength"], each["cores_strength"]) for each in found] == told


def test_labels_are_valid_and_those_that_say_nothing_are_removed() -> None:
    found = described.labels(node(NVIDIA, ONE, *PARTS), [("hard", "soft"), ("soft", ""), ("hard", "hard")])
    assert {name.rpartition("xpu.")[2]: value for name, value in found.items()} == {
        "vendor": "nvidia",
        "product": "Tesla-T4",
        "count": "2",
        "memory": "15360",
        "driver": "580.82.07",
        "cuda": "13.0",
        "mig": "true",
        "memory-strength": "soft",
        "cores-strength": "none",
    }
    assert set(described.labels(Inventory("/", False, (), (), ()), []).values()) == {None}
    assert described.label_value("NVIDIA A100-SXM4 (80 GB)") == "NVIDIA-A100-SXM4--80-GB"
    assert described.label_value("ü" * 80 + "x") == ""
    assert len(described.label_value("x" * 80)) == 63
