"""NVIDIA's devices by NVML (through nvidia-ml-py): the only module that asks it for devices.

Works on any driver root: `/`, or the folder of a simulated or containerised driver. The library is opened by
its path below that root, so that another driver's library on this host is never asked. Backends set limits.
"""

from __future__ import annotations

import ctypes
import os

from xpu_runtime import third_party
from xpu_runtime.errors import DeviceError
from xpu_runtime.vendors import nodes
from xpu_runtime.vendors.inventory import Device, Driver, Node, stamp
from xpu_runtime.vendors.nvidia import driver_files
from xpu_runtime.vendors.nvidia.search import NVML
from xpu_runtime.vendors.vendor import WHOLE, Discovered, Sensors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "nvidia"

#: The backends that belong to this driver. They need to know `nvml`, the path of the library on the host, and
#: `memory_limits`, which is set where the driver holds a memory limit on a cgroup (R615).
_BACKENDS = ("driver", "library", "mps")
#: The libraries by which programs allocate memory, and by which they ask for its size.
_INTERPOSED = ("libcuda.so", "libnvidia-ml.so")
_MAJOR = 195  # NV_MAJOR_DEVICE_NUMBER in the driver's source; minors 255 and 254 are its own too
_CTL_MINOR, _MODESET_MINOR = 255, 254


def _pynvml() -> Any:
    third_party.enable()
    try:
        import pynvml
    except ImportError as error:
        raise DeviceError("nvidia-ml-py is not installed", "install the runtime again") from error
    return pynvml


class _NotLoaded(DeviceError):
    """The library is there and its kernel driver is not."""


def _open(library: str) -> Any:
    """nvidia-ml-py on top of the library at this path, initialised; DeviceError if it does not start, as
    where its driver is not loaded."""
    pynvml = _pynvml()
    try:
        # One process may look at several driver roots in turn.
        pynvml.nvmlLib = ctypes.CDLL(library)
    except OSError as error:
        raise DeviceError(f"cannot load {library}: {error}", "is the driver installed completely?") from error
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            raise _NotLoaded("the NVIDIA driver is no longer loaded") from error
        raise DeviceError(
            f"NVML ({library}) does not start: {error}", "see `nvidia-smi` and dmesg"
        ) from error
    return pynvml


def discover(root: str) -> Discovered:
    """The devices of the driver below `root`; without any, and saying why, where there is none.

    DeviceError where the library is there and does not answer.
    """
    files = driver_files.find(root)
    library = files.path_of(NVML)
    watched = [
        files.cache,
        os.path.join(root, "dev/nvidia-caps"),
        os.path.join(root, "proc/driver/nvidia/version"),
        # A folder's time changes when another driver's files come into it; programs lie elsewhere.
        *([library, files.folder, *files.programs()] if library else []),
    ]
    stamps = tuple(map(stamp, watched))
    if library is None:
        return Discovered(missing=f"no NVIDIA driver found: {files.missing}", stamps=stamps)
    try:
        pynvml = _open(library)
    except _NotLoaded:
        return Discovered(missing=f"the NVIDIA driver is not loaded (driver root {root})", stamps=stamps)
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = f"{number // 1000}.{number % 1000 // 10}"
        majors = nodes.majors(root)
        devices: list[Device] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            devices.extend(_device(pynvml, index, root, majors))
        limits = [("memory_limits", "yes")] if hasattr(pynvml.nvmlLib, "nvmlDeviceSetMemoryLimits_v1") else []
        driver = Driver(
            vendor=NAME,
            version=version,
            summary=f"driver {version}, CUDA {cuda}",
            facts=(("cuda", cuda),),
            common_nodes=tuple(_common_nodes(root, majors)),
            libraries=tuple(files.select(version)),
            backends=_BACKENDS,
            interposed=_INTERPOSED,
            details=(("nvml", library), *limits),
            folder=files.folder,
            by_caller=files.by_caller,
        )
        return Discovered(
            tuple(devices), driver, "" if devices else f"the driver in {root} reports no device", stamps
        )
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML of {root} fails: {error}", "see `nvidia-smi` and dmesg") from error
    finally:
        pynvml.nvmlShutdown()


def _common_nodes(root: str, majors: dict[str, int]) -> list[tuple[str, Node]]:
    uvm = majors.get("nvidia-uvm")
    found = [
        ("", nodes.find(root, "nvidiactl", (_MAJOR, _CTL_MINOR))),
        ("compute", nodes.find(root, "nvidia-uvm", (uvm, 0))),
        ("compute", nodes.find(root, "nvidia-uvm-tools", (uvm, 1))),
        ("graphics", nodes.find(root, "nvidia-modeset", (_MAJOR, _MODESET_MINOR))),
    ]
    return [(capability, node) for capability, node in found if node is not None]


def _ask(pynvml: Any, function: str, *args: Any, default: Any = None) -> Any:
    """An answer that not every card has."""
    try:
        return getattr(pynvml, function)(*args)
    except pynvml.NVMLError:
        return default


def _memory(pynvml: Any, handle: Any) -> tuple[int, int]:
    """The memory of a device for all programs together, and the part in use, in bytes.

    Before R510 a driver has one number for its own part and for programs' memory.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return memory.total, memory.used
    return memory.total - memory.reserved, memory.used


def _device(pynvml: Any, index: int, root: str, majors: dict[str, int]) -> list[Device]:
    """The GPU at `index`, or in MIG mode its MIG devices."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        minor = pynvml.nvmlDeviceGetMinorNumber(handle)
        memory, _ = _memory(pynvml, handle)
        fault = None
    except pynvml.NVMLError as error:
        # A card that fell off the bus must not hide the others.
        handle = _ask(pynvml, "nvmlDeviceGetHandleByIndex", index)
        minor = _ask(pynvml, "nvmlDeviceGetMinorNumber", handle, default=index) if handle else index
        memory, fault = 0, str(error)
    node = nodes.find(root, f"nvidia{minor}", (_MAJOR, minor))
    capability = _ask(pynvml, "nvmlDeviceGetCudaComputeCapability", handle, default=None) if handle else None
    gpu = Device(
        index=str(index),
        uuid=_ask(pynvml, "nvmlDeviceGetUUID", handle, default=f"GPU-unknown-{index}")
        if handle
        else f"GPU-unknown-{index}",
        name=_ask(pynvml, "nvmlDeviceGetName", handle, default="unknown") if handle else "unknown",
        memory_bytes=memory,
        nodes=(node,) if node else (),
        vendor=NAME,
        fault=fault,
        facts=(
            ("arch", f"{capability[0]}.{capability[1]}" if capability else ""),
            ("brand", _brand(pynvml, handle) if handle else ""),
        ),
    )
    mode = _ask(pynvml, "nvmlDeviceGetMigMode", handle, default=(0, 0)) if handle else (0, 0)
    if fault or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return [gpu]
    return _mig_devices(pynvml, handle, gpu, minor, root, majors)


def _mig_devices(
    pynvml: Any, handle: Any, gpu: Device, minor: int, root: str, majors: dict[str, int]
) -> list[Device]:
    """A GPU in MIG mode cannot be granted itself; its MIG devices can."""
    found = []
    for position in range(_ask(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle, default=0)):
        mig = _ask(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, position)
        if mig is None:
            continue
        instance = pynvml.nvmlDeviceGetGpuInstanceId(mig)
        compute = pynvml.nvmlDeviceGetComputeInstanceId(mig)
        folder = os.path.join(root, f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{instance}")
        capabilities = [
            _cap_node(root, os.path.join(folder, "access"), majors),
            _cap_node(root, os.path.join(folder, f"ci{compute}", "access"), majors),
        ]
        missing = None if all(capabilities) else f"its capability nodes are not in {folder}"
        found.append(
            gpu.replace(
                index=f"{gpu.index}:{position}",
                uuid=pynvml.nvmlDeviceGetUUID(mig),
                name=pynvml.nvmlDeviceGetName(mig),
                memory_bytes=_memory(pynvml, mig)[0],
                nodes=(*gpu.nodes, *(node for node in capabilities if node)),
                parent=gpu.uuid,
                fault=missing,
            )
        )
    return found


def _cap_node(root: str, access: str, majors: dict[str, int]) -> Node | None:
    try:
        with open(access) as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key == "DeviceFileMinor":
                    number = int(value)
                    return nodes.find(
                        root, f"nvidia-caps/nvidia-cap{number}", (majors.get("nvidia-caps"), number)
                    )
    except (OSError, ValueError):
        pass
    return None


def _brand(pynvml: Any, handle: Any) -> str:
    """The brand's name as XPU_REQUIRE writes it, e.g. `tesla`, `geforce`, `nvidiartx`."""
    number = _ask(pynvml, "nvmlDeviceGetBrand", handle, default=0)
    for name in dir(pynvml):
        if name.startswith("NVML_BRAND_") and getattr(pynvml, name) == number and name != "NVML_BRAND_COUNT":
            return name.removeprefix("NVML_BRAND_").lower().replace("_", "")
    return ""


#: In its second version: R470 has no third, and that of R535.43 to R535.86 has entries of another size.
_PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v2"


def memory_by_process(driver: Driver, devices: tuple[Device, ...]) -> dict[str, dict[int, int | None]]:
    pynvml = _open(driver.detail("nvml"))
    try:
        used: dict[str, dict[int, int | None]] = {}
        for device in devices:
            handle = _ask(pynvml, "nvmlDeviceGetHandleByUUID", device.uuid)
            processes = _ask(pynvml, _PROCESSES, handle) if handle else None
            if processes is not None:
                used[device.uuid] = {each.pid: each.usedGpuMemory for each in processes}
        return used
    finally:
        pynvml.nvmlShutdown()


def sensors(driver: Driver, devices: tuple[Device, ...]) -> dict[str, Sensors]:
    """As `Vendor.sensors`; a MIG device has no temperature and no power of its own."""
    pynvml = _open(driver.detail("nvml"))
    try:
        found = {}
        for device in devices:
            handle = _ask(pynvml, "nvmlDeviceGetHandleByUUID", device.uuid)
            if handle:
                try:
                    _, used = _memory(pynvml, handle)
                except pynvml.NVMLError:
                    used = None
                milliwatts = _ask(pynvml, "nvmlDeviceGetPowerUsage", handle)
                found[device.uuid] = Sensors(
                    used,
                    _ask(pynvml, "nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
                    None if milliwatts is None else milliwatts / 1000,
                )
        return found
    finally:
        pynvml.nvmlShutdown()


class Utilization:
    """As `Vendor.utilization`: NVML's samples of each process, which it takes every 1/6 to 1 s, in percent.

    NVML has no samples of MIG devices, or of a process that did nothing (nvmlDeviceGetProcessUtilization).
    """

    def __init__(self, driver: Driver, devices: tuple[Device, ...], whole: bool = False) -> None:
        self._whole = whole
        self._pynvml = _open(driver.detail("nvml"))
        handles = {each.uuid: _ask(self._pynvml, "nvmlDeviceGetHandleByUUID", each.uuid) for each in devices}
        self._handles = {uuid: handle for uuid, handle in handles.items() if handle}
        #: The time stamp of the last sample of each device, in the driver's own microseconds.
        self._seen = dict.fromkeys(self._handles, 0)

    def __call__(self) -> dict[str, dict[int, float]]:
        told = {uuid: self._of(uuid, handle) for uuid, handle in self._handles.items()}
        found = {uuid: figures for uuid, figures in told.items() if figures is not None}
        for uuid, figures in found.items() if self._whole else ():
            rates = _ask(self._pynvml, "nvmlDeviceGetUtilizationRates", self._handles[uuid])
            if rates is not None:
                figures[WHOLE] = rates.gpu / 100
        return found

    def _of(self, uuid: str, handle: Any) -> dict[int, float] | None:
        pynvml = self._pynvml
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, self._seen[uuid])
        except pynvml.NVMLError as error:
            # The binding raises success, too, if there is no sample.
            return {} if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND) else None
        by_process: dict[int, list[int]] = {}
        for sample in samples:
            if sample.timeStamp > self._seen[uuid] and sample.smUtil <= 100:
                by_process.setdefault(sample.pid, []).append(sample.smUtil)
        self._seen[uuid] = max([self._seen[uuid], *(sample.timeStamp for sample in samples)])
        return {pid: sum(percents) / len(percents) / 100 for pid, percents in by_process.items()}
