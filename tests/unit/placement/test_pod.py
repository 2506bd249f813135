"""Placement of pods on a node's devices: nothing is given twice, and a place is found whenever there is
one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_runtime.kubernetes.resources import MOST_CONTAINERS
from xpu_runtime.placement.cards import Cards, VendorGroups
from xpu_runtime.placement.demand import Demand, PodDemand
from xpu_runtime.placement.pod import Places, PodShape, StepBudget, holding
from xpu_runtime.placement.pod import place as place_within

GIB = 1 << 30


def place(
    totals: Sequence[int],
    memory: Sequence[int],
    cores: Sequence[int],
    pod: PodShape,
    binpack: bool,
    kinds: VendorGroups | None = None,
) -> Places | None:
    return place_within(Cards(totals, kinds=kinds), memory, cores, pod, binpack, StepBudget())


def shape(*containers: Demand, init: Sequence[Demand] = (), sidecars: Sequence[Demand] = ()) -> PodShape:
    regular, first, side = (
        tuple((f"c{n}", each) for n, each in enumerate(part)) for part in (containers, init, sidecars)
    )
    return PodShape(PodDemand(regular, first, side))


def mem(gib: int, cores: int | None = None, count: int = 1) -> Demand:
    return Demand(count, gib * GIB, cores)


def placed(
    free: Sequence[float], pod: PodShape, *, binpack: bool = True, total: int = 16, cores: int = 100
) -> Places | None:
    """On devices of `total` GiB, of which `free` GiB are free each, and `cores` percent."""
    memory = [int(each * GIB) if each >= 0 else -1 for each in free]
    return place([total * GIB] * len(free), memory, [cores] * len(free), pod, binpack)


def test_binpack_fills_the_fullest_device_that_fits_and_spread_takes_the_emptiest() -> None:
    assert placed([16, 3, 5, 2], shape(mem(3))) == (((1,),), (), ())
    assert placed([9, 3, 5, 2], shape(mem(3)), binpack=False) == (((0,),), (), ())


def test_two_devices_do_not_add_up_to_one() -> None:
    assert placed([8, 8], shape(mem(10))) is None


def test_a_device_that_may_not_be_used_serves_nothing() -> None:
    assert placed([-1, 1], shape(mem(2))) is None
    assert placed([-1], shape(Demand(1, None, None))) is None


def test_several_devices_are_different_ones() -> None:
    assert placed([4, 16, 3, 5], shape(mem(4, count=2))) == (((0, 3),), (), ())
    assert placed([4, 3, 3, 3], shape(mem(4, count=2))) is None


def test_a_whole_device_is_one_that_nobody_uses_and_nobody_else_gets() -> None:
    assert placed([15.5, 16], shape(Demand(1, None, None))) == (((1,),), (), ())
    assert placed([16], shape(Demand(1, None, None), mem(1))) is None
    assert placed([16, 9], shape(mem(1), Demand(1, None, None))) == (((1,), (0,)), (), ())


def test_shares_are_of_each_devices_own_size() -> None:
    totals = [8 * GIB, 16 * GIB]
    found = place(totals, [4 * GIB, 7 * GIB], [50, 50], shape(Demand(1, None, 50, 50)), True)
    assert found == (((0,),), (), ())


def test_cores_bound_a_place_as_memory_does() -> None:
    assert placed([16], shape(mem(1, 60)), cores=50) is None
    assert placed([16], shape(mem(1, 30), mem(1, 30)), cores=50) is None
    assert placed([16, 16], shape(mem(1, 30), mem(1, 30)), cores=50) is not None


def test_a_first_choice_that_leads_nowhere_is_taken_back() -> None:
    # The fullest device that fits the larger container is the only one for the other.
    totals, memory, cores = [16 * GIB] * 2, [4 * GIB, 5 * GIB], [100, 50]
    found = place(totals, memory, cores, shape(mem(3, 60), mem(4)), True)
    assert found == (((0,), (1,)), (), ())


def test_an_init_container_has_its_place_where_the_pod_holds_so_much_anyhow() -> None:
    pod = shape(mem(6), init=[mem(4)])
    found = placed([16, 8, 12], pod)
    assert found == (((1,),), ((1,),), ())
    assert holding(Cards([16 * GIB] * 3), pod, found) == {1: (6 * GIB, 0)}


def test_an_init_container_may_be_larger_than_the_later_containers() -> None:
    pod = shape(mem(2, 10), init=[mem(8, 5), mem(6, 50)], sidecars=[mem(1, 20)])
    found = placed([9], pod)
    assert found is not None
    assert holding(Cards([16 * GIB]), pod, found) == {0: (9 * GIB, 70)}
    assert placed([8], pod) is None


def test_no_pod_can_make_the_search_take_long() -> None:
    # They add up to less than is free, no device has room for five, and no two are alike.
    pod = shape(*(Demand(1, 3 * GIB + n, None) for n in range(33)))
    assert placed([12.5] * 8, pod) is None


sizes = st.sampled_from([2, 3, 4])
amounts = st.integers(1, 4)
demands = st.one_of(
    st.builds(lambda m, c, n: Demand(n, m, c), amounts, st.sampled_from([None, 25, 50]), st.integers(1, 2)),
    st.builds(lambda n: Demand(n, None, None), st.integers(1, 2)),
)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], VendorGroups | None]:
    totals = draw(st.lists(sizes, min_size=1, max_size=3))
    memory = [draw(st.integers(-1, total)) for total in totals]
    vendors = [draw(st.sampled_from(["nvidia", "amd"])) for _ in totals]
    holds = [(draw(st.booleans()), draw(st.booleans())) for _ in totals]
    kinds = draw(st.sampled_from([None, VendorGroups(vendors, holds)]))
    return totals, memory, [draw(st.sampled_from([0, 25, 50, 100])) for _ in totals], kinds


pods = st.builds(
    lambda regular, init, side: shape(*regular, init=init, sidecars=side),
    st.lists(demands, max_size=3),
    st.lists(demands, max_size=2),
    st.lists(demands, max_size=2),
)


def all_places(devices: int, pod: PodShape) -> Iterator[Places]:
    """Every way to give each container its number of devices."""
    kinds = [
        list(itertools.product(*(itertools.combinations(range(devices), s.count) for s in part)))
        for part in (pod.containers, pod.init, pod.sidecars)
    ]
    for regular, init, side in itertools.product(*kinds):  # noqa: UP028 - for the type
        yield regular, init, side


def fits(totals: list[int], memory: list[int], cores: list[int], pod: PodShape, places: Places) -> bool:
    """Whether no device is overbooked at any time of the pod's life; written apart from the code."""
    times = [[*zip(pod.containers, places[0]), *zip(pod.sidecars, places[2])]]
    times += [[(shape, chosen), *zip(pod.sidecars, places[2])] for shape, chosen in zip(pod.init, places[1])]
    for running in times:
        for device in range(len(totals)):
            here = [shape for shape, chosen in running if device in chosen]
            if not here:
                continue
            if sum(shape.on(Cards(totals), device) for shape in here) > memory[device]:
                return False
            if sum(shape.cores for shape in here) > cores[device]:
                return False
    return True


def test_as_many_containers_as_may_ask_are_placed_on_as_many_devices_as_a_node_may_have() -> None:
    number = MOST_CONTAINERS
    pod = shape(*(mem(9) for _ in range(number - 1)), init=[mem(1)])
    found = placed([16 - n / 100 for n in range(number)], pod)  # no two of them are alike
    assert found is not None and len(set(found[0])) == number - 1


def of_kinds(pod: PodShape, *holds: tuple[bool, bool]) -> Places | None:
    """On empty devices of 16 GiB that hold these limits."""
    totals = [16 * GIB] * len(holds)
    return place(totals, totals, [100] * len(holds), pod, False, VendorGroups(["nvidia"] * len(holds), holds))


def test_each_container_has_a_device_that_holds_its_limits_and_others_leave_it_that() -> None:
    capped = mem(8, 50)
    assert of_kinds(shape(capped, init=[capped]), (True, False), (True, True)) == (((1,),), ((1,),), ())
    assert of_kinds(shape(capped, init=[capped]), (True, True), (True, False)) == (((0,),), ((0,),), ())
    assert of_kinds(shape(mem(10), capped), (True, True), (True, False)) == (((1,), (0,)), (), ())
    assert of_kinds(shape(mem(10), capped, init=[capped]), (True, True), (True, False)) is not None


def test_four_times_as_many_init_containers_take_about_four_times_as_long() -> None:
    def calls(number: int) -> int:
        """Counts calls of Python functions, because times vary."""
        pod, found = shape(mem(1), init=[mem(1)] * number), 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(count)
        try:
            assert placed([16] * 4, pod) is not None
        finally:
            sys.setprofile(None)
        return found

    assert calls(200) < 5 * calls(50)


def holds(kinds: VendorGroups | None, pod: PodShape, places: Places) -> bool:
    """Whether each container has devices of one vendor that fit its request."""
    if kinds is None:
        return True
    shapes = (*pod.containers, *pod.init, *pod.sidecars)
    for shape, chosen in zip(shapes, itertools.chain(*places)):
        if len({kinds.vendors[position] for position in chosen}) > 1:
            return False
        if any(must and not kinds.holds[p][n] for p in chosen for n, must in enumerate(shape.limits)):
            return False
    return True


@settings(max_examples=400)
@given(nodes(), pods, st.booleans())
def test_a_place_is_found_whenever_there_is_one_and_nothing_is_given_twice(
    node: tuple[list[int], list[int], list[int], VendorGroups | None], pod: PodShape, binpack: bool
) -> None:
    totals, memory, cores, kinds = node
    found = place(totals, memory, cores, pod, binpack, kinds)
    if found is None:
        for places in all_places(len(totals), pod):
            assert not (fits(totals, memory, cores, pod, places) and holds(kinds, pod, places))
        return
    assert fits(totals, memory, cores, pod, found)
    assert holds(kinds, pod, found)
    for shapes, chosen in zip((pod.containers, pod.init, pod.sidecars), found):
        assert [len(set(positions)) for positions in chosen] == [each.count for each in shapes]
    for position, (amount, percent) in holding(Cards(totals), pod, found).items():
        assert amount <= memory[position]
        assert percent <= cores[position]
