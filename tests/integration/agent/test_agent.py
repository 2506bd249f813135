"""`xpu agent`: shares of a device's time between real containers' pages, and faults of the agent.

The containers are real. The test writes their pages instead of their programs, so that it can also lie; the
driver's samples are those of a program that keeps a simulated card busy.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from support.sharing_time import Bundles, Container, Make, Serve, until
from xpu_runtime.limits import pages

from ..conftest import SLEEP, Node
from ..findings import Finding, examine


def test_idle_time_is_lent_and_given_back(capped: Make, start_agent: Serve) -> None:
    owner, guest, bystander = capped(50, "burst"), capped(30, "burst"), capped(20)
    service = start_agent()
    with guest.waiting():
        until(lambda: guest.share == 100, "the guest has the card")
        assert owner.share == 50  # its first launches find its own cap
        began = time.monotonic()
        with owner.waiting():
            until(lambda: guest.share == 40, "the owner has its own again")
            # Rounds are 20 ms apart; the rest is this machine's.
            assert time.monotonic() - began < 1
            until(lambda: owner.share == 60, "what nobody wants is for both")
            assert bystander.round_and_share == (0, 0)  # fixed: always its cap
        until(lambda: guest.share == 100, "the owner wants nothing any more")
    assert service.end(signal.SIGTERM) == 0
    assert [each.round_and_share for each in (owner, guest, bystander)] == [(0, 0)] * 3


def test_weights_and_priorities(capped: Make, start_agent: Serve, node: Node) -> None:
    one, two, low = capped(20, "weight"), capped(60, "weight"), capped(20, "fixed low")
    start_agent()
    with one.waiting(), two.waiting():
        until(lambda: (one.share, two.share) == (25, 75), "shares in proportion")
        with low.waiting():
            until(lambda: low.share == 1, "low priority has the floor")
            until(lambda: one.share + two.share == 99, "which the others leave")
            with pages.OpenQuota(low.folder) as quota:
                quota.set_policy(0, "fixed", "high")
            until(lambda: low.share == 20, "a change is seen")
            until(lambda: (one.share, two.share) == (20, 60), "by the others as well")


def test_a_change_is_reported_while_no_container_works(capped: Make, start_agent: Serve, node: Node) -> None:
    one, two = capped(30, "burst"), capped(20, "weight low")
    service = start_agent()

    def told() -> list[float]:
        (device,) = service.status()["devices"]
        return [each["share"] for each in device["slices"]]

    until(lambda: told() == [30, 20], "their caps")
    node.xpu("set", one.id, "--cores", "60")
    node.xpu("set", two.id, "--cores", "10", "--priority", "high")
    until(lambda: told() == [60, 10], "their new caps")
    (device,) = node.json("top", "--interval", "0.1")["devices"]
    assert [each["cores_allowed_percent"] for each in device["containers"]] == [60, 10]
    with one.waiting():
        until(lambda: one.share == 100, "it is lent the rest")
    until(lambda: told() == [60, 10], "their caps again")


def agent_findings(node: Node) -> list[Finding]:
    return [each for each in examine(node)[0] if each["check"] == "agent"]


def test_that_it_is_missing_is_said_where_it_is_needed(capped: Make, start_agent: Serve, node: Node) -> None:
    fixed = capped(20)
    assert "agent" not in node.xpu("ps").stderr
    (finding,) = agent_findings(node)
    assert finding["state"] == "ok" and "no container needs it: starts take longer" in finding["text"]
    burst = capped(40, "burst")
    (finding,) = agent_findings(node)
    assert finding["state"] == "warning"
    assert f"caps alone for {burst.id[:12]}" in finding["text"] and fixed.share == 0
    assert "xpu-agent" in (finding["todo"] or "")
    assert "no agent runs" in node.xpu("ps").stderr
    start_agent()
    (finding,) = agent_findings(node)
    assert finding["state"] == "ok" and "2 slices" in finding["text"]
    assert "agent" not in node.xpu("ps").stderr


def test_a_killed_agent_loses_nothing_and_the_next_goes_on(capped: Make, start_agent: Serve) -> None:
    one, two = capped(40, "burst"), capped(60, "burst")
    service = start_agent()
    with one.waiting():
        until(lambda: one.share == 100, "it has the card")
        service.end(signal.SIGKILL)
        number = one.round
        assert one.share == 100 and number > 0
        with two.waiting():
            # The number stands still: the container takes its cap from here on, as the pacer's tests show.
            time.sleep(0.3)
            assert one.round == number
            assert pages.quota(one.folder).valid
            start_agent()
            until(lambda: one.round > number and one.share == 40, "the next agent goes on")


def test_an_agent_that_hangs_is_a_problem_for_the_doctor(
    capped: Make, start_agent: Serve, node: Node
) -> None:
    service = start_agent()
    capped(30, "burst")
    service.process.send_signal(signal.SIGSTOP)
    try:
        (finding,) = agent_findings(node)
    finally:
        service.process.send_signal(signal.SIGCONT)
    assert finding["state"] == "problem" and "does not answer on" in finding["text"]
    assert f"(process {service.process.pid} (" in finding["text"]


def test_a_configuration_that_the_agent_has_not_read_is_told(
    node: Node, capped: Make, start_agent: Serve
) -> None:
    start_agent()
    (finding,) = agent_findings(node)
    assert finding["state"] == "ok"
    node.configure("metrics: {listen: '127.0.0.1:9402'}\n")
    changed, rest = agent_findings(node)
    assert changed["state"] == "warning" and "metrics.listen: changed since" in changed["text"]
    assert rest["state"] == "ok"
    node.configure("nonsense: 1\n")  # a new agent's configuration would differ
    (finding,) = agent_findings(node)
    assert finding["state"] == "ok"


def test_a_second_agent_is_refused_and_changes_nothing(capped: Make, start_agent: Serve, node: Node) -> None:
    one = capped(40, "burst")
    service = start_agent()
    refused = node.xpu("agent", check=False)
    assert refused.returncode == 1
    assert "another agent runs already" in refused.stderr
    with one.waiting():
        until(lambda: one.share == 100, "the first goes on")
    assert service.status()["pid"] == service.process.pid
    service.end(signal.SIGKILL)
    # The killed agent's leftovers do not hinder the next one.
    after = start_agent()
    until(lambda: after.status() is not None, "it answers")
    assert after.status()["who"] == "xpu agent"


def test_settings_that_need_the_agent_are_explained_with_it_and_without(
    node: Node, start_agent: Serve
) -> None:
    node.sim("1xT4-R580")
    missing = "no agent runs: burst and weight hold as fixed, and priorities mean nothing"

    def notes(*words: str) -> str:
        variables = [part for word in ("XPU_MEM=1G", *words) for part in ("-e", word)]
        return str(node.json("explain", *variables)["notes"])

    for asked in ("XPU_SCHED=burst", "XPU_SCHED=weight", "XPU_PRIORITY=low"):
        assert missing in notes("XPU_CORES=30", asked)
    assert missing not in notes("XPU_CORES=30") + notes()
    start_agent()
    assert missing not in notes("XPU_CORES=30", "XPU_SCHED=burst")


def test_a_run_folder_too_deep_for_its_socket_is_said(node: Node) -> None:
    deep = node.folder / ("d" * 100)
    node.environ["XPU_RUN_DIR"] = str(deep)
    done = node.xpu("agent", check=False)
    assert done.returncode == 1
    assert f"the path of the agent's socket {deep}/agent.sock has " in done.stderr
    assert "Linux takes 107: name a shorter folder in XPU_RUN_DIR" in done.stderr


def test_containers_come_and_go(capped: Make, start_agent: Serve, node: Node) -> None:
    service = start_agent()
    assert service.status()["devices"] == []
    one = capped(40, "burst")
    with one.waiting():
        until(lambda: one.share == 100, "a new one is seen")
        two = capped(60, "burst")
        with two.waiting():
            until(lambda: two.share == 60 and one.share == 40, "and another")
        (device,) = service.status()["devices"]
        assert [each["container_id"] for each in device["slices"]] == [one.id, two.id]
    folder = one.folder
    for each in (one, two):
        node.remove(each.id)
    until(lambda: service.status()["devices"] == [], "both are gone")
    held = [os.readlink(link) for link in Path(f"/proc/{service.process.pid}/fd").iterdir()]
    assert not [path for path in held if folder in path]


def test_a_container_that_cuts_its_page_or_writes_nonsense_disturbs_nobody(
    capped: Make, start_agent: Serve
) -> None:
    vandal, other = capped(50, "burst"), capped(50, "burst")
    service = start_agent()
    with other.waiting():
        until(lambda: other.share == 100, "it has the card")
        vandal.write((1 << 64) - 1, (1 << 64) - 1)
        until(lambda: other.share == 50, "that was a sign of wanting")
        os.truncate(os.path.join(vandal.folder, pages.USAGE), 0)
        until(lambda: other.share == 100, "it launches nothing any more")
        assert vandal.share == 50
    assert service.process.poll() is None


def test_a_quota_page_that_root_cuts_ends_nothing_and_is_told_once(capped: Make, start_agent: Serve) -> None:
    cut, other = capped(50, "burst"), capped(50, "burst")
    service = start_agent()
    with cut.waiting(), other.waiting():
        until(lambda: (cut.share, other.share) == (50, 50), "both have their caps")
        path = os.path.join(cut.folder, pages.QUOTA)
        os.truncate(path, 1000)
        until(lambda: other.share == 100, "it goes on, for the others")
        until(lambda: f"{path} is cut off: container {cut.id} " in service.log, "it says so")
    assert service.process.poll() is None
    assert service.log.count("is cut off") == 1


def test_a_container_that_goes_round_the_pacer_and_lies_in_its_page_is_told_and_given_nothing(
    capped: Make, start_agent: Serve, node: Node, with_load: Bundles
) -> None:
    capped(50)  # brings the card up
    # At its start a library of its own would be refused, or replaced by ours.
    command = "ln -s /usr/lib/xpu/libcuda.real /tmp/libcuda.so.1 && LD_LIBRARY_PATH=/tmp exec "
    command += "/load/share-load async kernel=5ms seconds=600 log=/log"
    liar = Container(node, with_load, 30, "burst", args=["sh", "-c", command])
    service = start_agent()
    with liar.lying():
        until(lambda: "is held more strictly" in service.log, "it is found out", 30)
        until(lambda: liar.round > 0 and liar.share == 0, "it is stopped until it is at its cap")
        (device,) = service.status()["devices"]
        assert device["compared"]
        (told,) = [each for each in device["slices"] if each["container_id"] == liar.id]
        assert told["compared"] is True
        assert "more than its cap of 30%" in told["held_strictly"]
        assert told["share"] == 0
        assert f"{liar.id} is held more strictly" in node.xpu("ps").stderr
        until(lambda: " held " in node.xpu("events", "--container", liar.id).stdout, "it is an event")
        assert agent_findings(node)[0]["state"] == "warning"
        number = liar.round
        until(lambda: liar.round > number, "what holds is renewed")
    liar.close()


def test_device_time_of_the_mps_server_is_not_compared(
    node: Node, bundles: Bundles, start_agent: Serve
) -> None:
    node.sim("1xT4-R580")
    container = node.start(bundles("XPU_ENFORCE=mps", "XPU_CORES=30", args=SLEEP))
    service = start_agent()
    until(lambda: service.status()["devices"][0]["compared"], "the driver has answered", 30)
    (told,) = service.status()["devices"][0]["slices"]
    assert (told["container_id"], told["compared"]) == (container, False)


def test_an_agent_whose_run_folder_was_removed_ends_and_takes_nothing_from_the_next(
    node: Node, start_agent: Serve
) -> None:
    node.sim("1xT4")
    first = start_agent()
    for each in node.run_dir.iterdir():
        if each.name != "sim" and not each.is_dir():
            each.unlink()
    second = start_agent()
    assert first.process.wait(20) == 1
    assert "is not the file that this agent locked" in first.log
    sockets = [node.run_dir / name for name in ("agent.sock", "start.sock", "metrics.sock")]
    until(lambda: all(each.exists() for each in sockets), "the second one has its own")
    assert second.process.poll() is None
    assert node.json("top", "--interval", "0.1")["agent_runs"] is True
