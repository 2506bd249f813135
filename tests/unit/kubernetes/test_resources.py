"""A pod's limits as demands: the meaning of each resource, refusals, and the API's forms of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import kubernetes_objects
from support.kubernetes_objects import GIB, Json, container
from xpu_runtime.kubernetes.resources import DemandError, Resources, whole_number
from xpu_runtime.placement.demand import Demand, PodDemand

ALL = Resources(aliases=("aliyun.com/gpu", "nvidia.com/mps"))


def pod(*containers: Json, init: Iterable[Json] = (), **annotations: str) -> Json:
    names = {f"yoyoworks.com/xpu-{name}": text for name, text in annotations.items()}
    made = kubernetes_objects.pod("p", *containers, annotations=names)
    made["spec"]["initContainers"] = list(init)
    return made


def test_a_pod_without_our_resources_asks_for_nothing_with_any_annotations() -> None:
    other = {"limits": {"cpu": "2", "nvidia.com/gpu": "1", "yoyoworks.com/xpu-mem": "0"}}
    asks = {"name": "main", "resources": other}
    assert Resources().of_pod(pod(asks, count="x", policy="y")).is_empty
    assert Resources().of_pod({}).is_empty
    assert (
        Resources()
        .of_pod({"spec": {"containers": [{"name": "a"}]}, "metadata": {"annotations": None}})
        .is_empty
    )


@pytest.mark.parametrize(
    ("asked", "demand"),
    [
        ({"yoyoworks.com/xpu-mem": "4"}, Demand(1, 4 * GIB, None)),
        ({"yoyoworks.com/xpu-mem": "4", "yoyoworks.com/xpu-cores": "30"}, Demand(1, 4 * GIB, 30)),
        ({"yoyoworks.com/xpu-cores": "30", "yoyoworks.com/xpu-mem": 4}, Demand(1, 4 * GIB, 30)),
        ({"yoyoworks.com/xpu-shares": "25"}, Demand(1, None, 25, 25)),
        ({"yoyoworks.com/xpu": "2"}, Demand(2, None, None)),
        ({"aliyun.com/gpu-mem": "3", "aliyun.com/gpu-core.percentage": "10"}, Demand(1, 3 * GIB, 10)),
        ({"nvidia.com/mps-memory": "3", "nvidia.com/mps-core": "10"}, Demand(1, 3 * GIB, 10)),
    ],
)
def test_each_resource_means_what_it_says(asked: dict[str, Any], demand: Demand) -> None:
    assert ALL.of_limits("main", asked) == demand


def test_aliases_count_only_where_they_are_turned_on() -> None:
    assert Resources().of_limits("main", {"aliyun.com/gpu-mem": "3"}) is None


def test_memory_is_in_the_units_of_the_configuration() -> None:
    assert Resources(memory_unit=256 << 20).of_limits("main", {"yoyoworks.com/xpu-mem": "3"}) == Demand(
        1, 768 << 20, None
    )


def test_amounts_are_spread_evenly_over_the_devices_of_the_annotation() -> None:
    found = Resources().of_pod(pod(container("main", mem=8, cores=60), count="2"))
    assert found == PodDemand((("main", Demand(2, 4 * GIB, 30)),))
    shares = Resources().of_pod(pod(container("main", shares=150), count="2"))
    assert shares == PodDemand((("main", Demand(2, None, 75, 75)),))
    assert Resources().of_limits("main", {"yoyoworks.com/xpu": "2"}, "2") == Demand(2, None, None)


def test_a_share_of_a_device_is_whole_mebibytes_of_it_and_all_of_it_where_it_is_100() -> None:
    assert Demand(1, None, 1, 1).memory_on(15109 << 20) == 151 << 20
    assert Demand(1, None, 100, 100).memory_on(15109 << 20) == 15109 << 20
    assert not Demand(1, None, 100, 100).is_whole
    assert Demand(1, None, None).memory_on(7) == 7


def test_init_containers_and_sidecars_are_told_apart() -> None:
    found = Resources().of_pod(
        pod(
            container("main", mem=2),
            container("logger"),
            init=[
                container("fetch", mem=4),
                {**container("proxy", mem=1), "restartPolicy": "Always"},
            ],
            policy="spread",
        )
    )
    assert found == PodDemand(
        (("main", Demand(1, 2 * GIB, None)),),
        (("fetch", Demand(1, 4 * GIB, None)),),
        (("proxy", Demand(1, GIB, None)),),
        "spread",
    )


@pytest.mark.parametrize(
    ("asked", "count", "line"),
    [
        (
            {"yoyoworks.com/xpu-cores": "30"},
            None,
            "container main asks for yoyoworks.com/xpu-cores without yoyoworks.com/xpu-mem: "
            "say how much memory: yoyoworks.com/xpu-mem",
        ),
        (
            {"yoyoworks.com/xpu": "1", "yoyoworks.com/xpu-mem": "1"},
            None,
            "container main asks for yoyoworks.com/xpu and yoyoworks.com/xpu-mem: ask for one of them",
        ),
        (
            {"yoyoworks.com/xpu-mem": "1", "aliyun.com/gpu-core.percentage": "5"},
            None,
            "container main asks for yoyoworks.com/xpu-mem and aliyun.com/gpu-core.percentage: "
            "use yoyoworks.com/xpu-mem with yoyoworks.com/xpu-cores",
        ),
        (
            {"yoyoworks.com/xpu-mem": "7"},
            "2",
            "container main asks for 7 of yoyoworks.com/xpu-mem, which cannot be spread evenly over 2 "
            "devices (annotation yoyoworks.com/xpu-count): ask for 6 or 8",
        ),
        (
            {"yoyoworks.com/xpu-shares": "150"},
            None,
            "container main asks for 150 of yoyoworks.com/xpu-shares on each device, and a device has 100: "
            'ask for less, or spread it over more devices with the annotation yoyoworks.com/xpu-count: "2"',
        ),
        (
            {"yoyoworks.com/xpu": "2"},
            "3",
            "container main asks for 2 of yoyoworks.com/xpu, which are whole devices, and the pod's "
            "annotation yoyoworks.com/xpu-count says 3: leave the annotation out",
        ),
        (
            {"yoyoworks.com/xpu-mem": "1"},
            "two",
            "the pod's annotation yoyoworks.com/xpu-count='two' is not a number of devices: such as \"2\"",
        ),
        (
            {"yoyoworks.com/xpu-mem": "1"},
            "0",
            "the pod's annotation yoyoworks.com/xpu-count='0': give a number from 1 to 1024",
        ),
        (
            {"yoyoworks.com/xpu": "2k"},
            None,
            "container main asks for 2000 of yoyoworks.com/xpu: no node has so many devices",
        ),
        (
            {"yoyoworks.com/xpu-mem": "9E"},
            None,
            "container main asks for 9000000000000000000 of yoyoworks.com/xpu-mem (1 GiB each): no device "
            "has a tenth of that",
        ),
        (
            {"yoyoworks.com/xpu-mem": "1.5"},
            None,
            "container main asks for '1.5' of yoyoworks.com/xpu-mem: give a whole number",
        ),
    ],
)
def test_a_wrong_request_is_refused_with_a_remedy(asked: dict[str, Any], count: Any, line: str) -> None:
    with pytest.raises(DemandError) as refused:
        ALL.of_limits("main", asked, count)
    assert str(refused.value) == line


def test_a_misspelt_policy_is_refused_with_the_right_spelling() -> None:
    with pytest.raises(DemandError, match="did you mean binpack"):
        Resources().of_pod(pod(container("main", mem=1), policy="binpak"))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4), (4, 4), ("1k", 1000), ("2Ki", 2048), ("1.5Ki", 1536), ("1e3", 1000), ("12E2", 1200),
        ("1E", 10**18), ("4000m", 4), ("4.0", 4), ("0", 0), ("500e-2", 5), ("+3", 3),
        ("9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_quantities_are_read_as_the_api_writes_them(text: Any, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "", "-1", "1.5", "1m", "4GiB", "1e", "x", "9223372036854775808", "1e999", "1e+-5", "٤",
        True, None, [], "1" * 99,
    ],
)  # fmt: skip
def test_a_quantity_that_is_no_whole_number_is_none(text: Any) -> None:
    assert whole_number(text) is None


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "Ki", "Mi", "e2", "e0"]), st.integers(0, 3))
def test_a_decimal_point_moves_nothing_but_the_point(digits: int, suffix: str, places: int) -> None:
    factors = {"": 1, "k": 1000, "M": 10**6, "Ki": 1024, "Mi": 1 << 20, "e2": 100, "e0": 1}
    text = f"{Decimal(digits).scaleb(-places):f}"
    exact = Decimal(text) * factors[suffix]
    assert whole_number(text + suffix) == (int(exact) if exact == int(exact) else None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_whatever_a_limit_is_it_is_read_or_refused(value: Any) -> None:
    try:
        Resources().of_limits("main", {"yoyoworks.com/xpu-mem": value}, value)
    except DemandError:
        pass
