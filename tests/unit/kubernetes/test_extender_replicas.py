"""Replicas of the extender: leading, passing on, taking over."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import Any

import pytest

from support.kubernetes_objects import Json, node, pod
from support.scheduling_api import ApiServer
from unit.kubernetes.replica import PATIENCE_S, QUICK, Alone, ControlPlane, until
from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.kubernetes.extender import informer
from xpu_runtime.kubernetes.extender.binding import ASSUMED_S, BIND_S
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.forwarding import Forwarder, LeaderUnreachable
from xpu_runtime.kubernetes.extender.leader_election import LeaderElection, Times
from xpu_runtime.kubernetes.threads import Threads


class Behind(Api):
    """A client whose watch of pods brings nothing while `held` is set, and breaks off where `broken` is."""

    def __init__(self, api: ApiServer) -> None:
        super().__init__(api.client().access)
        self.held, self.broken = threading.Event(), threading.Event()

    def watch(self, *args: Any, **kwargs: Any) -> Generator[Json, None, None]:
        if self.broken.is_set():
            raise ApiError("the watch is refused")
        for event in super().watch(*args, **kwargs):
            while self.held.is_set():
                time.sleep(0.005)
            if self.broken.is_set():
                raise ApiError("the watch broke off")
            yield event


@pytest.mark.parametrize("tls", [False, True])
def test_a_replica_that_does_not_lead_forwards_to_the_leader(tls: bool, api: ControlPlane) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1"), asking)
    first = api.leader("first", tls=tls)
    second = api.candidate("second", tls=tls)
    until(lambda: second.election.leader_url, "the second knows who leads")
    assert not second.election.is_leading
    assert second.bind(asking) == ""
    assert second.fits(pod("q", mem=13)) == []
    assert 'verb="bind"} 1.0' in first.status("/metrics")[1]
    assert 'xpu_extender_passed_on_total{answered="yes"} 2.0' in second.status("/metrics")[1]


def test_a_bind_that_is_passed_on_to_one_that_does_not_lead_is_not_refused_by_it(api: ControlPlane) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1"), asking)
    api.leader("first")
    second = api.candidate("second")

    with pytest.raises(LeaderUnreachable, match="status 503"):
        Forwarder(None).ask(f"http://127.0.0.1:{second.port}", "/bind", b"{}")

    assert second.bind(asking) == ""


def test_a_leader_that_ends_gives_the_lease_back_and_another_goes_on(api: ControlPlane) -> None:
    pods = [pod("p", mem=10), pod("q", mem=10)]
    api.create(node("n1"), *pods)
    first = api.leader("first")
    second = api.candidate("second")
    assert first.bind(pods[0]) == ""
    first.extender.stop()
    assert not first.election.is_leading
    assert api.get("leases", "xpu-extender")["spec"]["holderIdentity"] == ""
    until(lambda: second.election.is_leading, "the second leads")
    assert "asked" in second.bind(pods[1])


def test_a_missing_lease_is_reported_with_a_remedy_and_taken_when_it_is_back(
    api: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1"), asking)
    api.remove("leases", "xpu-extender")
    one = api.candidate("first", is_awaited=False)
    said = ""

    def is_told() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "apply the manifests again, it is one of them" in said

    until(is_told, "it says what to do")
    assert not one.election.is_leading
    assert ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases") not in api.requests
    api.set("leases", "xpu-extender", {})
    until(lambda: one.election.is_leading, "it leads")
    assert one.bind(asking) == ""


class LosesAnAnswer(Api):
    """A client whose first change of the Lease while `loses` is set is carried out, and not answered."""

    loses = False

    def put(self, *args: Any, **kwargs: Any) -> Any:
        found = super().put(*args, **kwargs)
        if self.loses:
            self.loses = False
            raise ApiError("the answer was lost")
        return found


def test_a_replica_that_gets_the_lease_without_an_answer_reads_others_binds(api: ControlPlane) -> None:
    client, read = LosesAnAnswer(api.client().access), list[int]()
    one = LeaderElection(client, "kube-system", "xpu-extender", "one", "", print, QUICK)
    one.start(Threads("it", lambda: None), lambda: True, lambda: read.append(1))
    until(lambda: one.is_leading, "it leads")
    # Another leads, binds, and ends in order, between two looks: as if nobody had.
    with api.changed:
        client.loses = True
        api.get("leases", "xpu-extender")["spec"]["holderIdentity"] = ""
        one._until = time.monotonic() - 1
    until(lambda: not client.loses and one.is_leading, "it leads again")
    one.stop()
    assert len(read) == 2


def test_one_that_is_started_again_in_the_place_of_a_leader_that_was_killed_leads_at_once(
    api: ControlPlane,
) -> None:
    asking = pod("p", mem=4)
    lease = {"holderIdentity": "same", "leaseDurationSeconds": 600, "renewTime": "x"}
    api.create(node("n1"), asking)
    api.set("leases", "xpu-extender", {"metadata": {}, "spec": lease})
    assert api.candidate("same").bind(asking) == ""


def test_a_leader_that_cannot_renew_stops_before_another_takes_over(api: ControlPlane) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1"), asking)
    cut_off = threading.Event()
    first = api.leader("first", cut_off)
    cut_off.set()
    second = api.candidate("second")
    led_together = False

    def second_leads() -> bool:
        nonlocal led_together
        led = [each.election.is_leading for each in (first, second)]
        led_together |= all(led)
        return led[1]

    until(second_leads, "the second leads")
    assert not led_together
    cut_off.clear()
    until(lambda: first.election.leader_url, "the first knows who leads")
    assert first.bind(asking) == ""  # by the second
    assert "bound" in second.status("/metrics")[1]


def test_a_new_leader_knows_earlier_binds_even_if_its_watch_is_behind(api: ControlPlane) -> None:
    pods = [pod("p", mem=10), pod("q", mem=10)]
    api.create(node("n1"), *pods)
    behind = Behind(api)
    first = api.leader("first")
    second = api.candidate("second", asks=behind)
    behind.held.set()
    assert first.bind(pods[0]) == ""
    first.extender.stop()
    until(lambda: second.election.is_leading, "the second leads")
    assert "6 GiB free, 10 GiB asked" in second.bind(pods[1])
    behind.held.clear()


def test_a_replica_without_a_watch_is_not_ready_and_lets_another_lead(
    api: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1"), asking)
    behind = Behind(api)
    first = api.leader("first", asks=behind)
    second = api.candidate("second")
    assert not second.election.is_leading
    monkeypatch.setattr(informer, "BLIND_S", 0.1)
    behind.broken.set()
    api.create(pod("other"))  # an event, with which its watch breaks off
    until(lambda: second.election.is_leading, "the second leads")
    status, words = first.status("/readyz")
    assert status == 503
    assert "pods: the watch" in words
    assert second.bind(asking) == ""
    behind.broken.clear()
    until(lambda: first.is_ready, "the first knows again what happens")


def test_a_watch_that_cannot_go_on_ends_the_replica(
    api: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    api.create(node("n1"))
    one = api.replica(end=ended.set)
    monkeypatch.setattr(Cluster, "set_node", lambda *_: 1 / 0)
    api.create(node("n2"))
    assert ended.wait(PATIENCE_S)
    assert "division by zero" in str(one.extender.failed)
    assert one.status("/readyz")[0] == 503


class Losing(Alone):
    """An election that says so a given number of times, and then no longer."""

    left = 1_000_000

    @property
    def is_leading(self) -> bool:
        self.left -= 1
        return self.left >= 0


def test_a_replica_that_stops_leading_while_it_decides_binds_nothing_and_keeps_no_place(
    api: ControlPlane,
) -> None:
    asking = pod("p", mem=16)
    api.create(node("n1"), asking)
    # It leads when the request comes, and when it decides, and not any more when it is to bind.
    losing = Losing()
    one = api.replica(losing)
    losing.left = 2
    assert "does not lead any more" in one.bind(asking)
    assert api.bindings() == 0
    assert one.fits(pod("q", mem=16)) == ["n1"]


def test_without_the_leader_filters_are_answered_and_binds_are_refused(api: ControlPlane) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1"), asking)
    gone = {
        "metadata": {
            "name": "xpu-extender",
            "annotations": {"yoyoworks.com/xpu-extender": "http://127.0.0.1:9"},
        },
        "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 600, "renewTime": "x"},
    }
    api.set("leases", "xpu-extender", gone)
    one = api.candidate("second")
    assert one.election.leader_url  # it is ready once it knows who leads
    assert one.fits(asking) == ["n1"]
    assert "does not lead" in one.bind(asking)
    assert api.bindings() == 0


def test_a_bind_ends_before_another_replica_may_take_over() -> None:
    times = Times()
    assert times.renew + BIND_S < times.lease
    assert times.lease < ASSUMED_S
