"""NVIDIA devices: the one place that asks NVML what there is (through nvidia-ml-py).

Works on any driver root: `/`, or the folder of a simulated or containerised driver. The library is
opened by its path below that root, so that another driver's library on this host is never asked.
Never imported on a warm start: see inventory.py.
"""

from __future__ import annotations

import ctypes
import os
import sys

from xpu_runtime import paths
from xpu_runtime.devices import driver_files, inventory
from xpu_runtime.devices.inventory import Device, Inventory, Node
from xpu_runtime.errors import DeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NVML = "libnvidia-ml.so.1"
_MAJOR = 195  # NV_MAJOR_DEVICE_NUMBER in the driver's source; minors 255 and 254 are its own too
_CTL_MINOR, _MODESET_MINOR = 255, 254


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        # The shim and the hook run without site-packages: ours lie beside the package.
        sys.path.append(paths.VENDOR_DIR)
        try:
            import pynvml
        except ImportError as error:
            raise DeviceError("nvidia-ml-py is not installed", "run `make install` again") from error
    return pynvml


class _NotLoaded(Exception):
    """The library is there and its kernel driver is not."""


def _open(library: str) -> Any:
    """nvidia-ml-py on top of the library at this path, initialised; DeviceError if it does not start."""
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
            raise _NotLoaded from error
        raise DeviceError(
            f"NVML ({library}) does not start: {error}", "see `nvidia-smi` and dmesg"
        ) from error
    return pynvml


def discover(root: str, is_simulated: bool) -> Inventory:
    """The inventory of the driver below `root`; without devices, and saying why, where there is none.

    DeviceError where the library is there and does not answer.
    """
    files = driver_files.find(root)
    library = files.path_of(_NVML)
    watched = [
        files.cache,
        os.path.join(root, "dev/nvidia-caps"),
        os.path.join(root, "proc/driver/nvidia/version"),
    ]
    if library is None:
        return _without(
            root, is_simulated, f"no NVIDIA driver found: {_NVML} is not in {files.cache}", watched
        )
    try:
        pynvml = _open(library)
    except _NotLoaded:
        return _without(root, is_simulated, f"the NVIDIA driver of {root} is not loaded", [*watched, library])
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        majors = _majors(root)
        devices: list[Device] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            devices.extend(_device(pynvml, index, root, majors))
        return Inventory(
            root=root,
            simulated=is_simulated,
            driver_version=version,
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
            devices=tuple(devices),
            common_nodes=tuple(_common_nodes(root, majors)),
            libraries=tuple(files.select(version)),
            memory_limits=hasattr(pynvml.nvmlLib, "nvmlDeviceSetMemoryLimits_v1"),
            nvml=library,
            stamps=tuple(inventory.stamp(path) for path in [*watched, library]),
        )
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML of {root} fails: {error}", "see `nvidia-smi` and dmesg") from error
    finally:
        pynvml.nvmlShutdown()


def _without(root: str, is_simulated: bool, why: str, watched: list[str]) -> Inventory:
    stamps = tuple(inventory.stamp(path) for path in watched)
    return Inventory(root, is_simulated, "", "", (), (), (), False, "", stamps, why)


def _majors(root: str) -> dict[str, int]:
    """Character device majors by driver name, from the driver root's /proc/devices."""
    found: dict[str, int] = {}
    try:
        with open(os.path.join(root, "proc/devices")) as lines:
            for line in lines:
                if line.startswith("Block"):
                    break
                words = line.split()
                if len(words) == 2 and words[0].isdigit():
                    found.setdefault(words[1], int(words[0]))
    except OSError:
        pass
    return found


def _node(root: str, name: str, default: tuple[int | None, int]) -> Node | None:
    """The node /dev/NAME, by its numbers on the host, or by `default` where udev has not made it."""
    try:
        number = os.stat(os.path.join(root, "dev", name)).st_rdev
        return Node(f"/dev/{name}", os.major(number), os.minor(number))
    except OSError:
        major, minor = default
        return None if major is None else Node(f"/dev/{name}", major, minor)


def _common_nodes(root: str, majors: dict[str, int]) -> list[tuple[str, Node]]:
    uvm = majors.get("nvidia-uvm")
    found = [
        ("", _node(root, "nvidiactl", (_MAJOR, _CTL_MINOR))),
        ("compute", _node(root, "nvidia-uvm", (uvm, 0))),
        ("compute", _node(root, "nvidia-uvm-tools", (uvm, 1))),
        ("graphics", _node(root, "nvidia-modeset", (_MAJOR, _MODESET_MINOR))),
    ]
    return [(capability, node) for capability, node in found if node is not None]


def _ask(pynvml: Any, function: str, *args: Any, default: Any = None) -> Any:
    """An answer that not every card has."""
    try:
        return getattr(pynvml, function)(*args)
    except pynvml.NVMLError:
        return default


def _device(pynvml: Any, index: int, root: str, majors: dict[str, int]) -> list[Device]:
    """The GPU at `index`, or in MIG mode its MIG devices."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        minor = pynvml.nvmlDeviceGetMinorNumber(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        fault = None
    except pynvml.NVMLError as error:
        # A card that fell off the bus must not hide the others.
        handle = _ask(pynvml, "nvmlDeviceGetHandleByIndex", index)
        minor = _ask(pynvml, "nvmlDeviceGetMinorNumber", handle, default=index) if handle else index
        memory, fault = 0, str(error)
    node = _node(root, f"nvidia{minor}", (_MAJOR, minor))
    capability = _ask(pynvml, "nvmlDeviceGetCudaComputeCapability", handle, default=None) if handle else None
    gpu = Device(
        index=str(index),
        uuid=_ask(pynvml, "nvmlDeviceGetUUID", handle, default=f"GPU-unknown-{index}")
        if handle
        else f"GPU-unknown-{index}",
        name=_ask(pynvml, "nvmlDeviceGetName", handle, default="unknown") if handle else "unknown",
        memory_bytes=memory,
        nodes=(node,) if node else (),
        fault=fault,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
        brand=_brand(pynvml, handle) if handle else "",
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
        nodes = [
            _cap_node(root, os.path.join(folder, "access"), majors),
            _cap_node(root, os.path.join(folder, f"ci{compute}", "access"), majors),
        ]
        missing = None if all(nodes) else f"its capability nodes are not in {folder}"
        found.append(
            gpu.replace(
                index=f"{gpu.index}:{position}",
                uuid=pynvml.nvmlDeviceGetUUID(mig),
                name=pynvml.nvmlDeviceGetName(mig),
                memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(mig).total,
                nodes=(*gpu.nodes, *(node for node in nodes if node)),
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
                    return _node(root, f"nvidia-caps/nvidia-cap{number}", (majors.get("nvidia-caps"), number))
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


def memory_by_process(found: Inventory) -> dict[str, dict[int, int | None]]:
    """Bytes of device memory by device UUID and process; None of a process of which the driver does not tell.

    A device that does not name its processes is left out. DeviceError if the driver cannot be asked.
    """
    if not found.nvml:
        return {}
    try:
        pynvml = _open(found.nvml)
    except _NotLoaded as error:
        raise DeviceError("the NVIDIA driver is no longer loaded") from error
    try:
        used: dict[str, dict[int, int | None]] = {}
        for device in found.devices:
            handle = _ask(pynvml, "nvmlDeviceGetHandleByUUID", device.uuid)
            processes = _ask(pynvml, _PROCESSES, handle) if handle else None
            if processes is not None:
                used[device.uuid] = {each.pid: each.usedGpuMemory for each in processes}
        return used
    finally:
        pynvml.nvmlShutdown()
