"""Placement: nothing is given twice, fitting requests are granted, and a refusal's nearest request fits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from support.requests import parse
from xpu_runtime.ledger.grants import Holding, Slice, Use
from xpu_runtime.ledger.refusal import DeviceStatus, Refusal
from xpu_runtime.placement.available import Candidate
from xpu_runtime.placement.container import place
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import MIB, Memory
from xpu_runtime.vendors.inventory import Device, Node

GIB = 1 << 30


def device(index: int, memory: int = 15 * GIB) -> Device:
    return Device(
        str(index), f"GPU-{index}", "Tesla T4", memory, (Node(f"/dev/nvidia{index}", 195, index),), "nvidia"
    )


def candidates(*devices: Device) -> list[Candidate]:
    return [Candidate(each, None, Holding()) for each in devices]


def indexes(outcome: tuple[Slice, ...] | Refusal) -> list[str]:
    assert not isinstance(outcome, Refusal), outcome.line()
    return [part.device_index for part in outcome]


def refusal(
    request: Request, node: list[Candidate], uses: dict[str, Use], oversubscribe: float = 1.0
) -> Refusal:
    found = place(request, node, uses, oversubscribe=oversubscribe)
    assert isinstance(found, Refusal)
    return found


def ask(**variables: str) -> Request:
    return parse({f"XPU_{name}": value for name, value in variables.items()})


FOUR = candidates(*(device(index) for index in range(4)))


def amounts_of(outcome: tuple[Slice, ...] | Refusal) -> list[tuple[str, int]]:
    assert not isinstance(outcome, Refusal), outcome.line()
    return [(part.device_index, part.memory_bytes // GIB) for part in outcome]


def test_values_go_to_devices_in_the_order_in_which_the_container_sees_them() -> None:
    uses = {"GPU-2": Use(8 * GIB, 0, 1), "GPU-1": Use(4 * GIB, 0, 1)}
    # The fullest devices serve. The first of them has the first value, even if it is not the fullest.
    assert amounts_of(place(ask(MEM="1G,2G"), FOUR, uses)) == [("1", 1), ("2", 2)]
    assert amounts_of(place(ask(MEM="2G,1G"), FOUR, uses)) == [("1", 2), ("2", 1)]
    assert amounts_of(place(ask(MEM="1G,2G,3G"), FOUR, {}, policy="spread")) == [("0", 1), ("1", 2), ("2", 3)]
    assert amounts_of(place(ask(MEM="3G", COUNT="2"), FOUR, uses)) == [("1", 3), ("2", 3)]


def test_values_that_fit_in_another_order_only_are_refused_with_that_order() -> None:
    node = candidates(device(0, 8 * GIB), device(1, 16 * GIB))
    assert amounts_of(place(ask(MEM="4G,12G"), node, {})) == [("0", 4), ("1", 12)]
    refused = refusal(ask(MEM="12G,4G"), node, {})
    assert refused.nearest == {"XPU_MEM": "4G,12G"}
    assert "in this order" in refused.line()


def test_a_whole_device_is_an_untouched_one_and_then_nobody_elses() -> None:
    uses = {"GPU-0": Use(GIB, 0, 1)}
    outcome = place(ask(COUNT="1"), FOUR, uses)
    assert indexes(outcome) == ["1"]
    assert isinstance(outcome, tuple)
    assert (outcome[0].memory_bytes, outcome[0].limited) == (15 * GIB, False)
    refused = refusal(ask(COUNT="1"), candidates(device(0)), uses)
    assert refused.code == "in-use"
    taken = {"GPU-0": Use(15 * GIB, 0, 1, True)}
    assert refusal(ask(MEM="1G"), candidates(device(0)), taken, oversubscribe=2.0)


def test_a_refusal_tells_what_is_free_of_each_device_and_what_would_fit() -> None:
    uses = {f"GPU-{index}": Use(12 * GIB, 0, 1) for index in range(4)}
    refused = refusal(ask(MEM="4G"), FOUR, uses)
    assert refused.code == "not-enough-memory"
    assert [device.free_memory_bytes for device in refused.devices] == [3 * GIB] * 4
    assert refused.nearest == {"XPU_MEM": "3G"}
    # A reason that devices share is given once.
    assert "(GPU 0-3: 3G free, 4G requested)" in refused.line()


def test_devices_of_a_kind_stand_together_in_a_refusal() -> None:
    statuses = tuple(
        DeviceStatus(index, 0, 0, reason)
        for index, reason in [
            ("0", "a"),
            ("1", "b"),
            ("2", "a"),
            ("3", "a"),
            ("4", "a"),
            ("6:0", "a"),
            ("7", "b"),
            ("8", "a"),
            ("9", "a"),
        ]
    )
    assert "(GPU 0, 2-4, 6:0, 8, 9: a; GPU 1, 7: b)" in Refusal("not-eligible", "no", statuses).line()


def test_a_refusal_tells_eight_reasons_and_sixteen_devices_of_each_and_counts_the_others() -> None:
    def line(*reasons: str) -> str:
        statuses = (DeviceStatus(str(2 * n), 0, 0, reason) for n, reason in enumerate(reasons))
        return Refusal("not-eligible", "no", tuple(statuses)).line()

    assert line(*"abcdefgh").endswith("; GPU 14: h)")
    assert line(*"abcdefghii").endswith("; GPU 14: h; and 2 more)")
    assert line(*"a" * 16).endswith(", 28, 30: a)")
    assert line(*"a" * 18).endswith(", 28, 30 and 2 more: a)")


def test_a_refusal_names_the_container_that_has_the_whole_device() -> None:
    uses = {"GPU-0": Use(15 * GIB, 30, 1, True, "0123456789abcdef", 30)}
    for wanted in (ask(MEM="1G"), ask(CORES="10")):
        refused = refusal(wanted, candidates(device(0)), uses)
        told = "GPU 0: all of it is held by container 0123456789ab (XPU_CORES=30, no XPU_MEM)"
        assert told in refused.line()


def test_a_request_without_an_amount_gets_the_default_of_the_device() -> None:
    small = candidates(device(0))[0].replace(default=4 * GIB)
    (part,) = outcome if isinstance(outcome := place(ask(CORES="30"), [small], {}), tuple) else ()
    assert (part.memory_bytes, part.limited) == (4 * GIB, True)
    beside = {"GPU-0": Use(12 * GIB, 0, 1)}
    refused = refusal(ask(COUNT="1"), [small], beside)
    assert refused.code == "not-enough-memory"
    assert "no device has 4G of memory free (GPU 0: 3G free, 4G requested)" in refused.line()


def test_of_too_many_devices_as_many_as_fit_are_offered() -> None:
    refused = refusal(ask(MEM="15G", COUNT="5"), FOUR, {})
    assert refused.code == "not-enough-devices"
    assert refused.nearest == {"XPU_MEM": "15G", "XPU_COUNT": "4"}


def test_one_device_is_offered_by_its_number_if_several_were_requested() -> None:
    # Beside an XPU_COUNT=2 that stays, XPU_MEM=15G alone would be refused again.
    node = candidates(device(0))
    refused = refusal(ask(MEM="15G", COUNT="2"), node, {})
    assert refused.nearest == {"XPU_MEM": "15G", "XPU_COUNT": "1"}
    assert "XPU_COUNT=1" in str(refused.line())


def test_a_full_node_offers_nothing() -> None:
    refused = refusal(ask(MEM="1G"), candidates(device(0)), {"GPU-0": Use(15 * GIB, 0, 1)})
    assert refused.nearest is None
    assert "xpu ps" in refused.line()


def test_a_device_that_may_not_serve_says_why() -> None:
    barred = Candidate(device(0), "driver 580 cannot hold a memory limit", Holding())
    refused = refusal(ask(MEM="1G"), [barred], {})
    assert refused.code == "not-eligible"
    assert refused.line().count("driver 580") == 1
    # Less of anything would not help.
    assert "nothing smaller" not in refused.line()
    # Where it is named beside another device, that one is left to offer.
    refused = refusal(ask(MEM="16G", VISIBLE_DEVICES="0,1"), [barred, *candidates(device(1))], {})
    assert refused.nearest == {"XPU_MEM": "15G", "XPU_VISIBLE_DEVICES": "1"}


def test_a_policys_maximum_can_be_had() -> None:
    limited = [Candidate(device(0), None, Holding(), 2 * GIB)]
    refused = refusal(ask(COUNT="1"), limited, {})
    assert refused.nearest == {"XPU_MEM": "2G"}


# Properties.

amounts = st.integers(1, 20 * 1024).map(lambda mib: Memory(mib * MIB))
shares = st.integers(1, 100).map(lambda percent: Memory(None, percent * 10_000))
cores = st.none() | st.integers(1, 20).map(lambda step: step * 5)
policies = st.sampled_from(["binpack", "spread"])


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[Candidate], dict[str, Use]]:
    sizes = draw(st.lists(st.sampled_from([8, 15, 40, 80]), min_size=1, max_size=5))
    devices = [device(index, size * GIB) for index, size in enumerate(sizes)]
    uses = {}
    for each in devices:
        if draw(st.booleans()):
            used = draw(st.integers(0, each.memory_bytes // MIB)) * MIB
            uses[each.uuid] = Use(used, draw(st.integers(0, 20)) * 5, 1)
    return candidates(*devices), uses


@st.composite
def requests(draw: st.DrawFn) -> Request:
    memory = tuple(draw(st.lists(amounts | shares, max_size=3)))
    count = len(memory) if len(memory) > 1 else draw(st.integers(1, 4))
    return Request(count=count, memory=memory, cores=draw(cores))


def check(request: Request, node: list[Candidate], uses: dict[str, Use], outcome: tuple[Slice, ...]) -> None:
    by_uuid = {candidate.device.uuid: candidate.device for candidate in node}
    assert len(outcome) == request.count
    assert len({part.device_uuid for part in outcome}) == request.count
    for position, part in enumerate(outcome):
        found, use = by_uuid[part.device_uuid], uses.get(part.device_uuid, Use())
        memory = request.memory_of(position)
        assert part.memory_bytes == (found.memory_bytes if memory is None else memory.on(found.memory_bytes))
        assert use.memory_bytes + part.memory_bytes <= found.memory_bytes
        assert use.cores + (part.cores or 0) <= 100
        if memory is None:
            assert use.slices == 0


@given(nodes(), requests(), policies)
@settings(max_examples=300)
def test_a_grant_fits_and_a_refusals_nearest_request_is_granted(
    node: tuple[list[Candidate], dict[str, Use]], request: Request, policy: str
) -> None:
    found, uses = node
    outcome = place(request, found, uses, policy=policy)
    if isinstance(outcome, tuple):
        check(request, found, uses, outcome)
        return
    assert "\n" not in outcome.line()
    assert len(outcome.devices) == len(found)
    if outcome.nearest is not None:
        again = parse(outcome.nearest)
        assert not isinstance(place(again, found, uses, policy=policy), Refusal), outcome.nearest
        if request.cores:
            assert (again.cores or 0) <= request.cores


@given(nodes(), requests())
@settings(max_examples=200)
def test_a_request_is_refused_only_if_no_arrangement_serves_it(
    node: tuple[list[Candidate], dict[str, Use]], request: Request
) -> None:
    from itertools import combinations

    found, uses = node
    outcome = place(request, found, uses)
    possible = False
    # Values go to devices in the devices' order.
    for chosen in combinations(found, min(request.count, len(found))):
        if len(chosen) < request.count:
            break
        fits = True
        for position, candidate in enumerate(chosen):
            use = uses.get(candidate.device.uuid, Use())
            memory = request.memory_of(position)
            total = candidate.device.memory_bytes
            need = total if memory is None else memory.on(total)
            fits = fits and need <= total - use.memory_bytes and (request.cores or 0) <= 100 - use.cores
            fits = fits and not (memory is None and use.slices)
        possible = possible or fits
    assert isinstance(outcome, tuple) == possible
