"""The offer of cards: the number of IDs, and the healthy ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.device_plugin import offer
from xpu_runtime.kubernetes.device_plugin.offer import Card, Waiting, ids_of, offered
from xpu_runtime.kubernetes.device_plugin.v1beta1 import (
    LONGEST_ID,
    UNHEALTHY,
    Device,
    ListAndWatchResponse,
)
from xpu_runtime.kubernetes.resources import CORES, MEMORY, SHARES, WHOLE, Resources
from xpu_runtime.ledger.grants import Use

GIB = 1 << 30
RESOURCES = Resources(aliases=("aliyun.com/gpu",))
NOBODY = Waiting()


def card(number: int, gib: int = 15, use: Use | None = None, others: Use | None = None, **why: str) -> Card:
    return Card(f"GPU-{number:036}", gib * GIB, gib * GIB, use=use or Use(), others=others or Use(), **why)


def had(resource: str, cards: list[Card], allocated: object = (), waiting: Waiting = NOBODY) -> int:
    return len(offered(resource, cards, RESOURCES, allocated, waiting).healthy)  # type: ignore[arg-type]


def taken(gib: float, cores: int = 0, slices: int = 1, *, whole: bool = False) -> Use:
    return Use(int(gib * GIB), cores, slices, whole)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (Use(), (15, 100, 100, 1)),
        (taken(4, 30), (11, 70, 70, 0)),
        (taken(7.5), (7, 100, 50, 0)),
        (taken(0.1), (14, 100, 99, 0)),
        (taken(15, 100), (0, 0, 0, 0)),
        (taken(0, whole=True), (0, 0, 0, 0)),
        (taken(20, 130), (0, 0, 0, 0)),
    ],
)
def test_units_that_are_left_of_a_card(use: Use, expected: tuple[int, ...]) -> None:
    resources = (MEMORY, CORES, SHARES, WHOLE)
    assert tuple(had(each, [card(0, use=use)]) for each in resources) == expected
    assert had("aliyun.com/gpu-mem", [card(0, use=use)]) == expected[0]
    assert had("aliyun.com/gpu-core.percentage", [card(0, use=use)]) == expected[1]


def test_a_resource_of_no_known_kind_is_not_counted_as_another() -> None:
    class Newer(Resources):
        def kind(self, name: str) -> str:
            return "links"

    name, errors = "yoyoworks.com/xpu-links", (ValueError, NotImplementedError)
    for known, told in ((RESOURCES, "is not a known resource"), (Newer(), "its units cannot be counted")):
        for use in (Use(), taken(4)):
            with pytest.raises(errors, match=f"links:? {told}"):
                offer.free_units(name, card(0), use, known)
        with pytest.raises(errors, match=f"links:? {told}"):
            offer.units(name, card(0), known)


def test_ids_that_are_not_offered_are_counted_by_the_state_of_their_card() -> None:
    lost, drained = card(1, fault="Xid 79"), card(2, withheld="drained")
    # docker has 4 GiB, and a pod all of another card through `xpu`.
    shared, whole = card(3, use=taken(4), others=taken(4)), card(4, use=taken(15, whole=True))
    cards = [lost, drained, shared, whole, card(5)]

    found = offer.by_state(MEMORY, offered(MEMORY, cards, RESOURCES, (), NOBODY), cards, RESOURCES)

    assert found == {"healthy": 11 + 15, "unhealthy": 15, "withheld": 15, "elsewhere": 4 + 15}


def test_pods_slices_of_a_drained_card_are_not_counted_as_withheld() -> None:
    cards = [card(0, withheld="drained", use=taken(4)), card(1, fault="lost")]
    has = set(ids_of(MEMORY, cards, RESOURCES)[3:7])
    found = offer.by_state(MEMORY, offered(MEMORY, cards, RESOURCES, has, NOBODY), cards, RESOURCES)
    assert found == {"healthy": 4, "unhealthy": 15, "withheld": 11, "elsewhere": 0}


def test_a_card_that_has_less_than_a_unit_over_offers_whole_units() -> None:
    assert len(ids_of(MEMORY, [card(0).replace(memory_bytes=15 * GIB + 5), card(1)], RESOURCES)) == 30


def test_no_id_names_a_card_or_is_that_of_another_resource() -> None:
    cards = [card(0), card(1)]
    every = [each for resource in RESOURCES.names for each in ids_of(resource, cards, RESOURCES)]
    assert len(set(every)) == len(every) == 2 * (15 + 100 + 100 + 1 + 15 + 100)
    assert not [each for each in every for one in cards if one.uuid in each]
    assert ids_of(MEMORY, cards, RESOURCES)[16] == "xpu-mem-16"


def test_a_containers_ids_have_the_health_of_its_own_card() -> None:
    cards = [card(0, use=taken(3)), card(1, use=taken(4), fault="it fell off")]
    ids = ids_of(MEMORY, cards, RESOURCES)
    on_first, on_second = set(ids[20:23]), set(ids[:4])
    found = offered(MEMORY, cards, RESOURCES, on_first | on_second, NOBODY, on_second)
    assert found.ids == ids
    assert on_first <= found.healthy and not on_second & found.healthy
    assert len(found.healthy) == 15


def test_a_pod_keeps_ids_that_an_earlier_build_gave_it_and_the_number_stays() -> None:
    cards = [card(0), card(1, use=taken(4))]
    names = ids_of(MEMORY, cards, RESOURCES)
    has = {f"{cards[1].uuid}::{n}" for n in range(4)}
    found = offered(MEMORY, cards, RESOURCES, has, NOBODY)
    assert set(found.ids) == {*names[:26], *has} and len(found.ids) == 30
    assert found.healthy == set(found.ids)
    assert offered(MEMORY, cards, RESOURCES, has, NOBODY, has).healthy == set(names[:26])


def test_a_card_whose_memory_is_not_known_offers_nothing() -> None:
    unknown = Card("GPU-unknown-0", 0, 0, fault="lost")
    for resource in RESOURCES.names:
        assert offered(resource, [unknown], RESOURCES, (), NOBODY).ids == ()


def test_a_waiting_pods_units_are_offered_even_if_nothing_is_free() -> None:
    full = [card(0, use=taken(15))]
    assert had(MEMORY, full) == 0
    assert had(MEMORY, full, waiting=Waiting(15, 0)) == 15
    # Units that a pod waits for, and that are not yet reserved, are offered to no other pod.
    assert had(MEMORY, [card(0)], waiting=Waiting(4, 4)) == 15
    assert had(MEMORY, [card(0, use=taken(10))], waiting=Waiting(4, 4)) == 5


def test_without_the_kubelets_answer_only_others_slices_are_subtracted() -> None:
    cards = [card(0, use=taken(9), others=taken(4)), card(1)]
    found = offered(MEMORY, cards, RESOURCES, None, NOBODY)
    assert len(found.healthy) == 26
    assert had(WHOLE, cards, None) == 1


USES = st.builds(
    lambda gib, cores, whole: taken(gib, cores, int(bool(gib or cores or whole)), whole=whole),
    st.integers(0, 16),
    st.integers(0, 110),
    st.booleans(),
)
CARDS = st.lists(
    st.tuples(USES, st.sampled_from(["", "", "sick"]), st.sampled_from(["", "", "drained"])),
    min_size=1,
    max_size=4,
).map(lambda some: [card(n, use=u, fault=f, withheld=w) for n, (u, f, w) in enumerate(some)])


@given(CARDS, st.sampled_from(RESOURCES.names), st.data())
def test_as_many_are_healthy_as_there_are_units_and_nothing_of_a_pods_is_taken(
    cards: list[Card], resource: str, data: st.DataObject
) -> None:
    every = list(ids_of(resource, cards, RESOURCES))
    has = data.draw(st.sets(st.sampled_from(every), max_size=len(every))) if every else set()
    waits = data.draw(st.integers(0, 40))
    not_allocated = data.draw(st.integers(0, waits))
    sick = data.draw(st.sets(st.sampled_from(sorted(has)))) if has else set()
    found = offered(resource, cards, RESOURCES, has, Waiting(waits, not_allocated), sick)
    assert list(found.ids) == every
    usable = [one for one in cards if not one.fault and not one.withheld]
    free = sum(offer.free_units(resource, one, one.use, RESOURCES) for one in usable)
    expected = min(free + waits - min(not_allocated, free), len(every) - len(has))
    assert len(found.healthy - has) == expected
    assert found.healthy & has == has - sick
    states = offer.by_state(resource, found, cards, RESOURCES)
    assert sum(states.values()) == len(every) and min(states.values()) >= 0


# The list's size


@given(st.integers(1, 8), st.integers(1, 200), st.sampled_from([1 << 20, 1 << 28, 1 << 30]))
def test_the_size_is_that_of_the_message(number: int, gib: int, unit: int) -> None:
    known = RESOURCES.replace(memory_unit=unit)
    cards = [card(n, min(gib, 4) if unit == 1 << 20 else gib) for n in range(number)]
    every = [Device(each, UNHEALTHY) for each in ids_of(MEMORY, cards, known)]
    assert offer._size(MEMORY, cards, known) == len(ListAndWatchResponse(tuple(every)).encoded())


def test_a_list_that_is_too_long_is_refused_with_the_unit_that_fits() -> None:
    cards = [card(n, 80) for n in range(8)]
    offer.check_size(cards, RESOURCES)
    with pytest.raises(ConfigError, match=r"1MiB: .* 18 MiB .*4 MiB: a unit that fits this node is 8MiB"):
        offer.check_size(cards, RESOURCES.replace(memory_unit=1 << 20))
    offer.check_size(cards, RESOURCES.replace(memory_unit=8 << 20))


def test_a_list_that_no_unit_makes_shorter_is_refused_as_well() -> None:
    cards = [card(n, 1) for n in range(1_500)]
    with pytest.raises(ConfigError, match=r"xpu-shares for 1500 devices has 4 MiB.* fewer MIG devices"):
        offer.check_size(cards, RESOURCES)


def test_no_id_is_longer_than_the_kubelet_takes() -> None:
    cards = [card(n, 80) for n in range(1_000)]
    assert max(len(each) for name in RESOURCES.names for each in ids_of(name, cards, RESOURCES)) <= LONGEST_ID
