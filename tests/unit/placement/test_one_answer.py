"""The same cards for docker, for a pod that its node places, and for a pod that the extender places."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.inventories import UNENFORCED, t4s
from xpu_runtime import granting
from xpu_runtime.allocating import Pod as PodToPlace
from xpu_runtime.allocating import allocate
from xpu_runtime.config.defaults import Config
from xpu_runtime.kubernetes.device_plugin import node as described
from xpu_runtime.kubernetes.device_plugin.cards import cards
from xpu_runtime.kubernetes.device_plugin.offer import free_units
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.objects import Assumed, Pod
from xpu_runtime.kubernetes.node_annotation import ANNOTATION
from xpu_runtime.kubernetes.resources import CORES, MEMORY, WHOLE, Resources
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.linux import proc
from xpu_runtime.placement.demand import Demand, PodDemand
from xpu_runtime.request.assignment import Assignment
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import Memory
from xpu_runtime.vendors.inventory import Inventory

GIB = 1 << 30
pytestmark = pytest.mark.usefixtures("run_dir")
#: The parts of docker's containers: (card, GiB or None for all of it, percent of its cores).
Held = tuple[int, "int | None", "int | None"]
#: The parts of each container: (card's UUID, bytes); docker's has the name "".
Answer = dict[str, tuple[tuple[str, int], ...]]


def take(inventory: Inventory, *held: Held) -> None:
    """Has containers of docker hold that."""
    started = proc.start_time(os.getpid()) or 0
    for number, (card, gib, cores) in enumerate(held):
        device = inventory.devices[card]
        amount = device.memory_bytes if gib is None else gib * GIB
        slice_ = Slice(device.index, device.uuid, amount, gib is not None, cores, Holding())
        wanted = Grant(0, f"c{number}", f"/c{number}", os.getpid(), started, "", "running", "hook", 0.0, ())
        slices = (slice_,)
        with PodLedger() as ledger:
            ledger.grant(wanted, lambda _: slices)  # noqa: B023 - called at once


def by_docker(inventory: Inventory, config: Config, demand: Demand) -> Answer | None:
    memory = () if demand.memory_bytes is None else (Memory(demand.memory_bytes),)
    if demand.memory_percent is not None:
        memory = (Memory(millionths=demand.memory_percent * 10_000),)
    request = Request(count=demand.count, memory=memory, cores=demand.cores)
    with PodLedger() as ledger:
        found = granting.decide(inventory, request, config, ledger)
    if isinstance(found, Refusal):
        return None
    return {"": tuple((each.device_uuid, each.memory_bytes) for each in found)}


def by_node(inventory: Inventory, config: Config, demand: PodDemand) -> Answer | None:
    found = allocate(inventory, config, PodToPlace("u", "default", "p", demand))
    with PodLedger() as ledger:
        ledger.deallocate(["u"])
    return None if isinstance(found, Refusal) else answer(inventory, found)


def by_extender(inventory: Inventory, config: Config, demand: PodDemand) -> Answer | None:
    told = cards(inventory, "", config, SharedLedger().read(5.0))
    text = described.annotation(inventory, told, "extender", {})
    cluster = Cluster(Resources(), dict, config.placement_policy, lambda: 0.0)
    cluster.set_node("n", {ANNOTATION: text}, {})
    found = cluster.assume(Pod("u", "default", "p", *cluster.shape(demand)), "n", 60.0)
    return answer(inventory, found.assignment) if isinstance(found, Assumed) else None


def answer(inventory: Inventory, found: Allocation | Assignment) -> Answer:
    totals = {device.uuid: device.memory_bytes for device in inventory.devices}
    return {
        name: tuple((each.device_uuid, each.memory_bytes or totals[each.device_uuid]) for each in shares)
        for name, shares in {**found.containers, **found.init, **found.sidecars}.items()
    }


def cards_of(
    inventory: Inventory, config: Config, **containers: Demand
) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    """The cards of each container, by the node and by the extender."""
    demand = PodDemand(tuple(containers.items()))
    node_s, extender_s = (by(inventory, config, demand) for by in (by_node, by_extender))
    first, second = (
        None if each is None else {name: "+".join(uuid[4:] for uuid, _ in has) for name, has in each.items()}
        for each in (node_s, extender_s)
    )
    return first, second


def everyone(inventory: Inventory, config: Config, demand: Demand) -> list[str | None]:
    """The cards of one container: by docker, by its node, by the extender."""
    docker = by_docker(inventory, config, demand)
    found: list[str | None] = ["+".join(uuid[4:] for uuid, _ in docker[""]) if docker else None]
    for each in cards_of(inventory, config, c=demand):
        found.append(each["c"] if each else None)
    return found


def test_of_equally_full_cards_the_one_with_fewer_cores_left_is_the_fuller() -> None:
    inventory = t4s(16, 16)
    take(inventory, (0, 8, None), (1, 8, 50))
    assert everyone(inventory, UNENFORCED, Demand(1, 4 * GIB, 30)) == ["1", "1", "1"]
    spread = UNENFORCED.replace(placement_policy="spread")
    assert everyone(inventory, spread, Demand(1, 4 * GIB, 30)) == ["0", "0", "0"]


def test_a_maximum_for_a_slice_makes_no_card_look_fuller_than_it_is() -> None:
    inventory = t4s(16, 16)
    take(inventory, (1, 4, None))
    config = UNENFORCED.replace(policy_max_memory="8G")
    assert everyone(inventory, config, Demand(1, 4 * GIB, None)) == ["1", "1", "1"]


def test_a_pod_is_placed_by_its_node_wherever_it_is_by_the_extender() -> None:
    five, four, three = (Demand(1, gib * GIB, None) for gib in (5, 4, 3))
    # The fullest card for each in turn leaves 1 and 2 GiB, and none for the last.
    found = cards_of(t4s(10, 7), UNENFORCED, a=five, b=five, c=four, d=three)
    assert found == ({"a": "0", "b": "0", "c": "1", "d": "1"},) * 2


def test_memory_that_may_be_granted_twice_over_may_be_by_pods_too() -> None:
    inventory, config = t4s(16), UNENFORCED.replace(oversubscribe_memory=1.5)
    take(inventory, (0, 14, None))
    assert everyone(inventory, config, Demand(1, 10 * GIB, None)) == ["0", "0", "0"]
    assert everyone(inventory, config, Demand(1, 11 * GIB, None)) == [None, None, None]
    # More is free than the card has, and it is in use all the same.
    inventory = t4s(16, 16)
    config = UNENFORCED.replace(oversubscribe_memory=2.5)
    assert everyone(inventory, config, Demand(1, None, None)) == ["1", "1", "1"]
    (card, _) = cards(t4s(16, 16), "", config, SharedLedger().read(5.0))
    assert [free_units(each, card, card.use, Resources()) for each in (MEMORY, WHOLE)] == [26, 0]


def test_a_card_of_which_more_cores_are_held_than_it_has_still_has_its_memory() -> None:
    inventory = t4s(16)
    take(inventory, (0, 1, 60), (0, 1, 60))
    assert everyone(inventory, UNENFORCED, Demand(1, 4 * GIB, None)) == ["0", "0", "0"]
    assert everyone(inventory, UNENFORCED, Demand(1, 4 * GIB, 10)) == [None, None, None]


amounts = st.one_of(
    st.builds(lambda gib: (gib * GIB, None), st.integers(1, 20)),
    st.builds(lambda percent: (None, percent), st.integers(1, 100)),
    st.just((None, None)),
)
demands = st.builds(
    lambda count, amount, cores: Demand(count, amount[0], cores if any(amount) else None, amount[1]),
    st.integers(1, 2),
    amounts,
    st.sampled_from([None, 25, 50, 100]),
)
held = st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(1, 12)), st.sampled_from([None, 25, 50]))


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([8, 15, 16]), min_size=3, max_size=3),
    st.lists(held, max_size=4),
    demands,
    st.sampled_from(["binpack", "spread"]),
    st.sampled_from([1.0, 1.5]),
)
def test_docker_the_node_and_the_extender_give_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    gib: list[int],
    taken: list[Held],
    demand: Demand,
    policy: str,
    oversubscribe: float,
) -> None:
    inventory = t4s(*gib)
    config = UNENFORCED.replace(placement_policy=policy, oversubscribe_memory=oversubscribe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XPU_RUN_DIR", str(tmp_path_factory.mktemp("run")))
        take(inventory, *taken)
        pod = PodDemand((("c", demand),))
        docker = by_docker(inventory, config, demand)
        expected = docker and docker[""]
        for by in (by_node, by_extender):
            found = by(inventory, config, pod)
            assert (found and found["c"]) == expected
        if expected:
            # The kubelet is offered everything that fits.
            seen = cards(inventory, "", config, SharedLedger().read(5.0))
            resources = (WHOLE,) if demand.is_whole else (MEMORY, CORES)
            free = [sum(free_units(name, card, card.use, Resources()) for card in seen) for name in resources]
            asked = [demand.count] if demand.is_whole else [0, demand.count * (demand.cores or 0)]
            asked[0] = asked[0] or demand.count * (demand.memory_bytes or 0) // GIB
            assert all(has >= wants for has, wants in zip(free, asked))


def group(name: str) -> st.SearchStrategy[tuple[tuple[str, Demand], ...]]:
    """Containers of one kind of a pod."""
    return st.lists(demands, max_size=2).map(
        lambda some: tuple((f"{name}{n}", each) for n, each in enumerate(some))
    )


@settings(max_examples=60)
@given(
    st.lists(held, max_size=3),
    st.builds(PodDemand, group("c"), group("i"), group("s"), st.sampled_from([None, "binpack", "spread"])),
)
def test_the_node_and_the_extender_give_each_container_of_a_pod_the_same(
    tmp_path_factory: pytest.TempPathFactory, taken: list[Held], pod: PodDemand
) -> None:
    inventory = t4s(16, 15, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XPU_RUN_DIR", str(tmp_path_factory.mktemp("run")))
        take(inventory, *taken)
        assert by_node(inventory, UNENFORCED, pod) == by_extender(inventory, UNENFORCED, pod)
