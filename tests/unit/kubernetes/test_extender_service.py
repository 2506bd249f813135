"""A whole replica over HTTP, against an API server in memory: binds, failures at each moment, and
elections."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.kubernetes_objects import GIB, Json, device, node, pod
from support.scheduling_api import ApiServer, Refused
from unit.kubernetes.replica import (
    PATIENCE_S,
    QUICK,
    Electing,
    Replica,
    assigned,
    bindings,
    certificate,
    create,
    trusting,
    until,
)
from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.kubernetes.extender import following, in_flight
from xpu_runtime.kubernetes.extender.binding import ASSUMED_S, BIND_S
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.leading import Alone, Leadership, Times
from xpu_runtime.kubernetes.extender.passing_on import LeaderUnreachable, PassingOn
from xpu_runtime.kubernetes.threads import Threads
from xpu_runtime.request.assignment import ANNOTATION


def test_a_pod_is_bound_with_its_signed_assignment_by_one_request(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=4, cores=30)
    create(api, node("n1", 2), node("n2", 1), asking)
    one = replicas()
    assert one.fits(asking, "n1", "n2") == ["n1", "n2"]
    scores = one.ask("prioritize", {"Pod": asking, "NodeNames": ["n1", "n2"]})
    assert [each["Host"] for each in scores] == ["n1", "n2"]
    assert one.bind(asking) == ""
    (share,) = assigned(api, "p").containers["main"]
    assert (share.device_uuid, share.memory_bytes, share.cores) == (device("n1", 0)["uuid"], 4 * GIB, 30)
    assert api.asked == [("POST", "/api/v1/namespaces/default/pods/p/binding")]


def test_a_right_that_was_lost_is_one_line_of_the_log_though_watches_begin_again_and_again(
    api: ApiServer, replicas: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    events, begun = api.events, []

    def refused(kind: str, query: dict[str, str]) -> Iterator[Json]:
        if kind != "nodes":
            yield from events(kind, query)
            return
        begun.append(kind)
        yield {"type": "ERROR", "object": {"kind": "Status", "code": 403, "message": "nodes is forbidden"}}

    monkeypatch.setattr(api, "events", refused)
    create(api, node("n1"))
    one = replicas(wait=False)
    until(lambda: len(begun) > 3, "it was tried three times")

    why = "the API server refuses: nodes is forbidden (403)"
    assert [each for each in one.said if "nodes" in each] == [
        f"nodes cannot be followed: {why}; it is tried again"
    ]


def test_a_misspelt_label_of_nodes_is_said_once(api: ApiServer, replicas: Callable[..., Replica]) -> None:
    wrong, right = ({"yoyoworks.com/xpu.placement": value} for value in ("spraed", "spread"))
    create(api, node("n1", labels=wrong), node("n2", labels=wrong), node("n3", labels=right))
    one = replicas()
    create(api, node("n1", 2, labels=wrong))
    until(lambda: one.fits(pod("p", whole=2)) == ["n1"], "the change is seen")
    assert [each for each in one.said if "label" in each] == [
        "node n1: label yoyoworks.com/xpu.placement=spraed is unknown, and counts for nothing: did you mean "
        "spread?"
    ]


def test_another_unit_of_memory_is_said_once_of_each_node(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    create(api, *(node(name, memory_unit=256 << 20) for name in ("n1", "n2")), node("n3"))
    one = replicas()
    create(api, node("n1", 2, memory_unit=256 << 20), node("n3", 2))
    until(lambda: one.fits(pod("p", whole=2), "n1", "n3") == ["n3"], "the change is seen")
    said = [each for each in one.said if "memory_unit" in each]
    words = "is not used: kubernetes.memory_unit is 256 MiB there and 1 GiB for the extender: restart "
    assert [each[:8] for each in said] == ["node n1 ", "node n2 "]
    assert all(each[8:].startswith(words) for each in said)


def test_fifty_binds_at_once_give_nothing_twice(api: ApiServer, replicas: Callable[..., Replica]) -> None:
    pods = [pod(f"p{index}", mem=5, cores=30) for index in range(50)]
    create(api, node("n1", 2), node("n2", 2), *pods)
    one = replicas()
    with ThreadPoolExecutor(50) as pool:
        errors = list(pool.map(one.bind, pods, ["n1", "n2"] * 25))
    done = [asking["metadata"]["name"] for asking, error in zip(pods, errors) if not error]
    assert len(done) == 12
    assert all("asked" in error for error in errors if error)
    held: dict[str, int] = {}
    for name in done:
        (share,) = assigned(api, name).containers["main"]
        held[share.device_uuid] = held.get(share.device_uuid, 0) + (share.memory_bytes or 0)
    assert list(held.values()) == [15 * GIB] * 4


def test_a_question_waits_for_the_bind_of_the_pod_before(
    api: ApiServer, replicas: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "MOST_S", PATIENCE_S)
    before, after = pod("before", mem=10), pod("after", mem=10)
    create(api, node("n1"), before, after)
    one = replicas()
    assert one.fits(before) == ["n1"]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(one.fits, after)  # kube-scheduler asks before the bind has come
        assert one.bind(before) == ""
        assert asked.result() == []
    # Who asks again about the same pod waits for nobody.
    monkeypatch.setattr(in_flight, "MOST_S", 0.01)
    assert one.fits(pod("small", mem=1)) == ["n1"]
    assert one.fits(pod("other", mem=1)) == ["n1"]  # the bind of the one before does not come


def test_a_question_is_not_kept_waiting_by_ever_new_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MOST_S", 0.1)
    found, enough = in_flight.InFlight(), threading.Event()

    def begin() -> None:
        number = 0
        while not enough.wait(0.01):
            number += 1
            found.begin(str(number))

    others, asks = threading.Thread(target=begin), threading.Thread(target=found.wait, args=("p",))
    found.begin("0")
    others.start()
    asks.start()
    asks.join(PATIENCE_S)
    is_done = not asks.is_alive()
    enough.set()
    others.join()
    asks.join()
    assert is_done


def test_a_bind_that_is_repeated_is_done_once(api: ApiServer, replicas: Callable[..., Replica]) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1"), asking)
    one = replicas()
    assert one.bind(asking) == ""
    before = api.pod("p")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one.bind, [asking] * 8)) == [""] * 8
    assert api.pod("p") == before
    assert "bound to node n1 already" in one.bind(asking, "n2")


def test_another_pod_of_the_same_name_is_not_bound_in_its_place(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    old, new = pod("p", mem=4), pod("p", mem=8)
    create(api, node("n1"), new)
    one = replicas()
    assert one.bind(old) == "the pod was deleted, and another has its name now"
    assert "nodeName" not in api.pod("p")["spec"]
    # It is replaced between the decision and the request.
    api.before_binding = lambda name: create(api, pod("p", mem=2))
    assert "Precondition failed" in one.bind(new)
    assert one.fits(pod("q", mem=16)) == ["n1"]


def test_a_pod_that_the_watch_has_not_told_of_yet_is_asked_for(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    create(api, node("n1"))
    one = replicas()
    asking = pod("p", mem=4)
    api.kinds["pods"].by_name["p"] = {**asking, "metadata": {**asking["metadata"], "resourceVersion": "1"}}
    assert one.bind(asking, PodUID="") == ""
    assert assigned(api, "p").containers["main"][0].memory_bytes == 4 * GIB
    assert "404" in one.bind(pod("gone", mem=1))


def test_a_pod_without_our_resources_is_bound_as_it_is(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p")
    create(api, node("n1"), asking)
    assert replicas().bind(asking) == ""
    assert api.pod("p")["spec"]["nodeName"] == "n1"
    assert ANNOTATION not in api.pod("p")["metadata"]["annotations"]


def test_a_bind_that_the_api_refuses_leaves_the_place_free(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=16)
    create(api, node("n1"), asking)
    one = replicas()

    def refuse(name: str) -> None:
        raise Refused(403, "not allowed")

    api.before_binding = refuse
    assert "not allowed" in one.bind(asking)
    assert one.fits(pod("q", mem=16)) == ["n1"]


def test_an_answer_that_is_lost_is_looked_up(api: ApiServer, replicas: Callable[..., Replica]) -> None:
    asking = pod("p", mem=16)
    create(api, node("n1"), asking)
    one = replicas()

    def lose(name: str) -> None:
        raise ConnectionAbortedError

    api.after_binding = lose
    assert one.bind(asking) == ""
    assert assigned(api, "p").containers["main"][0].memory_bytes == 16 * GIB


def test_a_request_that_is_lost_keeps_its_place_until_it_is_known_what_became_of_it(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking, other = pod("p", mem=16), pod("q", mem=16)
    create(api, node("n1"), asking, other)
    one = replicas()

    def lose(name: str) -> None:
        raise ConnectionAbortedError

    api.before_binding = lose
    assert one.bind(asking)
    # It may still be carried out: its place is its own, for itself as well.
    assert one.fits(other) == []
    assert one.fits(asking) == ["n1"]
    api.before_binding = lambda name: None
    assert one.bind(asking) == ""
    assert assigned(api, "p").containers["main"][0].memory_bytes == 16 * GIB


def test_a_replica_that_starts_knows_all_that_was_given(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    pods = [pod(f"p{index}", mem=4) for index in range(8)]
    create(api, node("n1", 2), *pods)
    first = replicas()
    assert [first.bind(each) for each in pods] == [""] * 8
    first.extender.stop()
    second = replicas()
    assert second.fits(pod("q", mem=1)) == []
    api.delete("pods", "p0")
    until(lambda: second.fits(pod("q", mem=4)), "the place of a deleted pod is free")
    ended = api.pod("p1")
    api.set("pods", "p1", {**ended, "status": {"phase": "Succeeded"}})
    until(lambda: 'pods{state="bound"} 6.0' in second.status("/metrics")[1], "an ended pod counts no more")


@pytest.mark.parametrize("is_placed", [True, False])
@pytest.mark.parametrize("is_listed_again", [True, False])
def test_a_pod_that_its_author_makes_nonsense_of_holds_what_it_got_until_it_is_gone(
    api: ApiServer, replicas: Callable[..., Replica], is_placed: bool, is_listed_again: bool
) -> None:
    """Deleted by force, it has no last phase."""
    other, made = pod("q", mem=4), pod("p", whole=1)
    create(api, node("n1"), node("n2"), made)
    one = replicas()
    if is_placed:
        assert one.bind(made) == ""
    else:  # past the scheduler
        api.set("pods", "p", {**made, "spec": {**made["spec"], "nodeName": "n1"}})
    until(lambda: one.fits(other) == [], "it holds the card")
    bound = api.pod("p")
    nonsense = {**bound["metadata"], "annotations": {"yoyoworks.com/xpu-count": "x"}}
    api.set("pods", "p", {**bound, "metadata": nonsense})
    if is_listed_again:
        api.forget()
    later = pod("later", whole=1)
    api.set("pods", "later", {**later, "spec": {**later["spec"], "nodeName": "n2"}})
    until(lambda: one.fits(other, "n2") == [], "what came later is known")
    assert one.fits(other) == []
    api.delete("pods", "p")
    until(lambda: one.fits(other) == ["n1"], "the card is free")


def test_a_watch_that_has_lost_its_place_in_history_reads_all_again(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=16)
    create(api, node("n1"), asking)
    one = replicas()
    assert one.bind(asking) == ""
    until(lambda: 'pods{state="bound"} 1.0' in one.status("/metrics")[1], "the watch tells of the pod")
    with api.changed:
        api.delete("pods", "p")
        create(api, node("n2"))
        api.forget()
    until(lambda: one.fits(pod("q", mem=16), "n1", "n2") == ["n1", "n2"], "it has read all again")


def test_before_it_has_read_the_cluster_it_decides_nothing_and_is_not_ready(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=1)
    create(api, node("n1"), asking)
    page = api.page
    held = threading.Event()

    def refuse(kind: str, query: dict[str, str]) -> Json:
        if kind == "pods" and not held.is_set():
            raise Refused(503, "starting up")
        return page(kind, query)

    api.page = refuse  # type: ignore[method-assign]
    one = replicas(wait=False)
    until(lambda: "starting up" in one.status("/readyz")[1], "it says why it is not ready")
    assert one.status("/healthz") == (200, "ok\n")
    found = one.ask("filter", {"Pod": asking, "NodeNames": ["n1"]})
    assert "has not read nodes and pods yet" in found["Error"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.bind, asking)  # it waits for some seconds, and need not be tried again
        held.set()
        assert waiting.result() == ""


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"null",
        b"[]",
        b"\xff",
        b'"x"',
        b"{}",
        b'{"Pod": {"spec": 1}, "NodeNames": ["n1"]}',
        b'{"Pod": {}, "NodeNames": "n1"}',
        b"[" * 100_000,
    ],
)
def test_whatever_is_sent_is_answered_with_an_error_that_kube_scheduler_shows(
    body: bytes, api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    one = replicas()
    assert one.ask("filter", body)["Error"]
    assert one.ask("bind", body)["Error"]
    assert one.ask("prioritize", body) == []


def test_what_is_no_request_gets_no_answer_of_the_verbs(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    one = replicas()
    for method, path, headers, status in (
        ("GET", "/filter", {}, 404),
        ("POST", "/other", {"Content-Length": "2"}, 404),
        ("POST", "/filter", {"Content-Length": str(1 << 30)}, 413),
        # More than is borne beside the cluster, when it is read.
        ("POST", "/filter", {"Content-Length": str((8 << 20) + 1)}, 413),
        ("POST", "/filter", {"Content-Length": "x"}, 413),
        ("POST", "/filter", {"Transfer-Encoding": "chunked"}, 411),
        ("PUT", "/filter", {}, 405),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=PATIENCE_S)
        connection.putrequest(method, path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(b"{}" if headers.get("Content-Length") == "2" else None)
        assert connection.getresponse().status == status, (method, path, headers)
        connection.close()


def test_metrics_tell_what_was_asked_and_what_the_cluster_has(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1", 2), {"metadata": {"name": "bare"}}, asking)
    one = replicas()
    one.fits(asking, "n1", "bare")  # one of them does
    one.fits(pod("q", mem=17))
    one.ask("filter", b"{")
    assert one.bind(asking) == ""
    until(lambda: 'pods{state="bound"} 1.0' in one.status("/metrics")[1], "the watch tells of the pod")
    status, text = one.status("/metrics")
    assert status == 200
    for line in (
        'xpu_extender_request_seconds_count{result="ok",verb="filter"} 1.0',
        'xpu_extender_request_seconds_count{result="refused",verb="filter"} 1.0',
        'xpu_extender_request_seconds_count{result="error",verb="filter"} 1.0',
        'xpu_extender_request_seconds_count{result="ok",verb="bind"} 1.0',
        "xpu_extender_api_bind_seconds_count 1.0",
        'xpu_extender_nodes{serves="yes"} 1.0',
        'xpu_extender_nodes{serves="no"} 1.0',
        "xpu_extender_devices 2.0",
        "xpu_extender_memory_free_bytes 3.0064771072e+10",
        'xpu_extender_state{state="leads"} 1.0',
        'xpu_extender_state{state="follows_pods"} 1.0',
    ):
        assert line in text, text


def test_with_tls_only_clients_with_a_certificate_are_answered(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1"), asking)
    client = trusting(certificate="client.crt", key="client.key")
    one = replicas(certificate=certificate(), client=client)
    one.client = trusting()
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        one.bind(asking)
    one.client = None
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        one.bind(asking)
    one.client = client
    assert one.bind(asking) == ""


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
def test_who_does_not_lead_passes_on_to_the_one_that_does(
    tls: bool, api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1"), asking)
    electing = Electing(api, replicas, tls=tls)
    first = electing.make("first")
    until(lambda: electing.leaderships[0].is_leading, "the first leads")
    second = electing.make("second")
    until(lambda: electing.leaderships[1].leader_url, "the second knows who leads")
    assert not electing.leaderships[1].is_leading
    assert second.bind(asking) == ""
    assert second.fits(pod("q", mem=13)) == []
    assert 'verb="bind"} 1.0' in first.status("/metrics")[1]
    assert 'xpu_extender_passed_on_total{answered="yes"} 2.0' in second.status("/metrics")[1]


def test_a_bind_that_is_passed_on_to_one_that_does_not_lead_is_not_refused_by_it(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1"), asking)
    electing = Electing(api, replicas)
    electing.make("first")
    until(lambda: electing.leaderships[0].is_leading, "the first leads")
    second = electing.make("second")

    with pytest.raises(LeaderUnreachable, match="status 503"):
        PassingOn(None).ask(f"http://127.0.0.1:{second.port}", "/bind", b"{}")

    assert second.bind(asking) == ""


def test_a_leader_that_ends_gives_the_lease_back_and_another_goes_on(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    pods = [pod("p", mem=10), pod("q", mem=10)]
    create(api, node("n1"), *pods)
    electing = Electing(api, replicas)
    first = electing.make("first")
    until(lambda: electing.leaderships[0].is_leading, "the first leads")
    second = electing.make("second")
    assert first.bind(pods[0]) == ""
    first.extender.stop()
    assert not electing.leaderships[0].is_leading
    assert api.kinds["leases"].by_name["xpu-extender"]["spec"]["holderIdentity"] == ""
    until(lambda: electing.leaderships[1].is_leading, "the second leads")
    assert "asked" in second.bind(pods[1])


def test_a_lease_that_is_gone_is_told_with_what_to_do_and_taken_when_it_is_there_again(
    api: ApiServer, replicas: Callable[..., Replica], capsys: pytest.CaptureFixture[str]
) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1"), asking)
    api.delete("leases", "xpu-extender")
    electing = Electing(api, replicas, until_ready=False)
    one = electing.make("first")
    said = ""

    def is_told() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "apply the manifests again, it is one of them" in said

    until(is_told, "it says what to do")
    assert not electing.leaderships[0].is_leading
    assert ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases") not in api.asked
    api.set("leases", "xpu-extender", {})
    until(lambda: electing.leaderships[0].is_leading, "it leads")
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


def test_who_gets_the_lease_again_without_an_answer_reads_what_another_has_bound(api: ApiServer) -> None:
    client, read = LosesAnAnswer(api.client().access), list[int]()
    one = Leadership(client, "kube-system", "xpu-extender", "one", "", print, QUICK)
    one.start(Threads("it", lambda: None), lambda: True, lambda: read.append(1))
    until(lambda: one.is_leading, "it leads")
    # Another leads, binds, and ends in order, between two looks: as if nobody had.
    with api.changed:
        client.loses = True
        api.kinds["leases"].by_name["xpu-extender"]["spec"]["holderIdentity"] = ""
        one._until = time.monotonic() - 1
    until(lambda: not client.loses and one.is_leading, "it leads again")
    one.stop()
    assert len(read) == 2


def test_one_that_is_started_again_in_the_place_of_a_leader_that_was_killed_leads_at_once(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=4)
    lease = {"holderIdentity": "same", "leaseDurationSeconds": 600, "renewTime": "x"}
    create(api, node("n1"), asking)
    api.set("leases", "xpu-extender", {"metadata": {}, "spec": lease})
    electing = Electing(api, replicas)
    assert electing.make("same").bind(asking) == ""


def test_a_leader_that_cannot_renew_stops_before_another_takes_over(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1"), asking)
    electing = Electing(api, replicas)
    cut_off = threading.Event()
    first = electing.make("first", cut_off)
    until(lambda: electing.leaderships[0].is_leading, "the first leads")
    cut_off.set()
    second = electing.make("second")
    led_together = False

    def second_leads() -> bool:
        nonlocal led_together
        led = [each.is_leading for each in electing.leaderships]
        led_together |= all(led)
        return led[1]

    until(second_leads, "the second leads")
    assert not led_together
    cut_off.clear()
    until(lambda: electing.leaderships[0].leader_url, "the first knows who leads")
    assert first.bind(asking) == ""  # by the second
    assert "bound" in second.status("/metrics")[1]


def test_who_takes_over_knows_what_was_bound_though_its_watch_is_behind(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    pods = [pod("p", mem=10), pod("q", mem=10)]
    create(api, node("n1"), *pods)
    electing, behind = Electing(api, replicas), Behind(api)
    first = electing.make("first")
    until(lambda: electing.leaderships[0].is_leading, "the first leads")
    second = electing.make("second", asks=behind)
    behind.held.set()
    assert first.bind(pods[0]) == ""
    first.extender.stop()
    until(lambda: electing.leaderships[1].is_leading, "the second leads")
    assert "6 GiB free, 10 GiB asked" in second.bind(pods[1])
    behind.held.clear()


def test_who_does_not_know_what_happens_is_not_ready_and_lets_another_lead(
    api: ApiServer, replicas: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1"), asking)
    electing, behind = Electing(api, replicas), Behind(api)
    first = electing.make("first", asks=behind)
    until(lambda: electing.leaderships[0].is_leading, "the first leads")
    second = electing.make("second")
    assert not electing.leaderships[1].is_leading
    monkeypatch.setattr(following, "BLIND_S", 0.1)
    behind.broken.set()
    create(api, pod("other"))  # an event, with which its watch breaks off
    until(lambda: electing.leaderships[1].is_leading, "the second leads")
    status, words = first.status("/readyz")
    assert status == 503
    assert "pods: the watch" in words
    assert second.bind(asking) == ""
    behind.broken.clear()
    until(lambda: first.is_ready, "the first knows again what happens")


def test_a_watch_that_cannot_go_on_ends_the_replica(
    api: ApiServer, replicas: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    create(api, node("n1"))
    one = replicas(end=ended.set)
    monkeypatch.setattr(Cluster, "set_node", lambda *_: 1 / 0)
    create(api, node("n2"))
    assert ended.wait(PATIENCE_S)
    assert "division by zero" in str(one.extender.failed)
    assert one.status("/readyz")[0] == 503


class Losing(Alone):
    """Leads, for as often as it is still to say so."""

    left = 1_000_000

    @property
    def is_leading(self) -> bool:  # type: ignore[override]
        self.left -= 1
        return self.left >= 0


def test_who_stops_leading_while_it_decides_binds_nothing_and_keeps_no_place(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=16)
    create(api, node("n1"), asking)
    # It leads when the request comes, and when it decides, and not any more when it is to bind.
    losing = Losing()
    one = replicas(losing)
    losing.left = 2
    assert "does not lead any more" in one.bind(asking)
    assert bindings(api) == 0
    assert one.fits(pod("q", mem=16)) == ["n1"]


def test_without_the_leader_filters_are_answered_and_binds_are_refused(
    api: ApiServer, replicas: Callable[..., Replica]
) -> None:
    asking = pod("p", mem=4)
    create(api, node("n1"), asking)
    gone = {
        "metadata": {
            "name": "xpu-extender",
            "annotations": {"yoyoworks.com/xpu-extender": "http://127.0.0.1:9"},
        },
        "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 600, "renewTime": "x"},
    }
    api.set("leases", "xpu-extender", gone)
    electing = Electing(api, replicas)
    one = electing.make("second")
    assert electing.leaderships[0].leader_url  # it is ready once it knows who leads
    assert one.fits(asking) == ["n1"]
    assert "does not lead" in one.bind(asking)
    assert bindings(api) == 0


def test_a_bind_ends_before_another_replica_may_take_over() -> None:
    times = Times()
    assert times.renew + BIND_S < times.lease
    assert times.lease < ASSUMED_S
