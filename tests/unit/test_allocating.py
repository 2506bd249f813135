"""Allocations of pods on a node: exact shares that fit, and those that the node places itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.inventories import UNENFORCED, t4s
from xpu_runtime.allocating import Pod, allocate, enter
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Grant, Holding, Slice, Use
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.linux import proc
from xpu_runtime.placement.allocation import Place, place_of, resolved
from xpu_runtime.placement.demand import Demand, PodDemand
from xpu_runtime.request.assignment import Assignment, AssignmentError, Share
from xpu_runtime.request.pod_container import PodContainer
from xpu_runtime.request.request import Request
from xpu_runtime.vendors.inventory import Inventory

GIB = 1 << 30


def share(device: int, gib: int | None, cores: int | None = None) -> Share:
    return Share(f"GPU-{device}", None if gib is None else gib * GIB, cores)


def demand(gib: int | None = None, cores: int | None = None, count: int = 1) -> Demand:
    return Demand(count, None if gib is None else gib * GIB, cores)


def allocation(uid: str, made: float = 1.0, **containers: tuple[Share, ...]) -> Allocation:
    return Allocation(uid, "default", f"pod-{uid}", made, containers)


def pod(uid: str, **containers: Demand) -> Pod:
    return Pod(uid, "default", f"pod-{uid}", PodDemand(tuple(containers.items())))


def refused(found: Allocation | Refusal | None) -> str:
    assert isinstance(found, Refusal), found
    return found.line()


def placed(found: Allocation | Refusal) -> Allocation:
    assert isinstance(found, Allocation), found
    return found


def test_a_key_that_an_earlier_version_has_not_kept_is_filled_in_and_no_event(run_dir: Path) -> None:
    inventory = t4s(16)
    earlier = allocation("a", c=(share(0, 10, 60),))
    assert enter(inventory, UNENFORCED, earlier) is None
    for key in ("old", "old", "new"):
        assert enter(inventory, UNENFORCED, earlier.replace(key_id=key)) is None
        with PodLedger() as ledger:
            assert [each.key_id for each in ledger.allocations()] == [key]
            assert [each.kind for each in ledger.history()] == ["pod-reserved"]


def test_a_containers_start_fills_in_the_key_of_its_assignment_too(run_dir: Path) -> None:
    inventory = t4s(16)
    earlier = allocation("a", c=(share(0, 10, 60),))
    by_key = earlier.replace(key_id="k")
    assignment = Assignment("a", "here", earlier.made, earlier.containers)
    request = Request(of_pod=PodContainer("a", "default", "pod-a", "c", assignment, key_id="k"))
    for now, entered in ((earlier, by_key), (by_key, None)):
        assert enter(inventory, UNENFORCED, now) is None
        with PodLedger() as ledger:
            found = place_of(request, inventory, UNENFORCED, ledger)
        assert isinstance(found, Place) and found.enter == entered


def test_shares_are_reserved_where_they_fit_and_none_of_them_where_one_does_not(run_dir: Path) -> None:
    inventory = t4s(16, 16)
    assert enter(inventory, UNENFORCED, allocation("a", c=(share(0, 10, 60),))) is None
    told = refused(enter(inventory, UNENFORCED, allocation("b", c=(share(0, 8, 50), share(1, 8, 50)))))
    assert told == (
        "the share assigned to pod default/pod-b is not free on this node (GPU 0: 6G free (10G reserved "
        "for pods), 8G requested and 40% cores free (60% reserved for pods), 50% requested)"
    )
    with PodLedger() as ledger:
        assert [each.uid for each in ledger.allocations()] == ["a"]
    assert enter(inventory, UNENFORCED, allocation("b", c=(share(0, 6, 40), share(1, 16, 100)))) is None
    assert enter(inventory, UNENFORCED, allocation("c", c=(share(1, 1),))) is not None
    assert (
        enter(inventory, UNENFORCED.replace(oversubscribe_memory=2.0), allocation("c", c=(share(1, 1),)))
        is None
    )


def test_the_same_again_is_fine_and_an_earlier_or_other_one_is_stale(run_dir: Path) -> None:
    inventory = t4s(16)
    first = allocation("a", 2.0, c=(share(0, 16),))
    assert enter(inventory, UNENFORCED, first) is None
    assert enter(inventory, UNENFORCED, first) is None
    for changed in (first.replace(made=1.0), first.replace(containers={"c": (share(0, 8),)})):
        found = enter(inventory, UNENFORCED, changed)
        assert found is not None and found.code == "wrong-assignment"
    assert enter(inventory, UNENFORCED, first.replace(made=3.0, containers={"c": (share(0, 8),)})) is None


def test_a_device_that_is_not_there_is_told(run_dir: Path) -> None:
    elsewhere = allocation("a", c=(share(7777, 1),))
    told = refused(enter(t4s(16), UNENFORCED, elsewhere))
    assert told == "pod default/pod-a is assigned 'GPU-7777', which is not on this node; it has 0 (GPU-0)"


def test_a_limit_that_a_device_cannot_hold_is_not_reserved(run_dir: Path) -> None:
    memory_alone = DEFAULTS.replace(enforcement_allow_unenforced=("memory",))
    told = refused(enter(t4s(16), memory_alone, allocation("a", c=(share(0, 4, 30),))))
    assert told.startswith("container c of pod default/pod-a is assigned a part of GPU 0: ")
    assert told.endswith("enforcement.allow_unenforced does not list cores")
    for fine in (share(0, 4), share(0, 4, 100), share(0, None)):
        assert enter(t4s(16), memory_alone, allocation("a", made=2.0, c=(fine,))) is None
        with PodLedger() as ledger:
            ledger.deallocate(["a"])


def test_a_whole_device_is_one_container_s(run_dir: Path) -> None:
    inventory = t4s(16, 16)
    two = allocation("a", c=(share(0, None),), d=(share(0, 1),))
    assert "in use, and the whole device is requested" in refused(enter(inventory, UNENFORCED, two))
    assert enter(inventory, UNENFORCED, allocation("a", c=(share(0, None),))) is None
    told = refused(enter(inventory, UNENFORCED, allocation("b", c=(share(0, 1),))))
    assert "all of it is reserved for pod default/pod-a" in told
    assert enter(inventory, UNENFORCED, allocation("b", c=(share(1, 1),))) is None
    told = refused(enter(inventory, UNENFORCED, allocation("c", c=(share(1, None),))))
    assert "GPU 1: reserved for pods, and the whole device is requested" in told


def test_a_pod_is_placed_whole_like_dockers_containers(run_dir: Path) -> None:
    inventory = t4s(16, 16)
    found = placed(allocate(inventory, UNENFORCED, pod("u", a=demand(4, 30), b=demand(2))))
    assert found.containers == {"a": (share(0, 4, 30),), "b": (share(0, 2),)}  # binpack
    spread = pod("v", a=demand(4, 30))
    spread = spread.replace(demand=spread.demand.replace(policy="spread"))
    assert placed(allocate(inventory, UNENFORCED, spread)).containers == {"a": (share(1, 4, 30),)}
    assert allocate(inventory, UNENFORCED, pod("u", a=demand(1))) == found  # it has one
    both = pod("w", a=demand(5, 10, count=2))
    assert placed(allocate(inventory, UNENFORCED, both)).of("a") == (share(0, 5, 10), share(1, 5, 10))
    told = refused(allocate(inventory, UNENFORCED, pod("x", a=demand(1), b=demand(9))))
    assert told.startswith("container b: no device has 9G of memory free (GPU 0: 5G free (11G reserved")
    assert told.endswith("the nearest request that fits now: XPU_MEM=7G")
    with PodLedger() as ledger:
        assert {each.uid for each in ledger.allocations()} == {"u", "v", "w"}


def test_the_order_of_containers_is_no_reason_to_refuse_a_pod(run_dir: Path) -> None:
    web = pod("u", a=demand(4), b=demand(8), c=demand(12))
    found = placed(allocate(t4s(16, 8), UNENFORCED, web))
    assert (found.of("a"), found.of("b"), found.of("c")) == ((share(0, 4),), (share(1, 8),), (share(0, 12),))


def test_percentages_are_of_the_device_and_whole_ones_are_alone(run_dir: Path) -> None:
    inventory = t4s(16, 8)
    found = placed(allocate(inventory, UNENFORCED, pod("u", a=Demand(1, None, 25, 25))))
    assert found.of("a") == (share(1, 2, 25),)  # binpack: the smaller one is the fuller
    assert placed(allocate(inventory, UNENFORCED, pod("v", a=demand()))).of("a") == (share(0, None),)
    told = refused(allocate(inventory, UNENFORCED, pod("w", a=demand())))
    assert told.startswith("container a: no device has all of its memory free")


def test_after_a_lost_ledger_running_containers_keep_their_devices(run_dir: Path) -> None:
    inventory = t4s(16, 16, 16)
    running = Slice("1", "GPU-1", 4 * GIB, True, None, Holding())
    started = proc.start_time(os.getpid()) or 0
    wanted = Grant(0, "c1", "/c1", os.getpid(), started, "", "running", "hook", 0.0, ())
    with PodLedger() as ledger:  # it is made anew, and knows whose grant it is
        ledger.grant(wanted, lambda uses: (running,), (), ("u", "b"))
    web = pod("u", a=demand(2), b=demand(4))
    found = placed(allocate(inventory, UNENFORCED, web))
    assert found.of("b") == (share(1, 4),)
    with PodLedger() as ledger:
        assert sum(use.memory_bytes for use in ledger.uses().values()) == 6 * GIB


def test_a_reservation_is_only_for_the_pod_of_that_uid_and_name(run_dir: Path) -> None:
    inventory = t4s(16)
    placed(allocate(inventory, UNENFORCED, pod("a", c=demand(4))))
    namesake = pod("a", c=demand(1)).replace(name="forger")
    assert refused(allocate(inventory, UNENFORCED, namesake)) == (
        "its UID, a, belongs to pod default/pod-a on this node"
    )

    def asks(name: str) -> Request:
        return Request(of_pod=PodContainer("a", "default", name, "c"))

    with PodLedger() as ledger:
        request = resolved(asks("pod-a"), ledger)
        assert isinstance(place_of(request, inventory, UNENFORCED, ledger), Place)
        with pytest.raises(AssignmentError, match="nothing is reserved on this node for container c of pod"):
            resolved(asks("forger"), ledger)
        stranger = request.replace(of_pod=asks("forger").of_pod)
        assert isinstance(place_of(stranger, inventory, UNENFORCED, ledger), Refusal)


def test_init_containers_use_the_pods_own_share(run_dir: Path) -> None:
    inventory = t4s(16, 16)
    asked = PodDemand(
        (("a", demand(8, 50)), ("b", demand(8, 50))),
        (("small", demand(6, 50)), ("large", demand(14)), ("both", demand(15, None, 2))),
        (("log", demand(1)),),
    )
    found = placed(allocate(inventory, UNENFORCED, Pod("u", "d", "u", asked)))
    assert found.of("a")[0].device_uuid != found.of("b")[0].device_uuid
    assert found.of("both") == (share(0, 15), share(1, 15))
    total = {uuid: amount.memory_bytes // GIB for uuid, amount in found.amounts().items()}
    assert sorted(total.values()) == [15, 16]


def test_defaults_and_maxima_of_the_node_are_not_for_pods(run_dir: Path) -> None:
    config = UNENFORCED.replace(
        defaults_memory="1G",
        defaults_cores=10,
        policy_max_memory="2G",
        policy_max_cores=10,
        policy_max_count=1,
    )
    inventory = t4s(16, 16)
    found = placed(allocate(inventory, config, pod("u", a=demand(4, 50, count=2))))
    assert found.of("a") == (share(0, 4, 50), share(1, 4, 50))
    assert enter(inventory, config, allocation("v", c=(share(0, 8, 50),))) is None


def test_the_node_places_nothing_on_devices_out_of_service_and_counts_an_exact_share(
    run_dir: Path,
) -> None:
    inventory = t4s(16, 16, faults={0: "XID 79"})
    config = UNENFORCED.replace(policy_devices=("0",))
    told = refused(allocate(inventory, config, pod("u", a=demand(4))))
    assert "not healthy: XID 79" in told and "policy.devices does not list it" in told
    # It may run there since before: its container's next start tells what is wrong.
    assert enter(inventory, config, allocation("v", c=(share(0, 8),))) is None


def test_a_node_without_devices_says_so(run_dir: Path) -> None:
    found = allocate(Inventory("/", True, (), (), (), missing="no driver"), UNENFORCED, pod("u", a=demand(4)))
    assert isinstance(found, Refusal) and found.code == "no-device"


PERCENT = st.one_of(st.none(), st.integers(1, 100))
DEMANDS = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(demand, st.one_of(st.none(), st.integers(1, 12)), PERCENT, st.integers(1, 2)),
    max_size=3,
)


@settings(max_examples=60)
@given(st.lists(st.tuples(DEMANDS, DEMANDS, DEMANDS), min_size=1, max_size=5))
def test_no_device_is_ever_reserved_beyond_what_it_has(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[dict[str, Demand], ...]]
) -> None:
    inventory = t4s(16, 16, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XPU_RUN_DIR", str(tmp_path_factory.mktemp("run")))
        for number, groups in enumerate(wanted):
            a, b, c = (
                tuple((f"{kind}-{name}", each) for name, each in group.items())
                for kind, group in enumerate(groups)
            )
            asked = PodDemand(a, b, c)
            found = allocate(inventory, UNENFORCED, Pod(str(number), "d", str(number), asked))
            if not isinstance(found, Refusal):
                # The node reserves what it has placed itself.
                assert enter(inventory, UNENFORCED, found.replace(made=found.made + 1)) is None
        with PodLedger() as ledger:
            uses, entered = ledger.uses(), ledger.allocations()
    for device in inventory.devices:
        use = uses.get(device.uuid, Use())
        assert use.booked(device.memory_bytes) <= device.memory_bytes and use.cores <= 100
        amounts = [each.amounts()[device.uuid] for each in entered if device.uuid in each.amounts()]
        assert len(amounts) < 2 or not any(amount.whole for amount in amounts)
        assert not any(amount.clash for amount in amounts)
