"""Requests at their bounds: just allowed, just refused, and the nearest request of the refusal.

Each case here is one that a change of `<` to `<=`, or of a number by one, would turn over.
"""

from __future__ import annotations

import pytest

from support.requests import parse
from xpu_runtime.errors import RequestError
from xpu_runtime.ledger.grants import Holding, Slice, Use
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.placement.available import Candidate
from xpu_runtime.placement.container import place
from xpu_runtime.placement.resizing import below_use, resize, resize_cores
from xpu_runtime.request import require
from xpu_runtime.request.parse import MAX_DEVICES
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import MIB, Memory, as_variable, parse_memory
from xpu_runtime.vendors.inventory import Device, Node

GIB = 1 << 30


def ask(**variables: str) -> Request:
    return parse({f"XPU_{name}": value for name, value in variables.items()})


def wrong(others: dict[str, str] | None = None, step: int = 5, **variables: str) -> str:
    asked = {f"XPU_{name}": value for name, value in {**(others or {}), **variables}.items()}
    with pytest.raises(RequestError) as caught:
        parse(asked, step=step)
    return str(caught.value)


# ---- variables ----


@pytest.mark.parametrize(("text", "cores"), [("5", 5), ("95", 95), ("100", 100), ("100%", 100), (" 5 ", 5)])
def test_cores_that_can_be_had(text: str, cores: int) -> None:
    assert ask(CORES=text).cores == cores


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1", "5"),
        ("4", "5"),
        ("7", "5"),
        ("8", "10"),
        ("96", "95"),
        ("101", "100"),
        ("105", "100"),
        ("999", "100"),
    ],
)
def test_cores_that_cannot(text: str, meant: str) -> None:
    assert wrong(CORES=text) == (
        f"XPU_CORES='{text}': must be a percentage from 5 to 100 in steps of 5; did you mean {meant}?"
    )


def test_a_cap_of_zero_is_refused_with_the_way_to_have_no_cap() -> None:
    for text in ("0", "00", "0%"):
        assert wrong(CORES=text) == (
            f"XPU_CORES='{text}': must be a percentage from 5 to 100 in steps of 5; "
            "leave it out to have no cap, unless defaults.cores or policy.max_cores is set"
        )


def test_the_step_of_cores_is_the_configurations() -> None:
    assert parse({"XPU_CORES": "1"}, step=1).cores == 1
    assert parse({"XPU_CORES": "100"}, step=1).cores == 100
    assert "from 1 to 100 in steps of 1; leave it out" in wrong(step=1, CORES="0")
    assert "did you mean 100?" in wrong(step=1, CORES="101")
    assert "did you mean 20?" in wrong(step=20, CORES="5")


def test_as_many_devices_as_a_request_may_name() -> None:
    assert ask(COUNT="1").count == 1
    assert ask(COUNT=str(MAX_DEVICES)).count == MAX_DEVICES
    for text in ("0", str(MAX_DEVICES + 1), "-1", "1.0"):
        assert f"must be a whole number from 1 to {MAX_DEVICES}" in wrong(COUNT=text)
    names = [str(index) for index in range(MAX_DEVICES + 1)]
    assert ask(VISIBLE_DEVICES=",".join(names[:-1])).count == MAX_DEVICES
    assert f"has more than {MAX_DEVICES} items" in wrong(VISIBLE_DEVICES=",".join(names))


def test_an_index_is_of_nine_digits_and_a_uuid_of_one_letter_at_least() -> None:
    assert ask(VISIBLE_DEVICES="999999999,0:999999999,GPU-a").count == 3
    for text in ("1000000000", "0:1000000000", "GPU-", "0:1:2", "MIG-", "GPU-a-$"):
        assert "is not a device" in wrong(VISIBLE_DEVICES=text)


def test_at_most_eight_problems_are_told() -> None:
    told = wrong({f"NO{n}": "1" for n in range(20)})
    assert told.count("unknown variable") == 8


def test_long_names_and_values_are_cut_after_sixty_letters() -> None:
    assert f"XPU_COUNT='{'x' * 60}': " in wrong(COUNT="x" * 60)
    assert f"XPU_COUNT='{'x' * 60}...': " in wrong(COUNT="x" * 61)
    assert wrong({"N" * 56: "1"}).startswith(f"XPU_{'N' * 56}='1': ")
    assert wrong({"N" * 57: "1"}).startswith(f"XPU_{'N' * 56}...='1': ")


# ---- amounts ----


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("100%", Memory(millionths=1_000_000)),
        ("0.0001%", Memory(millionths=1)),
        ("1B", Memory(bytes=1)),
        ("0.001K", Memory(bytes=1)),
        ("123456789012345678B", Memory(bytes=123456789012345678)),
        ("000000000000000004G", Memory(bytes=4 * GIB)),
    ],
)
def test_amounts_that_can_just_be_had(text: str, memory: Memory) -> None:
    assert parse_memory(text) == memory


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.00001%", "is not between"),
        ("100.0001%", "is not between"),
        ("0.0001K", "is zero"),
        ("1234567890123456789B", "is not an amount"),
        ("4 G B", "is not an amount"),
        ("4BI", "unknown unit"),
        ("4GIBB", "unknown unit"),
    ],
)
def test_amounts_that_just_cannot(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "device", "amount"),
    [
        ("50%", 3 * MIB, MIB),
        ("1%", 99 * MIB, MIB),
        ("1%", 200 * MIB - 1, MIB),
        ("1%", 200 * MIB, 2 * MIB),
        ("99.9999%", 4 * GIB, 4095 * MIB),
        ("100%", 4 * GIB + 1, 4 * GIB + 1),
    ],
)
def test_a_share_is_rounded_down_to_a_mebibyte_and_never_to_none(text: str, device: int, amount: int) -> None:
    assert parse_memory(text).on(device) == amount


def test_an_offer_is_written_in_the_largest_exact_unit() -> None:
    sizes = [GIB, GIB - MIB, 3 * GIB // 2, 5 * GIB // 4, GIB + 1, MIB, MIB - 1, 1, GIB // 2]
    texts = ["1G", "1023M", "1.5G", "1280M", "1024M", "1M", "1048575B", "1B", "512M"]
    assert [as_variable(size) for size in sizes] == texts


# ---- requirements ----


def test_an_expression_of_requirements_has_a_longest_length() -> None:
    text = "cuda>=12.0" + " " * (8192 - 10)
    assert len(require.parse(text)) == 1
    with pytest.raises(ValueError, match="longer than 8192"):
        require.parse(text + " ")


@pytest.mark.parametrize("text", ["1.2.3.4.5.6", "999999999", "0"])
def test_versions(text: str) -> None:
    assert require.version(text) == tuple(map(int, text.split(".")))


@pytest.mark.parametrize("text", ["1.2.3.4.5.6.7", "1000000000", "", "1.", "1.x", "\u0661"])
def test_no_versions(text: str) -> None:
    assert require.version(text) is None


# ---- placement ----


def device(index: int, memory: int = 16 * GIB) -> Device:
    return Device(
        str(index), f"GPU-{index}", "Tesla T4", memory, (Node(f"/dev/nvidia{index}", 195, index),), "nvidia"
    )


def candidates(*devices: Device, most: int | None = None) -> list[Candidate]:
    return [Candidate(each, None, Holding(), most) for each in devices]


PAIR = candidates(device(0), device(1))


def granted(outcome: tuple[Slice, ...] | Refusal) -> tuple[Slice, ...]:
    assert not isinstance(outcome, Refusal), outcome.line()
    return outcome


def refusal(outcome: tuple[Slice, ...] | Refusal) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome


@pytest.mark.parametrize("oversubscribe", [1.0, 1.5])
def test_the_last_byte_can_be_had_and_no_more(oversubscribe: float) -> None:
    one = candidates(device(0))
    used = int(16 * GIB * oversubscribe) - 3 * GIB
    uses = {"GPU-0": Use(used, 0, 1)}
    asked = Request(memory=(Memory(bytes=3 * GIB),))
    assert granted(place(asked, one, uses, oversubscribe=oversubscribe))[0].memory_bytes == 3 * GIB
    asked = Request(memory=(Memory(bytes=3 * GIB + 1),))
    told = refusal(place(asked, one, uses, oversubscribe=oversubscribe))
    assert (told.code, told.nearest) == ("not-enough-memory", {"XPU_MEM": "3G"})
    assert told.devices[0].free_memory_bytes == 3 * GIB


def test_the_policys_maximum_can_be_had_and_no_more() -> None:
    one = candidates(device(0), most=2 * GIB)
    assert granted(place(ask(MEM="2G"), one, {}))
    told = refusal(place(ask(MEM="2049M"), one, {}))
    assert told.nearest == {"XPU_MEM": "2G"}
    assert "2048M allowed by the policy, 2049M requested" in told.line()
    # Where less than the maximum is free, that is what it says.
    told = refusal(place(ask(MEM="2G"), one, {"GPU-0": Use(15 * GIB, 0, 1)}))
    assert "1G free, 2G requested" in told.line()


@pytest.mark.parametrize(("free", "cores"), [(5, "5"), (9, "5"), (30, "30"), (34, "30")])
def test_the_last_step_of_cores_can_be_had(free: int, cores: str) -> None:
    one, uses = candidates(device(0)), {"GPU-0": Use(GIB, 100 - free, 1)}
    assert granted(place(ask(MEM="1G", CORES=cores), one, uses))
    told = refusal(place(ask(MEM="1G", CORES=str(int(cores) + 5)), one, uses))
    assert (told.code, told.nearest) == ("not-enough-cores", {"XPU_MEM": "1G", "XPU_CORES": cores})


def test_without_a_step_of_cores_nothing_is_offered() -> None:
    told = refusal(place(ask(MEM="1G", CORES="5"), candidates(device(0)), {"GPU-0": Use(GIB, 96, 1)}))
    assert told.nearest is None


def test_a_mebibyte_is_the_least_that_is_offered() -> None:
    one = candidates(device(0))
    for left, offered in ((MIB, {"XPU_MEM": "1M"}), (MIB - 1, None), (0, None)):
        told = refusal(place(ask(MEM="1G"), one, {"GPU-0": Use(16 * GIB - left, 0, 1)}))
        assert told.nearest == offered, left


MIXED = {"GPU-0": Use(12 * GIB, 80, 1), "GPU-1": Use(4 * GIB, 20, 1)}


@pytest.mark.parametrize(
    ("asked", "uses", "offered"),
    [
        ({"MEM": "20G"}, MIXED, {"XPU_MEM": "12G"}),
        ({"MEM": "8G", "COUNT": "2"}, MIXED, {"XPU_MEM": "4G", "XPU_COUNT": "2"}),
        # Less of both on two devices is nearer than all of it on one.
        ({"MEM": "4G", "CORES": "50", "COUNT": "2"}, MIXED,
         {"XPU_MEM": "4G", "XPU_CORES": "20", "XPU_COUNT": "2"}),
        ({"MEM": "8G", "CORES": "90"}, MIXED, {"XPU_MEM": "8G", "XPU_CORES": "80"}),
        ({"MEM": "8G", "VISIBLE_DEVICES": "0,1"}, MIXED, {"XPU_MEM": "4G", "XPU_VISIBLE_DEVICES": "0,1"}),
        ({"MEM": "8G", "VISIBLE_DEVICES": "all"}, MIXED, {"XPU_MEM": "4G", "XPU_VISIBLE_DEVICES": "all"}),
        # Neither device has all the memory, or all the cores, that two slices need.
        ({"MEM": "8G", "CORES": "50", "COUNT": "2"}, MIXED,
         {"XPU_MEM": "4G", "XPU_CORES": "20", "XPU_COUNT": "2"}),
        # The one with the most memory has the fewest cores.
        ({"MEM": "8G", "CORES": "50"}, {"GPU-0": Use(0, 80, 1), "GPU-1": Use(6 * GIB, 60, 1)},
         {"XPU_MEM": "8G", "XPU_CORES": "40"}),
        # All of the memory is there to the byte, beside a device with more of it and fewer cores.
        ({"MEM": "8G", "CORES": "50"}, {"GPU-0": Use(0, 80, 1), "GPU-1": Use(8 * GIB, 60, 1)},
         {"XPU_MEM": "8G", "XPU_CORES": "40"}),
        # One step of cores is left, and less memory than was asked for.
        ({"MEM": "8G", "CORES": "50"}, {"GPU-0": Use(12 * GIB, 95, 1), "GPU-1": Use(16 * GIB, 0, 1)},
         {"XPU_MEM": "4G", "XPU_CORES": "5"}),
        # All cores are booked, and nobody asks for any.
        ({"MEM": "20G"}, {"GPU-0": Use(4 * GIB, 100, 1), "GPU-1": Use(4 * GIB, 100, 1)}, {"XPU_MEM": "12G"}),
        # Just the cores are left on the one, and more memory on the other.
        ({"MEM": "10G", "CORES": "50"}, {"GPU-0": Use(8 * GIB, 50, 1), "GPU-1": Use(7 * GIB, 95, 1)},
         {"XPU_MEM": "8G", "XPU_CORES": "50"}),
        # Half of both is nearer than all of one and a fifth of the other.
        ({"MEM": "10G", "CORES": "100"}, {"GPU-0": Use(14 * GIB, 0, 1), "GPU-1": Use(11 * GIB, 50, 1)},
         {"XPU_MEM": "5G", "XPU_CORES": "50"}),
        # The one device is full: only fewer devices are left to offer.
        ({"MEM": "1G", "COUNT": "2"}, {"GPU-0": Use(16 * GIB, 0, 1)},
         {"XPU_MEM": "1G", "XPU_COUNT": "1"}),
        ({"MEM": "1G", "VISIBLE_DEVICES": "all"}, {"GPU-0": Use(16 * GIB, 0, 1)},
         {"XPU_MEM": "1G", "XPU_VISIBLE_DEVICES": "1"}),
        ({"MEM": "8G", "CORES": "50", "VISIBLE_DEVICES": "1,0"},
         {"GPU-0": Use(0, 100, 1), "GPU-1": Use(0, 80, 1)},
         {"XPU_MEM": "8G", "XPU_CORES": "20", "XPU_VISIBLE_DEVICES": "1"}),
    ],
)  # fmt: skip
def test_an_offer_fits_and_a_unit_more_does_not(
    asked: dict[str, str], uses: dict[str, Use], offered: dict[str, str]
) -> None:
    told = refusal(place(ask(**asked), PAIR, uses))
    assert told.nearest == offered
    named = offered.get("XPU_VISIBLE_DEVICES", "0,1").replace("all", "0,1").split(",")
    choice = [each for each in PAIR if each.device.index in named]
    assert granted(place(parse(offered), choice, uses))
    memory = parse_memory(offered["XPU_MEM"]).bytes or 0
    assert offered["XPU_MEM"] == asked["MEM"] or refusal(
        place(parse({**offered, "XPU_MEM": f"{memory // MIB + 1}M"}), choice, uses)
    )
    if "XPU_CORES" in offered:
        refusal(place(parse({**offered, "XPU_CORES": str(int(offered["XPU_CORES"]) + 5)}), choice, uses))


def test_to_a_request_for_every_whole_device_those_that_are_free_are_offered() -> None:
    # As NVIDIA's images ask: NVIDIA_VISIBLE_DEVICES=all.
    told = refusal(place(ask(VISIBLE_DEVICES="all"), PAIR, {"GPU-0": Use(GIB, 0, 1)}))
    assert told.nearest == {"XPU_MEM": "15G", "XPU_VISIBLE_DEVICES": "all"}
    told = refusal(place(ask(VISIBLE_DEVICES="all"), PAIR, {"GPU-0": Use(16 * GIB, 0, 1)}))
    assert told.nearest == {"XPU_MEM": "16G", "XPU_VISIBLE_DEVICES": "1"}


def test_equal_devices_are_taken_in_their_order_and_cores_decide_between_equals() -> None:
    assert granted(place(ask(MEM="1G"), PAIR, {}))[0].device_index == "0"
    uses = {"GPU-0": Use(GIB, 10, 1), "GPU-1": Use(GIB, 20, 1)}
    assert granted(place(ask(MEM="1G"), PAIR, uses))[0].device_index == "1"
    assert granted(place(ask(MEM="1G"), PAIR, uses, policy="spread"))[0].device_index == "0"


def test_memory_on_one_and_cores_on_another_are_no_device_with_both() -> None:
    # The second time each has just what is asked for.
    for cores_used, memory_used in ((0, 0), (50, 8 * GIB)):
        uses = {"GPU-0": Use(12 * GIB, cores_used, 1), "GPU-1": Use(memory_used, 80, 1)}
        assert refusal(place(ask(MEM="8G", CORES="50"), PAIR, uses)).code == "not-enough"


def test_whole_devices_by_name_need_no_values() -> None:
    assert [part.limited for part in granted(place(ask(VISIBLE_DEVICES="0,1"), PAIR, {}))] == [False] * 2
    assert len(granted(place(ask(VISIBLE_DEVICES="all", MEM="1G"), PAIR, {}))) == 2


def test_values_for_each_device_go_by_their_number() -> None:
    outcome = granted(place(ask(MEM="1G,2G", VISIBLE_DEVICES="1,0"), [PAIR[1], PAIR[0]], {}))
    assert [(part.device_index, part.memory_bytes) for part in outcome] == [("1", GIB), ("0", 2 * GIB)]
    told = refusal(place(ask(MEM="1G,2G,3G", VISIBLE_DEVICES="all"), PAIR, {}))
    assert told.code == "not-enough-devices"


def test_a_limit_can_be_cut_to_the_use_and_no_further() -> None:
    part = Slice("0", "GPU-0", 4 * GIB, True, None, Holding())
    use = Use(4 * GIB, 0, 1)
    assert below_use(device(0), part, use, GIB, GIB) is None
    told = below_use(device(0), part, use, GIB, GIB + 1)
    assert told is not None and told.nearest == {"XPU_MEM": "1025M"}
    # It is never offered more than it has, though more may be in use since an earlier change.
    told = below_use(device(0), part, use, GIB, 5 * GIB)
    assert told is not None and told.nearest == {"XPU_MEM": "4G"}


def test_a_limit_can_grow_by_all_that_is_free_and_no_further() -> None:
    part = Slice("0", "GPU-0", 4 * GIB, True, None, Holding())
    use = Use(10 * GIB, 0, 2)
    assert resize(device(0), part, use, Memory(bytes=10 * GIB), 1.0) == 10 * GIB
    told = resize(device(0), part, use, Memory(bytes=10 * GIB + 1), 1.0)
    assert isinstance(told, Refusal) and told.nearest == {"XPU_MEM": "10G"}
    # Granted beyond the device under another configuration: the slice keeps its amount.
    full = Use(20 * GIB, 0, 2)
    assert resize(device(0), part, full, Memory(bytes=4 * GIB), 1.0) == 4 * GIB
    told = resize(device(0), part, full, Memory(bytes=4 * GIB + 1), 1.0)
    assert isinstance(told, Refusal) and told.nearest == {"XPU_MEM": "4G"}
    assert told.devices[0].free_memory_bytes == 0


def test_a_cap_keeps_its_amount_where_more_than_all_cores_are_granted() -> None:
    # Two ledgers have granted them, one of which was away for a while.
    part = Slice("0", "GPU-0", 4 * GIB, True, 60, Holding())
    over = Use(8 * GIB, 120, 2)
    assert [resize_cores(device(0), part, over, cores) for cores in (60, 55)] == [60, 55]
    told = resize_cores(device(0), part, over, 65)
    assert isinstance(told, Refusal) and told.nearest == {"XPU_CORES": "60"}


def test_of_a_device_that_is_another_containers_nothing_is_free() -> None:
    taken = {"GPU-0": Use(GIB, 0, 1, True)}
    told = refusal(place(ask(MEM="1G"), candidates(device(0)), taken))
    assert [each.free_memory_bytes for each in told.devices] == [0]
