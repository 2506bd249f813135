"""A whole replica over HTTP, against an API server in memory: binds, and failures at each moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from support.kubernetes_objects import GIB, Json, device, node, pod
from unit.kubernetes.replica import PATIENCE_S, ControlPlane, assigned, until
from xpu_runtime.kubernetes.extender import in_flight
from xpu_runtime.request.assignment import ANNOTATION


def test_a_pod_is_bound_with_its_signed_assignment_by_one_request(api: ControlPlane) -> None:
    asking = pod("p", mem=4, cores=30)
    api.create(node("n1", 2), node("n2", 1), asking)
    one = api.replica()
    assert one.fits(asking, "n1", "n2") == ["n1", "n2"]
    scores = one.ask("prioritize", {"Pod": asking, "NodeNames": ["n1", "n2"]})
    assert [each["Host"] for each in scores] == ["n1", "n2"]
    assert one.bind(asking) == ""
    (share,) = assigned(api, "p").containers["main"]
    assert (share.device_uuid, share.memory_bytes, share.cores) == (device("n1", 0)["uuid"], 4 * GIB, 30)
    assert [each for each in api.requests if "?" not in each[1]] == [
        ("POST", "/api/v1/namespaces/default/pods/p/binding")
    ]


def test_a_right_that_was_lost_is_one_line_of_the_log_though_watches_begin_again_and_again(
    api: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, begun = api.events, []

    def refused(path: str, query: dict[str, str]) -> Iterator[Json]:
        if path != "/api/v1/nodes":
            yield from events(path, query)
            return
        begun.append(path)
        yield {"type": "ERROR", "object": {"kind": "Status", "code": 403, "message": "nodes is forbidden"}}

    monkeypatch.setattr(api, "events", refused)
    api.create(node("n1"))
    one = api.replica(is_awaited=False)
    until(lambda: len(begun) > 3, "it was tried three times")

    why = "the API server refuses: nodes is forbidden (403)"
    assert [each for each in one.said if "nodes" in each] == [
        f"nodes cannot be followed: {why}; it is tried again"
    ]


def test_a_misspelt_label_of_nodes_is_said_once(api: ControlPlane) -> None:
    wrong, right = ({"yoyoworks.com/xpu.placement": value} for value in ("spraed", "spread"))
    api.create(node("n1", labels=wrong), node("n2", labels=wrong), node("n3", labels=right))
    one = api.replica()
    api.create(node("n1", 2, labels=wrong))
    until(lambda: one.fits(pod("p", whole=2)) == ["n1"], "the change is seen")
    assert [each for each in one.said if "label" in each] == [
        "node n1: label yoyoworks.com/xpu.placement=spraed is unknown and has no effect: did you mean spread?"
    ]


def test_another_unit_of_memory_is_said_once_of_each_node(api: ControlPlane) -> None:
    api.create(*(node(name, memory_unit=256 << 20) for name in ("n1", "n2")), node("n3"))
    one = api.replica()
    api.create(node("n1", 2, memory_unit=256 << 20), node("n3", 2))
    until(lambda: one.fits(pod("p", whole=2), "n1", "n3") == ["n3"], "the change is seen")
    said = [each for each in one.said if "memory_unit" in each]
    words = "is not used: kubernetes.memory_unit is 256 MiB there and 1 GiB for the extender: restart "
    assert [each[:8] for each in said] == ["node n1 ", "node n2 "]
    assert all(each[8:].startswith(words) for each in said)


def test_fifty_binds_at_once_give_nothing_twice(api: ControlPlane) -> None:
    pods = [pod(f"p{index}", mem=5, cores=30) for index in range(50)]
    api.create(node("n1", 2), node("n2", 2), *pods)
    one = api.replica()
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
    api: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "MOST_S", PATIENCE_S)
    before, after = pod("before", mem=10), pod("after", mem=10)
    api.create(node("n1"), before, after)
    one = api.replica()
    assert one.fits(before) == ["n1"]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(one.fits, after)  # kube-scheduler asks before the bind has come
        assert wait([asked], 0.2).not_done
        assert one.bind(before) == ""
        assert asked.result() == []
    # A second question about the same pod does not wait.
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


def test_a_bind_that_is_repeated_is_done_once(api: ControlPlane) -> None:
    asking = pod("p", mem=4)
    api.create(node("n1"), asking)
    one = api.replica()
    assert one.bind(asking) == ""
    before = api.get("pods", "p")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one.bind, [asking] * 8)) == [""] * 8
    assert api.get("pods", "p") == before
    assert "bound to node n1 already" in one.bind(asking, "n2")


def test_another_pod_of_the_same_name_is_not_bound_in_its_place(api: ControlPlane) -> None:
    old, new = pod("p", mem=4), pod("p", mem=8)
    api.create(node("n1"), new)
    one = api.replica()
    assert one.bind(old) == "the pod was deleted, and another has its name now"
    assert "nodeName" not in api.get("pods", "p")["spec"]
    # It is replaced between the decision and the request.
    api.before_binding = lambda name: api.create(pod("p", mem=2))
    assert "Conflict" in one.bind(new)
    assert one.fits(pod("q", mem=16)) == ["n1"]


def test_a_pod_that_the_watch_has_not_told_of_yet_is_asked_for(api: ControlPlane) -> None:
    api.create(node("n1"))
    one = api.replica()
    asking = pod("p", mem=4)
    api.objects["/api/v1/namespaces/default/pods/p"] = asking
    assert one.bind(asking, PodUID="") == ""
    assert assigned(api, "p").containers["main"][0].memory_bytes == 4 * GIB
    assert "404" in one.bind(pod("gone", mem=1))


def test_a_pod_without_our_resources_is_bound_as_it_is(api: ControlPlane) -> None:
    asking = pod("p")
    api.create(node("n1"), asking)
    assert api.replica().bind(asking) == ""
    assert api.get("pods", "p")["spec"]["nodeName"] == "n1"
    assert ANNOTATION not in api.get("pods", "p")["metadata"]["annotations"]


def test_a_bind_that_the_api_refuses_leaves_the_place_free(api: ControlPlane) -> None:
    asking = pod("p", mem=16)
    api.create(node("n1"), asking)
    one = api.replica()

    refusal = (403, {"message": "not allowed"})
    api.fault = lambda method, path: refusal if path.endswith("/binding") else None
    assert "not allowed" in one.bind(asking)
    assert one.fits(pod("q", mem=16)) == ["n1"]


def test_an_answer_that_is_lost_is_looked_up(api: ControlPlane) -> None:
    asking = pod("p", mem=16)
    api.create(node("n1"), asking)
    one = api.replica()

    def lose(name: str) -> None:
        raise ConnectionAbortedError

    api.after_binding = lose
    assert one.bind(asking) == ""
    assert assigned(api, "p").containers["main"][0].memory_bytes == 16 * GIB


def test_a_lost_request_keeps_its_place_until_its_outcome_is_known(api: ControlPlane) -> None:
    asking, other = pod("p", mem=16), pod("q", mem=16)
    api.create(node("n1"), asking, other)
    one = api.replica()

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


def test_a_replica_that_starts_knows_all_that_was_given(api: ControlPlane) -> None:
    pods = [pod(f"p{index}", mem=4) for index in range(8)]
    api.create(node("n1", 2), *pods)
    first = api.replica()
    assert [first.bind(each) for each in pods] == [""] * 8
    first.extender.stop()
    second = api.replica()
    assert second.fits(pod("q", mem=1)) == []
    api.remove("pods", "p0")
    until(lambda: second.fits(pod("q", mem=4)), "the place of a deleted pod is free")
    ended = api.get("pods", "p1")
    api.set("pods", "p1", {**ended, "status": {"phase": "Succeeded"}})
    until(lambda: 'pods{state="bound"} 6.0' in second.status("/metrics")[1], "an ended pod counts no more")


@pytest.mark.parametrize("is_placed", [True, False])
@pytest.mark.parametrize("is_listed_again", [True, False])
def test_a_pod_that_its_author_makes_nonsense_of_holds_what_it_got_until_it_is_gone(
    api: ControlPlane, is_placed: bool, is_listed_again: bool
) -> None:
    """Deleted by force, it has no last phase."""
    other, made = pod("q", mem=4), pod("p", whole=1)
    api.create(node("n1"), node("n2"), made)
    one = api.replica()
    if is_placed:
        assert one.bind(made) == ""
    else:  # past the scheduler
        api.set("pods", "p", {**made, "spec": {**made["spec"], "nodeName": "n1"}})
    until(lambda: one.fits(other) == [], "it holds the card")
    bound = api.get("pods", "p")
    nonsense = {**bound["metadata"], "annotations": {"yoyoworks.com/xpu-count": "x"}}
    api.set("pods", "p", {**bound, "metadata": nonsense})
    if is_listed_again:
        api.forget()
    later = pod("later", whole=1)
    api.set("pods", "later", {**later, "spec": {**later["spec"], "nodeName": "n2"}})
    until(lambda: one.fits(other, "n2") == [], "what came later is known")
    assert one.fits(other) == []
    api.remove("pods", "p")
    until(lambda: one.fits(other) == ["n1"], "the card is free")


def test_a_watch_that_has_lost_its_place_in_history_reads_all_again(api: ControlPlane) -> None:
    asking = pod("p", mem=16)
    api.create(node("n1"), asking)
    one = api.replica()
    assert one.bind(asking) == ""
    until(lambda: 'pods{state="bound"} 1.0' in one.status("/metrics")[1], "the watch tells of the pod")
    with api.changed:
        api.remove("pods", "p")
        api.create(node("n2"))
        api.forget()
    until(lambda: one.fits(pod("q", mem=16), "n1", "n2") == ["n1", "n2"], "it has read all again")


def test_before_it_has_read_the_cluster_it_decides_nothing_and_is_not_ready(api: ControlPlane) -> None:
    asking = pod("p", mem=1)
    api.create(node("n1"), asking)
    held = threading.Event()
    refusal = (503, {"message": "starting up"})
    api.fault = lambda _, path: refusal if path == "/api/v1/pods" and not held.is_set() else None
    one = api.replica(is_awaited=False)
    until(lambda: "starting up" in one.status("/readyz")[1], "it says why it is not ready")
    assert one.status("/healthz") == (200, "ok\n")
    found = one.ask("filter", {"Pod": asking, "NodeNames": ["n1"]})
    assert "has not read nodes and pods yet" in found["Error"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.bind, asking)  # it waits for some seconds, and need not be tried again
        held.set()
        assert waiting.result() == ""
