"""libnvidia-ml as nvidia-ml-py sees it, which reads the inventory."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from support import MIB, REPOSITORY
from support.simulation import (
    NVML_INVALID,
    NVML_LOST,
    NVML_NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    UNAVAILABLE,
    Start,
    Up,
    libraries,
)
from xpu_simulator import simulator


def test_a_card_is_described_in_full(up: Up, process: Start) -> None:
    one = process(up("2xT4").root)
    assert one.nvml("nvmlDeviceGetName", 1) == "Tesla T4"
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one.nvml("nvmlDeviceGetUUID", 1))
    assert one.nvml("nvmlDeviceGetIndex", 1) == one.nvml("nvmlDeviceGetMinorNumber", 1) == 1
    assert one.nvml("nvmlDeviceGetBrand") == pynvml.NVML_BRAND_TESLA
    assert one.nvml("nvmlDeviceGetArchitecture") == pynvml.NVML_DEVICE_ARCH_TURING
    assert one.nvml("nvmlDeviceGetCudaComputeCapability") == [7, 5]
    pci = one.nvml("nvmlDeviceGetPciInfo", 1)
    assert (pci["busId"], pci["busIdLegacy"]) == ("00000000:00:11.0", "0000:00:11.0")
    assert one.nvml("nvmlDeviceGetMemoryInfo")["total"] == 15360 * MIB
    assert one.nvml("nvmlDeviceGetMigMode") == {"error": NVML_NOT_SUPPORTED}
    assert one.nvml("nvmlDeviceGetMaxMigDeviceCount") == 0
    assert one.nvml("nvmlDeviceGetFanSpeed") == {"error": NVML_NOT_SUPPORTED}
    assert one.nvml("nvmlDeviceGetTemperature", 0, 0) == one.nvml("nvmlDeviceGetTemperatureV1", 0, 0) == 30
    assert one.nvml("nvmlDeviceGetEnforcedPowerLimit") == 70000
    assert one.nvml("nvmlDeviceGetPowerUsage") == 9000
    assert one.nvml("nvmlDeviceGetClockInfo", 0, pynvml.NVML_CLOCK_MEM) == 5001
    assert one.nvml("nvmlDeviceGetPerformanceState") == 8
    assert one.nvml("nvmlDeviceGetEccMode") == [1, 1]
    assert one.nvml("nvmlDeviceGetTotalEccErrors", 0, 1, 0) == 0
    assert one.nvml("nvmlDeviceGetComputeMode") == 0
    assert one.nvml("nvmlDeviceGetGraphicsRunningProcesses") == []
    assert one.nvml("nvmlDeviceGetBAR1MemoryInfo")["bar1Total"] == 256 * MIB


def test_the_drivers_own_memory_belongs_to_no_process(up: Up, process: Start) -> None:
    card = {"model": "T4", "memory_mib": 1000, "reserved_mib": 400}
    root = up({"driver": "R580", "gpus": [card]}).root
    one = process(root)
    assert one.start() == SUCCESS
    assert (one.total(), one.info()) == (600 * MIB, [SUCCESS, 600 * MIB, 600 * MIB])

    def told(*version: int) -> list[int]:
        memory = one.nvml("nvmlDeviceGetMemoryInfo", 0, *version)
        return [memory.get(key, 0) // MIB for key in ("total", "reserved", "used", "free")]

    assert told() == [1000, 0, 400, 600]
    assert told(pynvml.nvmlMemory_v2) == [1000, 400, 0, 600]
    assert one.alloc(602 * MIB)[0] == OUT_OF_MEMORY
    assert one.alloc(600 * MIB)[0] == SUCCESS
    assert one.alloc(1)[0] == OUT_OF_MEMORY
    assert told() == [1000, 0, 1000, 0]
    assert told(pynvml.nvmlMemory_v2) == [1000, 400, 600, 0]
    query = ["--query-gpu=memory.total,memory.reserved,memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run([f"{root}/usr/bin/nvidia-smi", *query], capture_output=True, text=True, timeout=60)
    assert done.stdout == "1000, 400, 600\n"


def loaded(root: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(libraries(root) / "libnvidia-ml.so.1"))


@pytest.fixture
def in_this_process(up: Up, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`in_this_process("4xT4")` gives nvidia-ml-py a new simulation's library, not yet initialised."""

    def load(topology: str) -> None:
        monkeypatch.setattr(pynvml, "nvmlLib", loaded(up(topology).root))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    yield load
    pynvml.nvmlShutdown()


def test_a_mig_layout_is_described_in_full(in_this_process: Callable[[str], None]) -> None:
    in_this_process("2xA100-MIG")
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 7
    parts = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, at) for at in range(5)]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 5)
    assert [pynvml.nvmlDeviceGetGpuInstanceId(part) for part in parts] == [1, 7, 8, 9, 10]
    assert [pynvml.nvmlDeviceGetComputeInstanceId(part) for part in parts] == [0] * 5
    assert [pynvml.nvmlDeviceGetMemoryInfo(part).total // MIB for part in parts] == [40192] + [9728] * 4
    attributes = pynvml.nvmlDeviceGetAttributes_v2(parts[0])
    assert (attributes.multiprocessorCount, attributes.gpuInstanceSliceCount) == (42, 3)
    assert attributes.memorySizeMB == 40192
    assert pynvml.nvmlDeviceGetName(parts[0]) == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    assert pynvml.nvmlDeviceIsMigDeviceHandle(parts[0]).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu).value == 0
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[4])
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(gpu)
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(parts[3]))
    assert pynvml.nvmlDeviceGetGpuInstanceId(by_uuid) == 9
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetUtilizationRates(gpu)


def test_handles_are_found_by_every_name(in_this_process: Callable[[str], None]) -> None:
    in_this_process("4xT4-R580")
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "580.105.08"
    assert pynvml.nvmlSystemGetNVMLVersion() == "13.580.105.08"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13000
    third = pynvml.nvmlDeviceGetHandleByIndex(2)
    uuid = pynvml.nvmlDeviceGetUUID(third)
    for name in ("00000000:00:12.0", "0000:00:12.0", "00:12.0", "00:12"):
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(name)) == uuid
    serial = pynvml.nvmlDeviceGetSerial(third)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleBySerial(serial)) == uuid
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 2
    for wrong in ("00:12.1", "00:zz", "x"):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByPciBusId(wrong)
    place = pynvml.nvmlPciInfoExt_v1_t()
    with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
        pynvml.nvmlDeviceGetPciInfoExt(third, ctypes.byref(place))
    place.version = pynvml.nvmlPciInfoExt_v1
    pynvml.nvmlDeviceGetPciInfoExt(third, ctypes.byref(place))
    assert (place.busId, place.baseClass) == ("00000000:00:12.0", 3)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-0")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(4)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(ctypes.c_void_p(1234))


def test_a_lost_card_has_only_its_identity(up: Up, process: Start) -> None:
    root = up({"gpus": [{"model": "T4"}, {"model": "T4", "healthy": False}]}).root
    one = process(root)
    assert len(one.count()) == 2
    assert one.nvml("nvmlDeviceGetName", 1) == "Tesla T4"
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"):
        assert one.nvml(function, 1) == {"error": NVML_LOST}
    assert one.nvml("nvmlDeviceGetMemoryInfo")["used"] == 0
    assert one.limit("/sys/fs/cgroup", 0, 1, 1) == NVML_LOST
    assert one.start(1) == UNAVAILABLE
    assert one.start(0) == SUCCESS


def test_a_function_with_a_fault_in_the_topology_fails_for_that_card(up: Up, process: Start) -> None:
    fail = {
        "nvmlDeviceSetMemoryLimits_v1": "NVML_ERROR_UNKNOWN",
        "nvmlDeviceGetHandleByIndex_v2": "NVML_ERROR_GPU_IS_LOST",
    }
    root = up({"gpus": [{"model": "T4", "fail": fail}, {"model": "T4"}]}).root
    one = process(root)
    assert one.nvml("nvmlDeviceGetName", 0) == {"error": NVML_LOST}
    assert one.nvml("nvmlDeviceGetName", 1) == "Tesla T4"
    only = {"nvmlDeviceGetMemoryInfo": "NVML_ERROR_UNKNOWN"}
    two = process(up({"gpus": [{"model": "T4", "fail": only}]}).root)
    assert two.nvml("nvmlDeviceGetMemoryInfo") == {"error": pynvml.NVML_ERROR_UNKNOWN}
    assert two.nvml("nvmlDeviceGetUUID").startswith("GPU-")


def test_error_texts_are_the_bindings(native: Path) -> None:
    library = ctypes.CDLL(str(native / "libnvidia-ml-R615.so"))
    library.nvmlErrorString.restype = ctypes.c_char_p
    texts = pynvml.NVMLError._errcode_to_string
    assert {number: library.nvmlErrorString(number).decode() for number in texts} == texts


def test_devices_reach_each_other_over_pci_and_mig_devices_do_not(up: Up, process: Start) -> None:
    one = process(up("2xT4").root)
    by_pci = (
        pynvml.NVML_P2P_CAPS_INDEX_READ[0],
        pynvml.NVML_P2P_CAPS_INDEX_WRITE,
        pynvml.NVML_P2P_CAPS_INDEX_PCI,
    )
    assert [one.p2p(0, 1, kind) for kind in by_pci] == [pynvml.NVML_P2P_STATUS_OK] * 3
    assert one.p2p(0, 1, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    assert one.p2p(0, 1, pynvml.NVML_P2P_CAPS_INDEX_UNKNOWN) == {"error": NVML_INVALID}
    assert one.nvml("nvmlDeviceGetNvLinkCapability", 0, 0, 0) == {"error": NVML_NOT_SUPPORTED}
    simulator.down()
    parts = process(up("2xA100-MIG").root)
    assert parts.p2p(0, 1, by_pci[0]) == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED


def test_handles_are_found_by_the_old_functions_too(up: Up) -> None:
    nvml = loaded(up("2xT4").root)
    count, handle, other = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
    assert nvml.nvmlInit() == nvml.nvmlDeviceGetCount(ctypes.byref(count)) == SUCCESS
    assert count.value == 2
    assert nvml.nvmlDeviceGetHandleByIndex(1, ctypes.byref(handle)) == SUCCESS
    assert nvml.nvmlDeviceGetHandleByPciBusId(b"0000:00:11.0", ctypes.byref(other)) == SUCCESS
    assert handle.value == other.value


#: The names that nvtop 3.0 looks up in libnvidia-ml. The simulated one implements all of them.
NVTOP = """
nvmlDeviceGetClockInfo nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetCount nvmlDeviceGetCount_v2
nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetDecoderUtilization
nvmlDeviceGetEncoderUtilization nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetFanSpeed
nvmlDeviceGetGraphicsRunningProcesses nvmlDeviceGetHandleByIndex nvmlDeviceGetHandleByIndex_v2
nvmlDeviceGetMaxClockInfo nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth
nvmlDeviceGetMemoryInfo nvmlDeviceGetName nvmlDeviceGetPciInfo nvmlDeviceGetPciInfo_v2 nvmlDeviceGetPciInfo_v3
nvmlDeviceGetPcieThroughput nvmlDeviceGetPowerUsage nvmlDeviceGetProcessUtilization nvmlDeviceGetTemperature
nvmlDeviceGetTemperatureThreshold nvmlDeviceGetUtilizationRates nvmlErrorString nvmlInit nvmlInit_v2
nvmlShutdown
""".split()  # noqa: SIM905


def test_the_functions_that_nvtop_looks_up_are_simulated() -> None:
    declared = re.findall(r"\b(nvml[A-Z]\w+)\(", (REPOSITORY / "native/headers/nvml/nvml.h").read_text())
    assert set(NVTOP) <= set(declared)


@pytest.mark.parametrize(("topology", "generation"), [("1xT4", 3), ("2xA100-MIG", 4), ("2xH200", 5)])
def test_a_card_has_a_pcie_link_and_temperatures_to_keep_below(
    up: Up, process: Start, topology: str, generation: int
) -> None:
    one = process(up(topology).root)
    for kind in ("Curr", "Max"):
        assert one.nvml(f"nvmlDeviceGet{kind}PcieLinkGeneration", 0) == generation
        assert one.nvml(f"nvmlDeviceGet{kind}PcieLinkWidth", 0) == 16
    assert [one.nvml("nvmlDeviceGetPcieThroughput", 0, counter) for counter in (0, 1)] == [0, 0]
    assert one.nvml("nvmlDeviceGetPcieThroughput", 0, 2) == {"error": NVML_INVALID}
    thresholds = [one.nvml("nvmlDeviceGetTemperatureThreshold", 0, kind) for kind in (0, 1, 3)]
    assert thresholds == [96, 93, 85]
    assert one.nvml("nvmlDeviceGetTemperatureThreshold", 0, 2) == {"error": NVML_NOT_SUPPORTED}
    assert one.nvml("nvmlDeviceGetTemperatureThreshold", 0, 8) == {"error": NVML_INVALID}


@pytest.mark.parametrize(("name", "size"), [("nvmlDeviceGetPciInfo", 32), ("nvmlDeviceGetPciInfo_v2", 52)])
def test_the_older_pci_information_equals_the_newest_with_its_old_length(
    up: Up, name: str, size: int
) -> None:
    nvml = loaded(up("1xT4").root)
    handle, newest = ctypes.c_void_p(), pynvml.nvmlPciInfo_t()
    assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == SUCCESS
    assert nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(newest)) == SUCCESS
    older = (ctypes.c_ubyte * 128)(*[0xEE] * 128)
    assert getattr(nvml, name)(handle, older) == SUCCESS
    said = bytes(older)
    assert said[:16] == bytes(newest)[:16] and said[:16].startswith(b"0000:00:10.0")
    assert said[16 : min(size, 36)] == bytes(newest)[16 : min(size, 36)]
    assert said[size:] == b"\xee" * (128 - size)
    assert getattr(nvml, name)(handle, None) == NVML_INVALID
