"""From variables and annotations to a request, and the refusals on the way."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import RequestError
from xpu_runtime.limits import interposed
from xpu_runtime.request.request import VARIABLES, Request
from xpu_runtime.request.source import REAL_LIBRARIES, asks, from_spec
from xpu_runtime.request.units import Memory

from .specs import GIB, asked, refusal, refused, request, spec


def test_a_container_that_names_nothing_asks_for_nothing() -> None:
    assert from_spec(spec(), Config()) is None
    assert not asks(spec())


def test_the_main_request() -> None:
    assert request("XPU_MEM=4G", "XPU_CORES=30") == Request(
        memory=(Memory(4 * GIB),), cores=30, sched="fixed", priority="normal"
    )


def test_the_last_of_two_values_of_a_variable_counts() -> None:
    assert request("XPU_MEM=4G", "XPU_MEM=2G").memory == (Memory(2 * GIB),)


def test_a_list_of_memory_asks_for_as_many_devices() -> None:
    found = request("XPU_MEM=4G,50%")
    assert found.count == 2
    assert found.memory_of(1) == Memory(None, 500_000)


def test_listed_devices_are_counted() -> None:
    found = request("XPU_VISIBLE_DEVICES=0,GPU-1234-abcd,1:0")
    assert (found.choice, found.count) == ("list", 3)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (["XPU_MEN=4G"], ["XPU_MEN='4G'", "did you mean XPU_MEM?"]),
        (["XPU_MEM=4096"], ["XPU_MEM='4096'", "has no unit", "4096M"]),
        (["XPU_MEM="], ["XPU_MEM=''", "is empty"]),
        (["XPU_MEM=1G,2Q,3G", "XPU_COUNT=3"], ["XPU_MEM='1G,2Q,3G': '2Q' has an unknown unit"]),
        (["XPU_MEM=4G,"], ["empty item"]),
        (["XPU_MEM=1,5G"], ["'1' has no unit", "did you mean 1.5G?"]),
        (["XPU_MEM=1,5", "XPU_COUNT=2"], ["did you mean 1M or 1G?"]),
        (["XPU_GPUS=1"], ["XPU_GPUS='1'", "unknown variable"]),
        (["XPU_CORES=33"], ["XPU_CORES='33'", "5 to 100 in steps of 5", "did you mean 35?"]),
        (["XPU_CORES=lots"], ["XPU_CORES='lots'"]),
        (["XPU_CORES=10,20"], ["must be a percentage", "one value holds for all devices"]),
        (["XPU_ENFORCE=soft"], ["must be one of auto", "auto takes the strongest there is, hard or soft"]),
        (["XPU_COUNT=0"], ["from 1 to 256"]),
        (["XPU_COUNT=two"], ["XPU_COUNT='two'"]),
        (["XPU_POLICY=binpak"], ["binpack, spread", "did you mean binpack?"]),
        (["XPU_CAPABILITIES=compute,grafics"], ["'grafics'", "did you mean graphics?"]),
        (["XPU_ENFORCE=strict"], ["must be one of auto, hard, ", ", driver, ", ", none"]),
        (["XPU_VISIBLE_DEVICES=0,0"], ["names a device twice"]),
        (["XPU_VISIBLE_DEVICES=all,0"], ["'all' cannot be combined with anything else"]),
        (["XPU_VISIBLE_DEVICES=al"], ["did you mean all?"]),
        (["XPU_VISIBLE_DEVICES=0,1", "XPU_COUNT=3"], ["contradicts", "names 2 devices: leave XPU_COUNT out"]),
        (["XPU_VISIBLE_DEVICES=all", "XPU_COUNT=2"], ["contradicts"]),
        (["XPU_MEM=1G,2G,3G", "XPU_COUNT=2"], ["3 values for 2 devices: give one value, or 2"]),
        (["XPU_REQUIRE=cuba>=12"], ["'cuba'", "cuda, driver, arch, brand"]),
        (["XPU_REQUIRE=cuda>=twelve"], ["not a version"]),
        (["XPU_MEM=x", "XPU_CORES=y"], ["XPU_MEM", "XPU_CORES"]),
        (["XPU_CORES=30", "XPU_SCHED=brust"], ["XPU_SCHED='brust'", "fixed, burst, weight", "mean burst?"]),
        (["XPU_CORES=30", "XPU_PRIORITY=hi"], ["XPU_PRIORITY='hi'", "low, normal, high"]),
        (["XPU_SHED=burst"], ["unknown variable", "did you mean XPU_SCHED?"]),
        (["XPU_LOGS=debug"], ["unknown variable", "did you mean XPU_LOG?"]),
    ],
)
def test_a_refusal_names_the_wrong_value_and_the_allowed_ones(variables: list[str], says: list[str]) -> None:
    told = refusal(*variables)
    for part in says:
        assert part in told
    assert "\n" not in told


@pytest.mark.parametrize("variable", ["XPU_GPUS=1", "XPU_CPU=1", "XPU_ENFORCE=soft"])
def test_a_refusal_suggests_nothing_if_no_name_is_near(variable: str) -> None:
    assert "did you mean" not in refusal(variable)


def test_the_refusal_of_a_zero_amount_suggests_no_unit() -> None:
    told = refusal("XPU_MEM=0")
    assert "is zero" in told
    assert "did you mean" not in told


def test_one_refusal_lists_all_problems_of_a_request() -> None:
    strict = Config(policy_max_memory="8G", policy_max_count=1, policy_max_cores=50)
    variables = ["XPU_MEM=9G", "XPU_CORES=60", "XPU_COUNT=2", "XPU_POLICY=x", "LD_PRELOAD=/a/libcuda.real"]
    told = refused(spec(*variables, annotations={"yoyoworks.com/xpu-men": "1"}), strict)
    for part in (
        "yoyoworks.com/xpu-men",
        "XPU_POLICY='x'",
        "XPU_MEM=9G exceeds policy.max_memory=8G",
        "XPU_CORES=60 exceeds policy.max_cores=50",
        "2 devices are requested, and policy.max_count allows 1",
        "LD_PRELOAD",
    ):
        assert part in told
    assert "\n" not in told


def test_none_overrides_the_images_variables() -> None:
    assert request("XPU_MEM=4G", "XPU_CORES=30", "XPU_VISIBLE_DEVICES=none").choice == "none"


def test_a_hostile_value_is_cut_in_the_message() -> None:
    told = refusal("XPU_CORES=" + "9" * 100_000)
    assert len(told) < 500


@given(st.dictionaries(st.sampled_from(VARIABLES), st.text(max_size=20), min_size=1))
def test_any_value_is_taken_or_refused_in_one_line(variables: dict[str, str]) -> None:
    try:
        found = from_spec(spec(*(f"{name}={value}" for name, value in variables.items())), Config())
    except RequestError as error:
        assert "\n" not in str(error)
        assert any(name in str(error) for name in variables)
    else:
        assert found is not None


# The reference runtime's variables.


def test_cuda_images_get_the_devices_and_capabilities_in_their_variables() -> None:
    found = request("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video")
    assert found.choice == "all"
    assert found.capabilities == ("compute", "utility", "video")


def test_xpu_variables_override_the_images_nvidia_variables() -> None:
    found = request("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GPU_MEMORY_LIMIT=1024", "XPU_MEM=4G")
    assert (found.choice, found.memory) == ("auto", (Memory(4 * GIB),))


@pytest.mark.parametrize("name", ["GPU-1234-abcd", "1", "0:1", "GPU-1234-abcd,GPU-5678-abcd"])
def test_devices_named_by_nvidia_visible_devices_are_granted(name: str) -> None:
    found = request(f"NVIDIA_VISIBLE_DEVICES={name}", "XPU_MEM=4G")
    assert (found.choice, found.selectors) == ("list", tuple(name.split(",")))
    assert request(f"NVIDIA_VISIBLE_DEVICES={name}", "XPU_VISIBLE_DEVICES=auto").choice == "auto"


@pytest.mark.parametrize("value", ["all", "none", "void", ""])
def test_nvidia_visible_devices_all_or_none_chooses_no_device_beside_xpu_variables(value: str) -> None:
    assert request(f"NVIDIA_VISIBLE_DEVICES={value}", "XPU_MEM=4G").choice == "auto"


def test_a_device_that_nvidias_plugin_names_several_times_counts_once() -> None:
    found = request("NVIDIA_VISIBLE_DEVICES=GPU-1234-abcd,GPU-5678-abcd,GPU-1234-abcd", "XPU_MEM=4G")
    assert found.selectors == ("GPU-1234-abcd", "GPU-5678-abcd")
    assert request("NVIDIA_VISIBLE_DEVICES=1,1", "XPU_COUNT=1").selectors == ("1",)


def test_xpu_count_above_the_devices_in_nvidia_visible_devices_is_refused() -> None:
    told = refusal("NVIDIA_VISIBLE_DEVICES=GPU-1234-abcd", "XPU_COUNT=2")
    assert (
        "XPU_COUNT='2': contradicts NVIDIA_VISIBLE_DEVICES, which names 1 device: leave XPU_COUNT out" in told
    )


def test_nvidia_gpu_memory_limit_is_in_mebibytes_and_counts_without_xpu_mem() -> None:
    assert request("NVIDIA_GPU_MEMORY_LIMIT=2048", "XPU_CORES=30").memory == (Memory(2 * GIB),)


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("NVIDIA_VISIBLE_DEVICES=al", "NVIDIA_VISIBLE_DEVICES='al': 'al' is not a device"),
        ("NVIDIA_DRIVER_CAPABILITIES=grafics", "'grafics' is not a capability;"),
        ("NVIDIA_GPU_MEMORY_LIMIT=lots", "NVIDIA_GPU_MEMORY_LIMIT='lots': 'lots' is not an amount of memory; "
         "write a number of MiB, as 4096"),
    ],
)  # fmt: skip
def test_a_refusal_uses_the_name_of_the_variable_that_was_written(variable: str, says: str) -> None:
    told = refusal("NVIDIA_VISIBLE_DEVICES=all", variable)
    assert says in told
    assert "XPU_" not in told


@pytest.mark.parametrize("value", ["", "void"])
def test_void_and_empty_ask_for_nothing(value: str) -> None:
    assert from_spec(spec(f"NVIDIA_VISIBLE_DEVICES={value}"), Config()) is None


def test_none_asks_for_libraries_only() -> None:
    assert request("NVIDIA_VISIBLE_DEVICES=none").count == 0


def test_an_old_cuda_image_gets_all() -> None:
    assert request("CUDA_VERSION=8.0.61").choice == "all"
    assert from_spec(spec("CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"), Config()) is None


def test_an_images_requirements_count_beside_xpu_variables() -> None:
    found = request("XPU_MEM=1G", "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470,driver<471")
    assert len(found.requirements) == 1
    assert [len(group) for group in found.requirements[0]] == [1, 3]
    assert (
        request("XPU_MEM=1G", "NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=1").requirements == ()
    )


# Annotations.


def test_an_annotation_wins_over_the_variable() -> None:
    found = asked(spec("XPU_MEM=8G", annotations={"yoyoworks.com/xpu-mem": "4G"}))
    assert found.memory == (Memory(4 * GIB),)


def test_the_refusal_of_an_annotation_uses_its_own_name() -> None:
    wrong = spec("XPU_CORES=7", annotations={"yoyoworks.com/xpu-mem": "2Q"})
    told = refused(wrong)
    assert "yoyoworks.com/xpu-mem: '2Q': '2Q' has an unknown unit" in told
    assert "XPU_MEM" not in told
    assert "XPU_CORES='7'" in told
    large = spec(annotations={"yoyoworks.com/xpu-mem": "9G"})
    told = refused(large, Config(policy_max_memory="8G"))
    assert told.startswith("yoyoworks.com/xpu-mem: 9G exceeds policy.max_memory=8G")


def test_an_unknown_annotation_of_ours_is_refused() -> None:
    told = refused(spec(annotations={"yoyoworks.com/xpu-men": "4G"}))
    assert "did you mean yoyoworks.com/xpu-mem" in told


def test_each_library_name_behind_the_interposers_is_refused() -> None:
    behind = {os.path.basename(interposed.real(stem)) for stem in interposed.INTERPOSED}
    assert behind == set(REAL_LIBRARIES)


def test_a_pods_sandbox_asks_for_nothing() -> None:
    marks = {"yoyoworks.com/xpu-mem": "4G", "io.kubernetes.cri.container-type": "sandbox"}
    assert from_spec(spec(annotations=marks), Config()) is None
    assert not asks(spec(annotations=marks))
