"""`xpu events`: grants, refusals with their reasons, and releases, by every way in which a container ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from datetime import datetime

import pytest

from support import GIB
from support.sharing_time import until

from ..conftest import SLEEP, Bundles, Node
from ..refusals import refused


def kinds(node: Node, *options: str) -> list[str]:
    return [each["event"] for each in node.events(*options)]


@pytest.mark.parametrize("mode", ["hook", "spec"])
def test_all_that_happens_to_a_slice_is_told_in_its_order(node: Node, bundles: Bundles, mode: str) -> None:
    node.configure(f"mode: {mode}")
    node.sim("2xT4-R580")
    assert node.events() == []
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    node.xpu("set", container, "--mem", "6G")
    too_much = bundles("XPU_MEM=12G", "XPU_VISIBLE_DEVICES=0")
    why = refused(node, too_much)
    wrong = bundles("XPU_MEM=4")
    refused(node, wrong)
    node.remove(container)
    found = node.events()
    names = [(each["event"], each["container_id"]) for each in found]
    assert names == [
        ("granted", container),
        ("resized", container),
        ("refused", too_much.name),
        ("refused", wrong.name),
        ("released", container),
    ]
    granted, resized, refusal, _, released = found
    (device,) = granted["devices"]
    assert (device["index"], device["memory_bytes"], device["cores"]) == (0, 4 * GIB, 30)
    assert resized["devices"][0]["memory_bytes"] == released["devices"][0]["memory_bytes"] == 6 * GIB
    assert refusal["reason"] == why
    assert [each["id"] for each in found] == sorted(each["id"] for each in found)
    assert all(abs(time.time() - datetime.fromisoformat(each["time"]).timestamp()) < 120 for each in found)


def test_how_time_is_shared_is_an_event_where_it_changes(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    container = node.start(bundles("XPU_MEM=4G", "XPU_CORES=30", args=SLEEP))
    for words in (["--sched", "burst"], ["--sched", "burst"], ["--priority", "high", "--cores", "40"]):
        node.xpu("set", container, *words)
    found = [(each["devices"][0]["cores"], each["reason"]) for each in node.events()]
    assert found == [
        (30, None),
        (30, "GPU 0: shared as burst, at normal priority"),
        (40, None),
        (40, "GPU 0: shared as burst, at high priority"),
    ]
    assert kinds(node) == ["granted", *["resized"] * 3]


def test_a_container_that_dies_without_notice_is_reaped_and_one_that_could_not_start_failed(
    node: Node, bundles: Bundles
) -> None:
    node.sim("1xT4-R580")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    (grant,) = node.grants()
    os.kill(grant.pid, signal.SIGKILL)
    until(lambda: "gave back" in node.xpu("gc").stdout, "it has ended")
    assert kinds(node, "--container", container)[-1] == "reaped"
    # If the slices' folder cannot be written, the container does not start, and its grant is given back.
    (node.run_dir / "slices").rename(node.run_dir / "before")
    (node.run_dir / "slices").write_text("")
    broken = bundles("XPU_MEM=4G")
    why = refused(node, broken)
    found = node.events("--container", broken.name)
    assert [each["event"] for each in found][-1] == "failed" and found[-1]["reason"] == why
    assert {each["event"] for each in found} <= {"granted", "released", "failed"}
    assert node.grants() == []


def test_events_of_drains_and_events_of_one_device(node: Node, bundles: Bundles) -> None:
    node.sim("2xT4")
    node.xpu("drain", "1", "--reason", "fan")
    container = node.start(bundles("XPU_MEM=4G", args=SLEEP))
    node.xpu("undrain", "1")
    uuids = [each["uuid"] for each in node.json("devices")]
    assert kinds(node, "--device", uuids[1]) == kinds(node, "--device", "1") == ["drained", "undrained"]
    assert kinds(node, "--device", "0") == kinds(node, "--container", container[:8]) == ["granted"]
    assert node.events("--device", uuids[1][:12])[0]["reason"] == "fan"
    # Two characters are no beginning of an id: they may be another container's name.
    for missing in (("--device", "7"), ("--container", "nosuch"), ("--container", container[:2])):
        assert (
            f"xpu: there is no event of {missing[0][2:]} {missing[1]}" in node.xpu("events", *missing).stderr
        )
    assert kinds(node, "--since", "0s") == [] and len(kinds(node, "--since", "1h")) == 3
    told = node.xpu("events").stdout
    assert f"granted         {container[:12]}" in told and "GPU 0: 4G" in told and "; fan" in told
    for wrong in ("1", "x", "-1h", "1 h", "9999999999d"):
        done = node.xpu("events", "--since", wrong, check=False)
        assert done.returncode == 2 and "90s, 30m, 1h or 2d" in done.stderr


def test_follow_tells_what_happens_from_then_on(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    node.xpu("drain", "0")
    command = [str(node.prefix / "bin" / "xpu"), "events", "--follow", "--json"]
    with subprocess.Popen(
        command,
        env=node.environ,
        stdout=subprocess.PIPE,
        text=True,
        # A program that a shell starts in the background ignores SIGINT, and these tests' children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as follower:
        assert follower.stdout is not None
        guard = threading.Timer(60, follower.kill)
        guard.start()
        try:
            assert json.loads(follower.stdout.readline())["event"] == "drained"
            refused(node, bundles("XPU_MEM=4G"))
            assert json.loads(follower.stdout.readline())["event"] == "refused"
            (node.run_dir / "ledger.db").unlink()
            node.xpu("undrain", "0")
            assert json.loads(follower.stdout.readline())["event"] == "undrained"
            follower.send_signal(signal.SIGINT)
            assert follower.wait(10) == 0
        finally:
            guard.cancel()
            follower.kill()
