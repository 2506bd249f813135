"""Places held for groups end with the lead, and with the process."""

from __future__ import annotations

import threading
from pathlib import Path

from support.kubernetes_objects import node, pod
from unit.kubernetes.replica import ControlPlane, Process, until
from unit.kubernetes.test_extender_groups import Asking, given, member, members, metric


def test_a_replica_that_does_not_lead_holds_nothing() -> None:
    asking, one = Asking(node("n1"), node("n2")), member("p", mem=16)
    asking.leads = False
    assert asking.fits(one, "n1", "n2") == ["n1", "n2"]
    assert asking.held() == 0


def test_held_places_end_with_the_lead(api: ControlPlane) -> None:
    pods = members(2, mem=10)
    api.create(node("n1", 2), *pods)
    cut_off = threading.Event()
    first = api.leader("first", cut_off)
    assert [first.fits(each) for each in pods] == [["n1"]] * 2
    assert metric(first, "held") == 2
    cut_off.set()
    second = api.candidate("second")
    until(lambda: second.election.is_leading, "the second leads")
    until(lambda: metric(first, "held") == 0, "the first has let go")
    # The binds come to the second, which has not been asked about them.
    assert [second.bind(each) for each in pods] == ["", ""]
    assert given(api, *pods) == [10, 10]


def test_an_extender_that_is_killed_between_filter_and_bind_gives_nothing_twice_and_holds_nothing(
    api: ControlPlane, tmp_path: Path
) -> None:
    pods, other = members(3, mem=10), pod("other", mem=10)
    api.create(node("n1", 3), *pods, other)
    one = Process(api, tmp_path)
    try:
        assert [one.fits(each) for each in pods] == [["n1"]] * 3
        assert one.fits(other) == []
        assert one.bind(pods[0]) == ""
        one.kill()
        one = Process(api, tmp_path)
        assert (metric(one, "held"), metric(one, "bound")) == (0, 1)
        # The held places are forgotten, so another pod may come before the group.
        assert one.fits(other) == ["n1"]
        assert one.bind(other) == ""
        assert [one.bind(each) for each in pods[1:]] == [
            "",
            "node n1: GPUs 0-2 each 6 GiB free, 10 GiB asked; the nearest request that fits now: "
            "yoyoworks.com/xpu-mem: 6",
        ]
        assert given(api, *pods, other) == [10, 10, 10]
        assert metric(one, "held") == 0
    finally:
        one.kill()
