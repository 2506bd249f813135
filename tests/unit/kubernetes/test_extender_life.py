"""The lives of pods in any order: the extender's count against a model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.kubernetes_objects import GIB, Json, container, device, node, pod
from unit.kubernetes.test_extender_cluster import KEY, Clock, assume, bound, cluster, free, verdict, with_node
from xpu_runtime.kubernetes.extender.groups import Member
from xpu_runtime.kubernetes.extender.objects import Decided
from xpu_runtime.kubernetes.extender.verdicts import FULL
from xpu_runtime.request.assignment import Assignment, sign


def test_a_late_reading_neither_revives_a_pod_nor_unbinds_it() -> None:
    clock = Clock()
    of = cluster(node("n1"), clock=clock)
    asking = pod("p", mem=10)
    uid = asking["metadata"]["uid"]
    told = bound(of, asking)
    of.set_pod(told)
    of.set_pod(asking, is_read=True)
    assert free(of) == [6]
    seen = of.known_pod(uid)
    of.remove_pod(uid)
    of.set_pod(told, is_read=True)
    assert free(of) == [16]
    assert seen is not None
    assert of.assume(seen, "n1", 60) == Decided("")
    assert free(of) == [16]
    # The watch is right, even if it reported something else before: a list may be older than a read object.
    of.set_pod(told)
    assert free(of) == [6]
    of.remove_pod(uid)
    clock.now = 61
    of.expire()
    assert of._state.gone == {}


amounts = st.fixed_dictionaries(
    {"mem": st.integers(1, 9)}, optional={"cores": st.sampled_from([20, 50, 100])}
)


class Life(RuleBasedStateMachine):
    """Pods come, are bound, forged and deleted, in any order; devices are never given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.names = ["n1", "n2"]
        self.clock = Clock()
        self.of = cluster(node("n1", 2), node("n2", 1), clock=self.clock)
        #: By UID: the pod, its node and its assignment, as the API has them.
        self.bound: dict[str, tuple[Json, str, Assignment]] = {}
        self.asking: list[Json] = []
        #: UIDs of the pods that have a place held for their group.
        self.holding: set[str] = set()
        #: The pods that have gone of late, as they were.
        self.gone: list[Json] = []

    @rule(amounts=amounts, containers=st.integers(1, 2))
    def come(self, amounts: Json, containers: int) -> None:
        made = pod(f"p{len(self.asking)}", *(container(f"c{n}", **amounts) for n in range(containers)))
        self.asking.append(made)
        self.of.set_pod(made)

    @precondition(lambda self: self.asking)
    @rule(number=st.integers(0), name=st.sampled_from(["n1", "n2"]), succeeds=st.booleans())
    def bind(self, number: int, name: str, succeeds: bool) -> None:
        asking = self.asking[number % len(self.asking)]
        uid = asking["metadata"]["uid"]
        if uid in self.holding:
            is_there = self.of.assumed_on(uid) == name
            given = assume(self.of, asking, name, self.clock.now + 60)
            assert given is not None or not is_there
            if is_there:
                self.holding.discard(uid)
            else:
                self.holding.clear()
        else:
            fits = verdict(self.of, asking, name) < FULL
            given = assume(self.of, asking, name, self.clock.now + 60)
            assert (given is not None) == fits
        if given is None:
            return
        if not succeeds:
            self.of.forget(uid)
            return
        self.of.confirm(uid)
        self.asking.remove(asking)
        self.bound[uid] = (asking, name, given)

    @precondition(lambda self: self.asking)
    @rule(number=st.integers(0), name=st.sampled_from(["n1", "n2"]))
    def hold(self, number: int, name: str) -> None:
        asking = self.asking[number % len(self.asking)]
        uid, wanted = asking["metadata"]["uid"], self.of.pod(asking)
        assert wanted is not None
        of = Member("default/train", False, "", "")
        self.holding.discard(uid)
        self.of.ask(uid, of)
        fits = verdict(self.of, asking, name) < FULL
        assert self.of.hold(wanted, name, of) == fits
        if fits:
            self.holding.add(uid)

    @rule(number=st.integers(0))
    def let_go(self, number: int) -> None:
        """A pod that waits is deleted, or held places end with the lead."""
        uids = [asking["metadata"]["uid"] for asking in self.asking]
        if number % 2 or not uids:
            self.of.let_go()
            self.holding.clear()
            return
        gone = uids[number // 2 % len(uids)]
        self.of.remove_pod(gone)
        self.asking = [asking for asking in self.asking if asking["metadata"]["uid"] != gone]
        self.holding.discard(gone)

    @precondition(lambda self: self.bound)
    @rule(number=st.integers(0), name=st.sampled_from(["n1", "n2"]))
    def bind_again(self, number: int, name: str) -> None:
        """A bind that has looked before the watch told of the pod as bound; the API refuses it then."""
        asking, bound_to, given = list(self.bound.values())[number % len(self.bound)]
        told = with_node(asking, bound_to, sign(given, "k", KEY))
        self.of.set_pod(told)
        assert assume(self.of, asking, name, self.clock.now + 60) is None
        self.of.set_pod(told, is_read=True)
        self.of.confirm(asking["metadata"]["uid"])

    @precondition(lambda self: self.gone)
    @rule(number=st.integers(0))
    def read_late(self, number: int) -> None:
        self.of.set_pod(self.gone[number % len(self.gone)], is_read=True)

    @precondition(lambda self: self.bound)
    @rule(number=st.integers(0), is_forged=st.booleans())
    def watch_tells(self, number: int, is_forged: bool) -> None:
        asking, name, given = list(self.bound.values())[number % len(self.bound)]
        self.of.set_pod(with_node(asking, name, "forged" if is_forged else sign(given, "k", KEY)))

    @precondition(lambda self: self.bound)
    @rule(number=st.integers(0))
    def go(self, number: int) -> None:
        uid = list(self.bound)[number % len(self.bound)]
        asking, name, given = self.bound.pop(uid)
        self.gone.append(with_node(asking, name, sign(given, "k", KEY)))
        self.of.remove_pod(uid)

    @rule()
    def time_passes(self) -> None:
        self.clock.now += 100
        held = {each.uid for each in self.of.expire()}
        assert held <= self.holding
        self.holding -= held
        self.gone.clear()  # no request takes this long

    @invariant()
    def nothing_is_given_twice(self) -> None:
        for name, devices in (("n1", 2), ("n2", 1)):
            for index in range(devices):
                uuid = device(name, index)["uuid"]
                held = [self.of._state.assumed[uid].assignment for uid in self.holding]
                shares = [
                    share
                    for given in [*held, *(given for _, _, given in self.bound.values())]
                    for shares in given.containers.values()
                    for share in shares
                    if share.device_uuid == uuid
                ]
                used = sum(share.memory_bytes or 0 for share in shares)
                cores = sum(share.cores or 0 for share in shares)
                assert used <= 16 * GIB
                assert cores <= 100
                figures = self.of.summaries([name])[0]
                assert (figures.memory[index], figures.cores[index]) == (16 * GIB - used, 100 - cores)


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_devices_are_never_given_twice_whatever_happens_in_which_order = Life.TestCase
