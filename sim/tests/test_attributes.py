"""Each model's answers about itself, against public tables, and their effects on kernels.

Sources: [guide] is the CUDA C++ Programming Guide, "Features and Technical Specifications" by compute
capability. [card] was read from such a card by the XLA project (xla/backends/gpu/target_config/specs,
*_sxm*.txtpb), by PyTorch on an H200 (L2), or by nvidia-smi (memory, clocks). The data sheets agree as far as
they have the values.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from support import MIB
from support.cudart import runtimes
from support.simulation import SUCCESS, Process, Start, Up, libraries

KIB = 1024
INVALID, NOT_SUPPORTED, UNSUPPORTED_LIMIT, INVALID_CLUSTER_SIZE = 1, 801, 215, 912
#: Attributes of cuda.h.
CLOCK, MULTIPROCESSORS, MEMORY_CLOCK, BUS, L2 = 13, 16, 36, 37, 38
THREADS, SHARED, REGISTERS, DOUBLE, SHARED_BLOCK, BLOCKS = 39, 81, 82, 87, 97, 106
RESERVED, CLUSTERS, SYNC_DOMAINS, TENSOR_MAPS, PCI_ID = 111, 120, 126, 127, 139
CAPABILITY, MINOR = 75, 76

#: By compute capability: 7.5, 8.0, 9.0.
GUIDE = {
    CAPABILITY: (7, 8, 9),
    MINOR: (5, 0, 0),
    THREADS: (1024, 2048, 2048),
    BLOCKS: (16, 32, 32),
    REGISTERS: (65536, 65536, 65536),
    DOUBLE: (32, 2, 2),
    SHARED: (64 * KIB, 164 * KIB, 228 * KIB),
    SHARED_BLOCK: (64 * KIB, 163 * KIB, 227 * KIB),
    RESERVED: (0, KIB, KIB),
    CLUSTERS: (0, 0, 1),
    SYNC_DOMAINS: (1, 1, 4),
    TENSOR_MAPS: (0, 0, 1),
}
TURING, AMPERE, HOPPER = ({number: each[at] for number, each in GUIDE.items()} for at in range(3))


def card_of(family: dict[int, int], *numbers: int) -> dict[int, int]:
    """The guide's values for the family, and the [card]'s own."""
    own = (MULTIPROCESSORS, L2, CLOCK, MEMORY_CLOCK, BUS, PCI_ID)
    return {**family, **dict(zip(own, numbers, strict=True))}


MODELS = {
    "T4": card_of(TURING, 40, 4 * MIB, 1590000, 5001000, 256, 0x1EB810DE),
    "A100-SXM4-80GB": card_of(AMPERE, 108, 40 * MIB, 1410000, 1593000, 5120, 0x20B210DE),
    "H100-80GB-HBM3": card_of(HOPPER, 132, 50 * MIB, 1980000, 2619000, 5120, 0x233010DE),
    "H200": card_of(HOPPER, 132, 60 * MIB, 1980000, 3201000, 6144, 0x233510DE),
}
T4, A100, H100 = "T4", "A100-SXM4-80GB", "H100-80GB-HBM3"


@pytest.fixture
def card(up: Up, process: Start) -> Callable[[str], Process]:
    """`card("H200")` is a process with a context on a card of that model."""

    def start(model: str, driver: str = "R580") -> Process:
        one = process(up({"driver": driver, "gpus": [{"model": model}]}).root)
        assert one.start() == SUCCESS
        return one

    return start


@pytest.mark.parametrize("model", MODELS)
def test_each_model_has_the_attributes_of_the_public_tables(
    card: Callable[[str], Process], model: str
) -> None:
    wanted = MODELS[model]
    assert dict(zip(wanted, card(model).device_attributes([*wanted]), strict=True)) == wanted


@pytest.mark.parametrize("model", MODELS)
def test_nvml_agrees_with_the_attributes(card: Callable[[str], Process], model: str) -> None:
    one, wanted = card(model), MODELS[model]
    assert one.nvml("nvmlDeviceGetMaxClockInfo", 0, 1) * 1000 == wanted[CLOCK]
    assert one.nvml("nvmlDeviceGetMaxClockInfo", 0, 2) * 1000 == wanted[MEMORY_CLOCK]
    assert one.nvml("nvmlDeviceGetCudaComputeCapability") == [wanted[CAPABILITY], wanted[MINOR]]
    assert one.nvml("nvmlDeviceGetPciInfo")["pciDeviceId"] == wanted[PCI_ID]
    memory = one.nvml("nvmlDeviceGetMemoryInfo", 0, pynvml.nvmlMemory_v2)
    assert memory["total"] - memory["reserved"] == one.total()


@pytest.mark.parametrize("model", [T4, H100])
def test_the_cuda_runtime_gets_the_same_attributes(up: Up, native_with_cudart: Path, model: str) -> None:
    root = up({"driver": "R580", "gpus": [{"model": model}]}, native=str(native_with_cudart)).root
    runtime = next(each for each in runtimes() if each.name == "13")
    script = (
        "import ctypes, sys\n"
        "runtime, value = ctypes.CDLL(sys.argv[1]), ctypes.c_int()\n"
        "for number in sys.argv[2:]:\n"
        "    result = runtime.cudaDeviceGetAttribute(ctypes.byref(value), int(number), 0)\n"
        "    print(value.value if result == 0 else f'error {result}')\n"
    )
    wanted = {number: value for number, value in MODELS[model].items() if number != PCI_ID}
    done = subprocess.run(
        [sys.executable, "-c", script, runtime.library, *map(str, wanted)],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries(root))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split("\n")[:-1] == [str(value) for value in wanted.values()], done.stderr


#: Threads, dynamic shared memory: the blocks that fit.
FITS = {
    T4: {(1024, 0): 1, (32, 0): 16, (32, 48 * KIB): 1, (32, 16 * KIB): 4},
    A100: {(1024, 0): 2, (32, 0): 32, (32, 48 * KIB): 3, (32, 163 * KIB): 1, (32, 164 * KIB): 0},
    H100: {(1024, 0): 2, (32, 0): 32, (32, 48 * KIB): 4, (32, 227 * KIB): 1, (32, 228 * KIB): 0},
}


@pytest.mark.parametrize("model", FITS)
def test_threads_and_shared_memory_bound_the_blocks_that_fit(
    card: Callable[[str], Process], model: str
) -> None:
    one = card(model)
    assert {asked: one.blocks(*asked) for asked in FITS[model]} == {
        asked: [SUCCESS, blocks] for asked, blocks in FITS[model].items()
    }
    shared, reserved = MODELS[model][SHARED], MODELS[model][RESERVED]
    assert one.shared_for(2) == [SUCCESS, shared // 2 - reserved]


@pytest.mark.parametrize("model", FITS)
def test_a_kernel_gets_the_shared_memory_that_it_asks_for_up_to_the_models(
    card: Callable[[str], Process], model: str
) -> None:
    one, most, dynamic = card(model), MODELS[model][SHARED_BLOCK], 8
    assert one.kernel_set(dynamic, most) == [SUCCESS, SUCCESS, most]
    assert one.kernel_set(dynamic, most + 1) == [INVALID, SUCCESS, most]


def test_clusters_are_of_eight_blocks_or_of_sixteen_where_the_kernel_allows_that(
    card: Callable[[str], Process],
) -> None:
    one, allowed = card(H100), 14
    assert one.clusters(2, 1024) == [SUCCESS, 132, SUCCESS, 8]
    assert one.clusters(8, 32, 227 * KIB) == [SUCCESS, 132 // 8, SUCCESS, 8]
    assert one.clusters(16, 32)[0] == INVALID_CLUSTER_SIZE
    assert one.clusters(0, 32)[0] == INVALID_CLUSTER_SIZE
    assert one.kernel_set(allowed, 1) == [SUCCESS, SUCCESS, 1]
    assert one.clusters(16, 32, 227 * KIB) == [SUCCESS, 132 // 16, SUCCESS, 16]
    assert one.clusters(17, 32)[0] == INVALID_CLUSTER_SIZE


def test_an_older_card_has_no_clusters(card: Callable[[str], Process]) -> None:
    one = card(A100)
    assert one.kernel_set(14, 1) == [INVALID, SUCCESS, 0]
    assert one.clusters(2, 32)[0] == NOT_SUPPORTED


@pytest.mark.parametrize(("driver", "wanted"), [("R550", UNSUPPORTED_LIMIT), ("R580", SUCCESS)])
def test_from_cuda_12_5_on_a_driver_says_that_no_context_is_for_graphics(
    card: Callable[..., Process], driver: str, wanted: int
) -> None:
    one, in_graphics = card(H100, driver), 8
    assert one.get_limit(in_graphics) == [wanted, 0]
    assert one.set_limit(in_graphics, 1) == UNSUPPORTED_LIMIT
