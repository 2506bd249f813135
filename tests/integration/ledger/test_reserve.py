"""`xpu reserve`: only new containers that name the reservation get the device, others never."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from ..conftest import SLEEP, Bundles, Node
from ..findings import assert_fine, found
from ..inside import privileged
from ..refusals import refused

NAMES = "letters, digits, '.', '_' and '-', at most 63, the first a letter or digit"


def states(node: Node) -> dict[int | str, tuple[str | None, int]]:
    """For each device for whom it is reserved, and how many slices it has."""
    return {each["index"]: (each["reserved_for"], each["slices"]) for each in node.json("devices")}


def asked(node: Node, *variables: str, status: int = 0) -> dict[str, Any]:
    """`xpu explain`'s output for a request."""
    found, told = node.explained(*(word for variable in variables for word in ("-e", variable)))
    assert found == status, told
    return told


def given(node: Node, *variables: str) -> list[int | str]:
    """The devices that a request gets."""
    return [each["device_index"] for each in asked(node, *variables)["slices"]]


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_reserved_device_keeps_its_slices_and_goes_only_to_containers_that_name_it(
    node: Node, bundles: Bundles, mode: str
) -> None:
    node.configure(f"mode: {mode}")
    node.sim("2xT4")
    container = node.start(bundles("XPU_MEM=4G", "XPU_VISIBLE_DEVICES=0", args=SLEEP))
    said = node.xpu("reserve", "0", "--for", "team-a", "--reason", "course").stdout
    assert "is reserved for team-a" in said and f"{container[:12]} keeps 4G of it" in said
    assert states(node) == {0: ("team-a", 1), 1: (None, 0)}
    assert "reserved for team-a: course" in node.xpu("devices").stdout
    plain = bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0")
    told = refused(node, plain)
    assert "GPU 0: reserved for team-a: course (XPU_RESERVATION is not set)" in told
    assert "reserved for team-a" in refused(node, bundles("XPU_MEM=1G", "XPU_COUNT=2", change=privileged))
    node.start(bundles("XPU_MEM=1G", args=SLEEP))  # on the other
    named = bundles("XPU_MEM=1G", "XPU_RESERVATION=team-a", args=SLEEP)
    node.start(named)
    assert states(node) == {0: ("team-a", 2), 1: (None, 1)}
    assert "not reserved for team-a" in refused(
        node, bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=1", "XPU_RESERVATION=team-a", change=privileged)
    )
    node.xpu("unreserve", "0")
    assert states(node) == {0: (None, 2), 1: (None, 1)}
    assert node.run(plain).returncode == 0
    uuid = node.json("devices")[0]["uuid"]
    events = node.events("--device", uuid)
    changes = [(each["event"], each["reason"]) for each in events if "reserved" in each["event"]]
    assert changes == [("reserved", "for team-a: course"), ("unreserved", None)]


def test_a_container_that_names_a_reservation_gets_only_its_devices(node: Node) -> None:
    node.sim("2xT4")
    node.xpu("reserve", "1", "--for", "team-a")
    assert given(node, "XPU_RESERVATION=team-a") == [1]
    assert given(node, "XPU_MEM=1G") == [0]
    notes = asked(node, "XPU_RESERVATION=team-a", "XPU_MEM=1G")["notes"]
    assert "only devices that are reserved for team-a (XPU_RESERVATION)" in notes
    two = asked(node, "XPU_RESERVATION=team-a", "XPU_COUNT=2", status=3)["refusal"]
    assert two["devices"][0]["reason"] == "not reserved for team-a"
    node.xpu("reserve", "0", "--for", "team-b")
    told = asked(node, "XPU_RESERVATION=team-a", "XPU_VISIBLE_DEVICES=0", status=3)["refusal"]
    assert (told["code"], told["devices"][0]["reason"]) == ("not-eligible", "reserved for team-b")
    unknown = asked(node, "XPU_RESERVATION=team-c", status=3)["refusal"]
    assert unknown["code"] == "unknown-reservation"
    assert unknown["message"].endswith("reserved for that name; reserved are devices for team-a, team-b")
    told = node.xpu("reserve", "1", "--for", "team-b").stdout
    assert "is reserved for team-b, and no longer for team-a\n" in told
    assert given(node, "XPU_RESERVATION=team-b", "XPU_COUNT=2") == [0, 1]
    node.xpu("drain", "0", "--reason", "fan")
    assert given(node, "XPU_RESERVATION=team-b") == [1]
    assert "drained: fan; reserved for team-b" in node.xpu("devices").stdout
    assert (
        "drained: fan"
        in asked(node, "XPU_RESERVATION=team-b", "XPU_COUNT=2", status=3)["refusal"]["devices"][0]["reason"]
    )


def test_all_devices_are_all_of_the_reservation(node: Node) -> None:
    node.sim("4xT4")
    node.xpu("reserve", "1", "3", "--for", "team-a")
    both = ("XPU_RESERVATION=team-a", "XPU_VISIBLE_DEVICES=all", "XPU_MEM=1G")
    assert given(node, *both) == [1, 3]
    told = asked(node, "NVIDIA_VISIBLE_DEVICES=all", status=3)["refusal"]
    assert [each["reason"][:19] for each in told["devices"]][1::2] == ["reserved for team-a"] * 2
    node.configure("policy: {max_count: 2}")
    assert given(node, *both) == [1, 3]
    told = asked(node, "XPU_VISIBLE_DEVICES=all", "XPU_MEM=1G", status=3)["refusal"]
    assert told["message"] == "all 4 devices are requested, and policy.max_count allows 2"


def test_marks_stay_over_a_reboot_and_when_the_device_is_gone(node: Node) -> None:
    node.sim("2xT4")
    uuid = node.json("devices")[0]["uuid"]
    node.xpu("drain", uuid)
    node.xpu("reserve", uuid, "--for", "team-a")
    node.xpu("sim", "down")
    for path in node.run_dir.iterdir():
        if path.name != "state":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    node.sim("2xT4")
    marks = [(each["drained"], each["reserved_for"]) for each in node.json("devices")]
    assert marks == [("", "team-a"), (None, None)]
    assert_fine(node, "marks")
    node.xpu("sim", "down")
    node.sim("2xH200")
    assert {(each["drained"], each["reserved_for"]) for each in node.json("devices")} == {(None, None)}
    for undo, mark in (("undrain", "drained"), ("unreserve", "reserved")):
        assert f"xpu {undo} {uuid}" in found(node, "warning", "marks", f"{uuid} is {mark}")["todo"]
        assert uuid in node.xpu(undo, uuid).stdout
        assert f"0 is not {mark}" in node.xpu(undo, "0", check=False).stderr
    assert_fine(node, "marks")


def test_a_gpu_stands_for_its_partitions_except_one_reserved_by_itself(node: Node) -> None:
    node.sim("2xA100-MIG")
    node.xpu("reserve", "0", "--for", "team-a")
    node.xpu("reserve", "0:1", "--for", "team-b")
    names = {index: name for index, (name, _) in states(node).items()}
    assert names.pop("0:1") == "team-b"
    assert names == {index: "team-a" if str(index).startswith("0") else None for index in names}
    assert given(node, "XPU_RESERVATION=team-b") == ["0:1"]
    node.xpu("unreserve", "0:1")
    assert states(node)["0:1"][0] == "team-a"


def test_an_annotation_names_it_too_and_variables_need_not_count(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    node.configure("policy: {accept_env_when_unprivileged: false}")
    node.xpu("reserve", "0", "--for", "team-a")
    assert "accept_env_when_unprivileged" in refused(node, bundles("XPU_RESERVATION=team-a"))
    annotation = {"yoyoworks.com/xpu-reservation": "team-a"}
    node.start(bundles(args=SLEEP, change=lambda spec: spec.update(annotations=annotation)))
    assert states(node)[0] == ("team-a", 1)


@pytest.mark.parametrize(
    "name", ["", "-a", ".", "a b", "a/b", "é", "²", "a\x1b[31m", "a\nb", "x" * 64, "\udcff"]
)
def test_both_commands_refuse_an_invalid_name(node: Node, name: str) -> None:
    node.sim("1xT4")
    done = node.xpu("reserve", "0", "--for", name, check=False)
    assert done.returncode == 2 and NAMES in done.stderr
    assert "\x1b" not in done.stderr and len(done.stderr) < 1000
    assert states(node)[0] == (None, 0)
    if name:  # the empty one has the same answer as any variable
        told = asked(node, f"XPU_RESERVATION={name}", status=2)["refusal"]["message"]
        assert NAMES in told and "\x1b" not in told and len(told) < 1000


def test_the_longest_name_and_a_reason_are_one_line_that_all_may_read(node: Node) -> None:
    node.sim("1xT4")
    name = "x1._-" + "Y" * 58
    node.view = ["sh", "-c", 'umask 077; exec "$@"', "-"]
    node.xpu("reserve", "0", "--for", name, "--reason", "two\nlines\x1b[31m" + "x" * 1000)
    node.view = []
    state = node.run_dir / "state"
    modes = [each.stat().st_mode & 0o777 for each in (state, state / "reserved", *state.glob("*/*"))]
    assert modes == [0o755, 0o755, 0o644]
    (device,) = node.json("devices")
    assert device["reserved_for"] == name
    assert device["reserved_reason"] == ("two lines [31m" + "x" * 1000)[:200]
    assert "\x1b" not in node.xpu("events").stdout
    assert given(node, f"XPU_RESERVATION={name}") == [0]


def test_devices_with_unreadable_marks_are_given_to_nobody(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    node.xpu("reserve", "0", "--for", "team-a")
    (mark,) = (node.run_dir / "state" / "reserved").iterdir()
    mark.write_bytes(b"\x1b[31m \xff\n")
    assert states(node)[0][0] == ""
    assert "reserved for nobody" in node.xpu("devices").stdout
    assert "reserved for nobody" in refused(node, bundles("XPU_MEM=1G"))
    assert "--for NAME" in found(node, "problem", "marks", "does not tell for whom")["todo"]
    mark.write_bytes(b"x" * 5000)
    found(node, "problem", "marks", "the drained and reserved devices are not known")
    told = refused(node, bundles("XPU_MEM=1G"))
    assert "the drained and reserved devices are not known" in told and str(mark) in told
    assert "the drained and reserved devices are not known" in node.xpu("top", "--once").stderr
    mark.unlink()
    assert node.run(bundles("XPU_MEM=1G")).returncode == 0
    done = node.xpu("reserve", "0", "7", "--for", "team-a", check=False)
    assert done.returncode == 1 and "'7', which is not on this node" in done.stderr
    assert states(node)[0] == (None, 0)


def test_the_shell_completes_devices_and_names(node: Node) -> None:
    assert node.completed("drain", "") == node.completed("unreserve", "") == []
    kind = "yoyoworks.com/xpu="
    assert node.completed("explain", "--device", "") == [
        f"{kind}{name}" for name in ("slice", "2g", "4g", "8g")
    ]
    node.sim("2xT4")
    first, second = (each["uuid"] for each in node.json("devices"))
    assert node.completed("explain", "--device", f"{kind}GPU") == [f"{kind}{first}", f"{kind}{second}"]
    assert node.completed("reserve", "") == ["0", "1", first, second]
    assert node.completed("drain", first[:-1]) == [first]
    node.xpu("reserve", "0", "--for", "team-a", "--reason", "two\nlines, and a comma")
    node.xpu("drain", "1")
    assert node.completed("unreserve", "") == [first]
    assert node.completed("undrain", "") == [second]
    assert node.completed("reserve", "1", "--for", "t") == ["team-a"]
    (node.run_dir / "state" / "reserved" / "a\nb").write_text("\x1b[31m\n")
    assert node.completed("unreserve", "") == [first]
    (node.run_dir / "state" / "reserved" / "x").mkdir()
    assert node.completed("unreserve", "") == []
