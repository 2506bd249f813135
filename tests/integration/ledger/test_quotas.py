"""`policy.quotas`: common limits of containers, by the engine's facts about the asking user."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..conftest import SLEEP, Bundles, Node
from ..findings import assert_fine
from ..inside import privileged
from ..refusals import refused

Change = Callable[[dict[str, Any]], None]
TEAM = "name: a, match: {annotation: example.com/team, value: a}"


def of_team(name: str, *changes: Change) -> Change:
    def change(spec: dict[str, Any]) -> None:
        spec["annotations"] = {"example.com/team": name}
        for each in changes:
            each(spec)

    return change


def in_user_namespace(spec: dict[str, Any]) -> None:
    spec["linux"]["namespaces"].append({"type": "user"})
    for kind in ("uidMappings", "gidMappings"):
        spec["linux"][kind] = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]


def quotas(node: Node, *each: str, more: str = "") -> None:
    node.configure(f"{more}\npolicy: {{quotas: [{', '.join(f'{{{quota}}}' for quota in each)}]}}\n")


def counted(node: Node, *words: str) -> str:
    """The granted part of the one quota that such a request counts to."""
    status, told = node.explained("-e", "XPU_MEM=1M", "-e", "XPU_CORES=5", *words)
    assert status == 0, told
    found: list[str] = [note for note in told["notes"] if note.startswith("quota ")]
    assert len(found) == 1
    return found[0].partition("): ")[2].removesuffix(" granted before this")


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_containers_of_a_quota_get_no_more_than_it_allows(node: Node, bundles: Bundles, mode: str) -> None:
    quotas(node, f"{TEAM}, max_slices: 3, max_memory: 5G, max_cores: 150", more=f"mode: {mode}")
    node.sim("2xT4")
    first = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP, change=of_team("a")))
    told = refused(node, bundles("XPU_MEM=2G", "XPU_CORES=5", change=of_team("a", privileged)))
    assert told == "refused: quota a (annotation example.com/team=a): 1G of 5G of memory left, 2G requested"
    told = refused(node, bundles("XPU_MEM=1M,1M,1M", "XPU_COUNT=3", change=of_team("a")))
    assert "3 devices are requested" in told  # the node's own lack comes first
    told = refused(node, bundles("XPU_MEM=1M", "XPU_COUNT=2", change=of_team("a")))
    assert told.endswith(": 120% of 150% of cores left, 200% requested (no XPU_CORES is 100%)")
    node.start(bundles("XPU_MEM=512M", "XPU_COUNT=2", "XPU_CORES=5", args=SLEEP, change=of_team("a")))
    told = refused(node, bundles("XPU_MEM=1G", "XPU_CORES=5", change=of_team("a")))
    assert "0 of 3 slices left, 1 requested and 0M of 5G of memory left, 1G requested" in told
    node.start(bundles("XPU_MEM=4G", args=SLEEP))  # without the annotation, or with another's
    node.start(bundles("XPU_MEM=4G", args=SLEEP, change=of_team("b")))
    node.remove(first)
    node.start(bundles("XPU_MEM=4G", "XPU_CORES=50", args=SLEEP, change=of_team("a")))
    reasons = [each["reason"] for each in node.events() if each["event"] == "refused"]
    assert "refused: quota a (annotation example.com/team=a): 1G of 5G" in reasons[0]
    assert_fine(node, "ledger")


def test_fewer_devices_are_offered_as_far_as_they_are_within_the_quota(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    node.start(bundles("XPU_MEM=15G", args=SLEEP))
    for most, offered in (("6GiB", None), ("15GiB", {"XPU_MEM": "8G", "XPU_VISIBLE_DEVICES": "1"})):
        quotas(node, f"{TEAM}, max_memory: {most}")
        words = ("-e", "XPU_VISIBLE_DEVICES=all", "-e", "XPU_MEM=8G")
        status, told = node.explained("--annotation", "example.com/team=a", *words)
        assert (status, told["refusal"]["nearest"]) == (3, offered)


def test_explain_tells_what_a_request_counts_to_and_why_not(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    for most, nearest in (("6GiB", None), ("15GiB", {"XPU_MEM": "15G"})):
        quotas(node, f"{TEAM}, max_memory: {most}")
        status, told = node.explained("--annotation", "example.com/team=a", "-e", "XPU_MEM=16G")
        assert (status, told["refusal"]["nearest"]) == (3, nearest)  # it is within the quota too
    quotas(
        node,
        f"{TEAM}, max_slices: 3, max_memory: 5G, max_cores: 150",
        "name: b, match: {user_namespace: true}, max_slices: 1",
    )
    assert (
        counted(node, "--annotation", "example.com/team=a")
        == "0 of 3 slices, 0M of 5G of memory, 0% of 150% of cores"
    )
    node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP, change=of_team("a")))
    (grant,) = node.grants()
    assert (
        counted(node, "--annotation", "example.com/team=a")
        == "1 of 3 slices, 4G of 5G of memory, 30% of 150% of cores"
    )
    node.xpu("set", grant.container_id, "--mem", "6G", "--cores", "40")  # the operator's word
    status, told = node.explained("-e", "XPU_MEM=1M", "--annotation", "example.com/team=a")
    assert (status, told["refusal"]["code"]) == (3, "over-quota")
    assert "0M of 5G of memory left, 1M requested" in told["refusal"]["message"]
    for other in ("team=a", "example.com/team=b", "example.com/team="):
        told = node.explained("-e", "XPU_MEM=1M", "--annotation", other)[1]
        assert any(note.startswith("no quota of policy.quotas matches") for note in told["notes"])
    assert counted(node, str(bundles(change=in_user_namespace))) == "0 of 1 slices"
    assert node.xpu("explain", "--annotation", "team", check=False).returncode == 2


def test_a_running_container_tells_its_quotas_and_how_much_of_them_is_granted(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4")
    other = "name: b, match: {annotation: example.com/team, value: b}, max_cores: 200"
    quotas(node, f"{TEAM}, max_slices: 3, max_memory: 5G", other)
    one, two, free = (
        node.start(bundles("XPU_MEM=1G", "XPU_CORES=10", args=SLEEP, change=change))
        for change in (of_team("a"), of_team("a"), None)
    )
    (grant,) = node.json("inspect", one)["grants"]
    expected = {"name": "a", "who": "annotation example.com/team=a", "max_slices": 3, "max_cores": None}
    expected |= {"slices": 2, "memory_bytes": 2 << 30, "max_memory_bytes": 5 << 30, "cores": 20}
    assert grant["quotas"] == [expected]
    line = "quota      a (annotation example.com/team=a): 2 of 3 slices, 2G of 5G of memory granted"
    assert line in node.xpu("inspect", one).stdout.splitlines()
    assert node.json("inspect", free)["grants"][0]["quotas"] == []
    assert "quota" not in node.xpu("inspect", free).stdout
    told = node.xpu("metrics").stdout.splitlines()
    for name, value in (("slices", 2), ("max_slices", 3), ("cores_granted_ratio", 0.2)):
        assert f'xpu_quota_{name}{{quota="a"}} {float(value)}' in told
    assert 'xpu_quota_slices{quota="b"} 0.0' in told and 'xpu_quota_max_cores_ratio{quota="b"} 2.0' in told
    assert not any(line.startswith('xpu_quota_max_cores_ratio{quota="a"}') for line in told)
    quotas(node, other)  # its containers still count to it if it comes back
    assert "quota      a: not in the configuration any more" in node.xpu("inspect", two).stdout.splitlines()


def test_of_many_starts_at_once_no_more_are_granted(node: Node, bundles: Bundles) -> None:
    quotas(node, f"{TEAM}, max_memory: 5G")
    node.sim("2xT4")
    made = [bundles("XPU_MEM=1G", args=SLEEP, change=of_team("a")) for _ in range(12)]
    starts = node.create_all(made)
    done = [start.wait(60) for start in starts]
    assert len(node.grants()) == done.count(0) == 5


@pytest.mark.parametrize(
    ("match", "counts"), [("true", True), ("100000", True), ("100001", False), ("0", False)]
)
def test_a_user_namespace_counts_by_the_uid_of_its_root(
    node: Node, bundles: Bundles, match: str, counts: bool
) -> None:
    quotas(node, f"name: u, match: {{user_namespace: {match}}}, max_slices: 1")
    node.sim("1xT4")
    bundle = bundles("XPU_MEM=1G", args=SLEEP, change=in_user_namespace)
    for folder in (node.folder, bundle, bundle / "rootfs"):
        folder.chmod(0o755)
    node.start(bundle)
    node.start(bundles("XPU_MEM=1G", args=SLEEP))
    other = bundles("XPU_MEM=1G", change=in_user_namespace)
    assert node.explained(str(other))[0] == (3 if counts else 0)


def test_a_container_that_died_without_notice_no_longer_counts(node: Node, bundles: Bundles) -> None:
    quotas(node, f"{TEAM}, max_slices: 1")
    node.sim("1xT4")
    node.start(bundles("XPU_MEM=1G", args=SLEEP, change=of_team("a")))
    (grant,) = node.grants()
    cgroup = Path(grant.cgroup)
    os.kill(grant.pid, signal.SIGKILL)
    while "populated 0" not in (cgroup / "cgroup.events").read_text():
        pass  # the test's own time limit ends this
    node.start(bundles("XPU_MEM=1G", args=SLEEP, change=of_team("a")))
    assert "0 of 1 slices left" in refused(node, bundles("XPU_MEM=1G", change=of_team("a")))


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_a_ledger_that_is_lost_knows_the_quotas_again(node: Node, bundles: Bundles, mode: str) -> None:
    quotas(node, f"{TEAM}, max_slices: 1", more=f"mode: {mode}")
    node.sim("1xT4")
    node.start(bundles("XPU_MEM=1G", args=SLEEP, change=of_team("a")))
    node.start(bundles("XPU_MEM=1G", args=SLEEP))
    (node.run_dir / "ledger.db").unlink()
    assert "0 of 1 slices left" in refused(node, bundles("XPU_MEM=1G", change=of_team("a")))
    node.start(bundles("XPU_MEM=1G", args=SLEEP))
    assert len(node.grants()) == 3


def test_grants_and_releases_of_an_earlier_version_do_not_count(node: Node, bundles: Bundles) -> None:
    """It knows nothing of the table: it leaves rows behind, and writes none."""
    node.sim("1xT4")
    node.start(bundles("XPU_MEM=1G", args=SLEEP, change=of_team("a")))
    quotas(node, f"{TEAM}, max_slices: 2")
    annotation = ("--annotation", "example.com/team=a")
    assert counted(node, *annotation) == "0 of 2 slices"
    container = node.start(bundles("XPU_MEM=1G", args=SLEEP, change=of_team("a")))
    assert counted(node, *annotation) == "1 of 2 slices"
    (number,) = (each.id for each in node.grants() if each.container_id == container)
    node.change_ledger("DELETE FROM slices WHERE grant_id = ?", (number,))
    node.change_ledger("DELETE FROM grants WHERE id = ?", (number,))
    assert counted(node, *annotation) == "0 of 2 slices"
    node.start(bundles("XPU_MEM=1G", args=SLEEP, change=of_team("a")))
    assert counted(node, *annotation) == "1 of 2 slices"
    with sqlite3.connect(node.run_dir / "ledger.db") as db:
        assert db.execute("SELECT COUNT(*) FROM counted").fetchall() == [(1,)]
