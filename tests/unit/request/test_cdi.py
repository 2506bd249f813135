"""A container's CDI devices as its request: their meaning, their sums, and their contradictions."""

from __future__ import annotations

import pytest

from xpu_runtime.config.defaults import Config
from xpu_runtime.request.source import asks, from_spec

from .specs import GIB, asked, refusal, refused, request, spec

_4G, _8G, _SLICE = "XPU_CDI_4G=4g mem=4G", "XPU_CDI_8G=8g mem=8G", "XPU_CDI_SLICE=slice"
_0, _1, _ALL = "XPU_CDI_0=0 device=0", "XPU_CDI_1=1 device=1", "XPU_CDI_ALL=all device=all"
_HALF = "XPU_CDI_HALF=half mem=50% cores=50 count=2"


def test_a_device_with_a_size_stands_for_its_variables() -> None:
    assert request(_4G) == request("XPU_MEM=4G")
    assert request(_HALF) == request("XPU_MEM=50%", "XPU_CORES=50", "XPU_COUNT=2")
    assert asks(spec(_4G))


def test_a_whole_device_is_chosen_by_its_name() -> None:
    found = request(_0, _1)
    assert (found.choice, found.selectors, found.count, found.memory) == ("list", ("0", "1"), 2, ())
    assert request(_ALL).choice == "all"
    # The container may want less of it.
    assert request(_0, "XPU_MEM=4G") == request("XPU_VISIBLE_DEVICES=0", "XPU_MEM=4G").replace(
        choice_from="yoyoworks.com/xpu=0"
    )
    # An image of CUDA's, which asks for all NVIDIA devices, does not restrict a device that is named.
    assert request(_0, "NVIDIA_VISIBLE_DEVICES=all").vendor == ""


def test_a_slice_has_the_size_of_the_containers_variables() -> None:
    assert request(_SLICE, "XPU_MEM=4G", "XPU_CORES=30") == request("XPU_MEM=4G", "XPU_CORES=30")
    assert request(_SLICE, "XPU_COUNT=2") == request("XPU_COUNT=2")
    annotated = asked(spec(_SLICE, annotations={"yoyoworks.com/xpu-mem": "4G"}))
    assert annotated.memory == request("XPU_MEM=4G").memory


@pytest.mark.parametrize("besides", [(), ("XPU_POLICY=spread",), ("NVIDIA_VISIBLE_DEVICES=all",)])
def test_a_slice_without_a_size_is_refused_with_the_remedy(besides: tuple[str, ...]) -> None:
    said = refusal(_SLICE, *besides)
    assert said.startswith(
        "nothing says how much yoyoworks.com/xpu=slice is: add XPU_MEM, such as XPU_MEM=4G"
    )


def test_a_misspelt_variable_beside_a_slice_is_told_first() -> None:
    said = refusal(_SLICE, "XPU_MEN=4G")
    assert said.startswith("XPU_MEN='4G': unknown variable") and "did you mean XPU_MEM?; nothing says" in said


def test_a_slice_has_the_size_of_the_configuration() -> None:
    assert request(_SLICE, config=Config(defaults_memory="8G")).memory == ()


def test_several_sizes_are_several_slices() -> None:
    found = request(_4G, _8G)
    assert [each.bytes for each in found.memory] == [4 * GIB, 8 * GIB]
    assert found.count == 2
    found = request("XPU_CDI_A=a mem=1G cores=20 count=2", "XPU_CDI_B=b mem=2G cores=20")
    assert ([each.text() for each in found.memory], found.cores) == (["1G", "1G", "2G"], 20)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ((_4G, _0), "yoyoworks.com/xpu=4g and yoyoworks.com/xpu=0 do not add up: give either"),
        (
            (_4G, _SLICE, "XPU_MEM=4G"),
            "yoyoworks.com/xpu=4g and yoyoworks.com/xpu=slice do not add up: give either",
        ),
        ((_0, _SLICE), "do not add up"),
        ((_0, _ALL), "yoyoworks.com/xpu=0 and yoyoworks.com/xpu=all do not add up: leave one out"),
        ((_4G, _HALF), "do not add up: one container has the same cores of each device"),
        ((_4G, "XPU_CDI_TWO=two count=2"), "do not add up: one container has the same memory"),
        ((_4G, "XPU_MEM=8G"), "XPU_MEM=8G contradicts yoyoworks.com/xpu=4g (XPU_MEM=4G): leave one"),
        ((_HALF, "XPU_CORES=30"), "XPU_CORES=30 contradicts yoyoworks.com/xpu=half (XPU_CORES=50)"),
        ((_0, "XPU_VISIBLE_DEVICES=1"), "XPU_VISIBLE_DEVICES=1 contradicts yoyoworks.com/xpu=0"),
        ((_4G, _8G, "XPU_COUNT=1"), "XPU_COUNT=1 contradicts"),
    ],
)
def test_a_contradiction_is_refused_with_a_sentence(variables: tuple[str, ...], said: str) -> None:
    assert said in refusal(*variables)


@pytest.mark.parametrize("device", [_4G, _SLICE, _0, _ALL])
def test_a_device_with_visible_devices_none_is_refused(device: str) -> None:
    said = refusal(device, "XPU_MEM=4G", "XPU_VISIBLE_DEVICES=none")
    assert said.startswith(
        f"XPU_VISIBLE_DEVICES=none contradicts yoyoworks.com/xpu={device.split('=')[1].split()[0]}"
    )
    assert said.endswith(": leave one of them out")


@pytest.mark.parametrize("value", ["none", "void", ""])
def test_an_image_or_nvidias_cdi_file_that_says_none_does_not_take_the_device(value: str) -> None:
    # NVIDIA's file sets void, so that NVIDIA's own runtime gives nothing twice.
    assert request(_4G, f"NVIDIA_VISIBLE_DEVICES={value}") == request("XPU_MEM=4G")
    assert request(_0, f"NVIDIA_VISIBLE_DEVICES={value}").selectors == ("0",)


def test_the_same_value_twice_is_no_contradiction() -> None:
    assert request(_4G, "XPU_MEM=4096MiB") == request("XPU_MEM=4G")
    assert request(_HALF, "XPU_CORES=50%").cores == 50


def test_the_message_has_a_contradicting_annotation_as_written() -> None:
    told = refused(spec(_4G, annotations={"yoyoworks.com/xpu-mem": "8G"}))
    assert "yoyoworks.com/xpu-mem: 8G contradicts yoyoworks.com/xpu=4g" in told


@pytest.mark.parametrize(
    "variable",
    ["XPU_CDI_A=", "XPU_CDI_A=a", "XPU_CDI_A=a mem", "XPU_CDI_A=a mem=", "XPU_CDI_A=a meme=4G",
     "XPU_CDI_A=a mem=1G mem=2G", "XPU_CDI_A=a device=0 mem=1G", "XPU_CDI_A= mem=1G",
     "XPU_CDI_A=a mem=1G count=9999999999", "XPU_CDI_A=a mem=1G count=-5", "XPU_CDI_A=a mem=1G count=1_0",
     "XPU_CDI_A=a mem=1G count=0", "XPU_CDI_A=a mem=1G count=\u0663", "XPU_CDI_A=a mem=1G,1G",
     "XPU_CDI_A=a\nxpu: mem=1G", "XPU_CDI_A=a\x1b[31m mem=1G", f"XPU_CDI_A={'a' * 81} mem=1G",
     "XPU_CDI_=4g mem=4G", "XPU_CDI_A=4g mem=4G"],
)  # fmt: skip
def test_a_variable_that_no_file_of_ours_has_is_refused(variable: str) -> None:
    assert "is of no CDI device: such variables come with" in refusal(variable)
    # Beside a device that there is, too: what the two add up to must not count.
    assert "is of no CDI device: such variables come with" in refusal(_4G, variable)


def test_a_message_names_few_of_very_many_devices() -> None:
    said = refusal(*(f"XPU_CDI_X{number}=x{number} mem=1G cores=10" for number in range(5000)), "XPU_MEM=1G")
    assert "yoyoworks.com/xpu=x3 and 4996 more" in said
    said = refusal(*(f"XPU_CDI_X{number}=x{number} mem=1G cores=10" for number in range(4)), "XPU_MEM=1G")
    assert "yoyoworks.com/xpu=x3 (XPU_MEM=" in said
    assert len(said) < 1000


def test_the_value_of_a_device_is_checked_like_a_variable() -> None:
    assert "yoyoworks.com/xpu=4g: '4': '4' has no unit" in refusal("XPU_CDI_4G=4g mem=4")
    assert "exceeds policy.max_memory=2G" in refusal(_4G, config=Config(policy_max_memory="2G"))
    assert "accept_env_when_unprivileged" in refusal(
        _4G, config=Config(policy_accept_env_when_unprivileged=False)
    )


@pytest.mark.parametrize("is_required", [False, True])
def test_a_device_that_the_kubelet_passes_on_is_booked_or_refused(is_required: bool) -> None:
    # As containerd makes the spec of a container for which a device plugin names a CDI device.
    config = Config(kubernetes_require_assignment=is_required, kubernetes_node_name="node")
    named = {"container-type": "container", "sandbox-uid": "u", "sandbox-name": "web"}
    named |= {"sandbox-namespace": "default", "container-name": "main", "sandbox-id": "s"}
    in_pod = spec(_4G, annotations={f"io.kubernetes.cri.{key}": value for key, value in named.items()})
    if is_required:
        assert "XPU_CDI_4G='4g mem=4G': is a CDI device: this pod gets devices by" in refused(in_pod, config)
    else:
        assert from_spec(in_pod, config) == request("XPU_MEM=4G")
