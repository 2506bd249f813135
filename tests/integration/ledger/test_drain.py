"""`xpu drain`: no new container gets a drained device, also a privileged one, until `xpu undrain`."""

from __future__ import annotations

import pytest

from ..conftest import SLEEP, Bundles, Node
from ..findings import examine
from ..inside import privileged
from ..refusals import refused


def states(node: Node) -> dict[int | str, tuple[str | None, int]]:
    """For each device why it is drained, and how many slices it has."""
    return {each["index"]: (each["drained"], each["slices"]) for each in node.json("devices")}


def marks_findings(node: Node) -> list[tuple[str, str]]:
    return [(each["state"], each["text"]) for each in examine(node)[0] if each["check"] == "marks"]


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_drained_device_keeps_its_slices_and_gets_no_new_ones(
    node: Node, bundles: Bundles, mode: str
) -> None:
    node.configure(f"mode: {mode}")
    node.sim("2xT4")
    node.start(bundles("XPU_MEM=4G", "XPU_VISIBLE_DEVICES=0", args=SLEEP))
    container = node.json("ps")[0]["container_id"]
    said = node.xpu("drain", "0", "--reason", "fan").stdout
    assert said.startswith("GPU-") and f"{container[:12]} keeps 4G of it" in said
    assert states(node) == {0: ("fan", 1), 1: (None, 0)}
    assert "drained: fan" in node.xpu("devices").stdout
    named = bundles("XPU_MEM=1G", "XPU_VISIBLE_DEVICES=0")
    assert "GPU 0: drained: fan (until xpu undrain 0)" in refused(node, named)
    assert "drained: fan" in refused(node, bundles("XPU_MEM=1G", "XPU_COUNT=2", change=privileged))
    node.start(bundles("XPU_MEM=1G", args=SLEEP))  # on the other
    assert states(node) == {0: ("fan", 1), 1: (None, 1)}
    assert node.json("explain", "-e", "XPU_MEM=1G", "-e", "XPU_VISIBLE_DEVICES=1")["granted"]
    assert marks_findings(node) == [("ok", "1 drained, 0 reserved: `xpu devices`")]
    node.xpu("drain", "1")
    assert marks_findings(node) == [("warning", "all devices are drained: no container gets a slice")]
    node.xpu("undrain", "1")
    node.xpu("undrain", "0")
    assert states(node)[0] == (None, 1)
    assert node.run(named).returncode == 0


def test_a_drained_gpu_stands_for_its_partitions(node: Node) -> None:
    node.sim("2xA100-MIG")
    node.xpu("drain", "0")
    drained = {index: reason is not None for index, (reason, _) in states(node).items()}
    assert drained == {index: str(index).startswith("0") for index in drained}
    part = next(index for index in drained if str(index).startswith("1:"))
    node.xpu("drain", str(part), "--reason", "of its own")
    assert states(node)[part][0] == "of its own"
    assert [reason for reason, _ in states(node).values()].count("of its own") == 1
    refusal = node.xpu("explain", "-e", "XPU_VISIBLE_DEVICES=0:0", check=False).stdout
    done = node.xpu("undrain", "0:0", check=False)
    gpu = done.stderr.rpartition(" ")[2].strip()
    assert done.returncode == 1 and f"0:0 is not drained, its GPU is: xpu undrain {gpu}" in done.stderr
    assert f"(until xpu undrain {gpu})" in " ".join(refusal.split())
    node.xpu("undrain", gpu)
    assert states(node)["0:0"][0] is None
    assert [each["event"] for each in node.events("--device", "0")] == ["drained", "undrained"]


@pytest.mark.parametrize(
    "words", [("drain", "0"), ("reserve", "0", "--for", "team-a")], ids=["drain", "reserve"]
)
def test_after_that_no_start_that_is_under_way_gets_it(
    node: Node, bundles: Bundles, words: tuple[str, ...]
) -> None:
    node.sim("1xT4")
    made = [bundles("XPU_MEM=1G", args=SLEEP) for _ in range(8)]
    starts = node.create_all(made)
    node.xpu(*words)
    then = {grant.container_id for grant in node.grants()}
    for start in starts:
        start.wait(60)
    assert {grant.container_id for grant in node.grants()} <= then


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("two\nlines\x1b[31m", "two lines [31m"),
        ("x" * 1000, "x" * 200),
        ("  ", ""),
        ("Lüfter \u202e", "Lüfter"),
    ],
)
def test_a_reason_is_one_short_line(node: Node, reason: str, shown: str) -> None:
    node.sim("1xT4")
    node.xpu("drain", "0", "--reason", reason)
    assert states(node)[0][0] == shown
    assert "\x1b" not in node.xpu("events").stdout


def test_an_impossible_drain_says_why_and_changes_nothing(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    done = node.xpu("drain", "0", "7", check=False)
    assert done.returncode == 1
    assert "'7', which is not on this node" in done.stderr and "xpu devices" in done.stderr
    assert states(node) == {0: (None, 0), 1: (None, 0)}
    state = node.run_dir / "state"
    state.mkdir()
    (state / "drained").write_text("")
    told = refused(node, bundles("XPU_MEM=1G"))
    assert "the drained and reserved devices are not known" in told and str(state / "drained") in told
    (state / "drained").unlink()
    node.xpu("drain", "1")
    (state / "drained" / ".left-by-a-kill").write_text("")
    assert states(node) == {0: (None, 0), 1: ("", 0)}
    assert node.run(bundles("XPU_MEM=1G", args=["true"])).returncode == 0


def test_it_works_with_a_mistake_in_the_configuration_and_tells_of_a_missing_driver(node: Node) -> None:
    node.sim("2xT4")
    node.configure("metrics: {listen: 9402}")
    done = node.xpu("drain", "0")
    assert "metrics.listen" in done.stderr and done.stderr.endswith("the defaults are used\n")
    node.xpu("undrain", "0")
    node.configure("")
    uuid = node.json("devices")[0]["uuid"]
    node.xpu("drain", uuid[:12])
    node.xpu("sim", "down")
    told = node.xpu("drain", "1", check=False).stderr
    assert "'1', and this node has no devices now (no NVIDIA driver found" in told
    assert uuid in node.xpu("undrain", uuid[:12]).stdout


def test_a_drain_without_an_event_is_reported(node: Node) -> None:
    node.sim("2xT4")
    uuid = node.json("devices")[1]["uuid"]
    ledger = node.run_dir / "ledger.db"
    ledger.rename(node.run_dir / "kept")
    ledger.mkdir()
    for command, state in (("drain", "drained"), ("undrain", "in service again")):
        done = node.xpu(command, uuid, check=False)
        assert done.returncode == 1
        assert f"xpu: {uuid} is {state}, but no event could be written: " in done.stderr
        assert (node.run_dir / "state" / "drained" / uuid).exists() == (command == "drain")
    ledger.rmdir()


def test_several_at_once_are_each_taken_once_and_all_or_none(node: Node) -> None:
    node.sim("2xT4")
    assert node.xpu("drain", "0", "0").stdout.count("is drained") == 1
    done = node.xpu("undrain", "0", "1", check=False)
    assert done.returncode == 1 and "1 is not drained" in done.stderr
    assert node.json("devices")[0]["drained"] is not None
    assert node.xpu("undrain", "0", "0").returncode == 0
    assert node.json("devices")[0]["drained"] is None
