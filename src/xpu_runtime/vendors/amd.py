"""AMD: GPUs that the kernel's amdgpu and KFD drivers run, found in sysfs below a driver root.

A GPU is a node of KFD's topology, in whose order ROCm counts too, with the render node that it names. ROCm's
libraries come with images, so that a container gets device nodes and nothing else: /dev/kfd, which all GPUs
share, and the render node of each of its own. KFD lets a process see only GPUs whose render node its device
cgroup allows (kfd_devcgroup_check_permission in the kernel's drivers/gpu/drm/amd/amdkfd/kfd_priv.h). Backends
hold the limits.
"""

from __future__ import annotations

import os

from xpu_runtime.linux import files
from xpu_runtime.linux.numbers import is_number
from xpu_runtime.vendors import nodes
from xpu_runtime.vendors.inventory import Device, Driver, Node, stamp
from xpu_runtime.vendors.vendor import WHOLE, Discovered, Sensors, Vendor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "amd"

_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
#: Memory of processes on each GPU: PID/vram_GPUID, in bytes.
_PROCESSES = "sys/class/kfd/kfd/proc"
_VENDOR_ID = 0x1002  # PCI's
_DRM_MAJOR = 226  # Documentation/admin-guide/devices.txt
_MINORS = 1 << 20
#: No card has as much, and the ledger's sums stay numbers that SQLite can hold.
_MOST_MEMORY = 1 << 50
#: Heaps of device memory in KFD's memory banks: the part that the CPU can see, and the rest.
_DEVICE_HEAPS = (1, 2)
_BRANDS = ("instinct", "radeon")
_LONGEST_NAME = 64
_MAX_BYTES = 64 << 10


class Amd(Vendor):
    """AMD, with any amdgpu driver that has KFD."""

    name = NAME
    order = 1
    experimental = True
    names_processes = False

    def discover(self, root: str) -> Discovered:
        folder = os.path.join(root, _TOPOLOGY)
        watched = [os.path.join(root, "dev/kfd")]
        if os.path.exists(watched[0]):
            watched.append(os.path.join(root, "dev/dri"))
        stamps = tuple(map(stamp, watched))
        if not os.path.isdir(folder):
            return Discovered(missing=f"no AMD driver found: {folder} is not there", stamps=stamps)
        kfd = nodes.find(root, "kfd", (nodes.majors(root).get("kfd"), 0))
        found = [_Gpu(root, os.path.join(folder, number)) for number in _numbered(folder)]
        gpus = [gpu for gpu in found if gpu.is_amd]
        if not gpus:
            return Discovered(missing=f"the AMD driver has no GPU in {folder}", stamps=stamps)
        devices = tuple(_device(str(index), gpu, gpus, kfd) for index, gpu in enumerate(gpus))
        version = _text(os.path.join(root, "sys/module/amdgpu/version"))
        return Discovered(
            devices,
            Driver(
                vendor=NAME,
                version=version,
                summary=f"amdgpu driver {version or f'of Linux {os.uname().release}'}",
                common_nodes=(("compute", kfd),) if kfd else (),
                backends=("dmem",),
                details=(("processes", os.path.join(root, _PROCESSES)),),
            ),
            stamps=stamps,
        )

    def memory_by_process(
        self, driver: Driver, devices: tuple[Device, ...]
    ) -> dict[str, dict[int, int | None]] | None:
        folder = driver.detail("processes")
        if not os.path.isdir(folder):
            return None  # KFD of older kernels does not report it
        used: dict[str, dict[int, int | None]] = {}
        for device in devices:
            name = f"vram_{device.detail('gpu_id')}"
            by_process = {pid: _number(os.path.join(folder, pid, name)) for pid in _numbered(folder)}
            used[device.uuid] = {int(pid): amount for pid, amount in by_process.items() if amount is not None}
        return used

    def sensors(self, driver: Driver, devices: tuple[Device, ...]) -> dict[str, Sensors]:
        whole = {device: device.detail("sysfs") for device in devices}
        return {device.uuid: _sensors(folder, device) for device, folder in whole.items() if folder}

    def utilization(
        self, driver: Driver, devices: tuple[Device, ...], *, whole: bool = False
    ) -> Callable[[], dict[str, dict[int, float]]] | None:
        if not whole:
            return None  # amdgpu reports nothing of single processes here
        paths = {
            device.uuid: os.path.join(folder, "gpu_busy_percent")
            for device in devices
            if (folder := device.detail("sysfs"))
        }

        def ask() -> dict[str, dict[int, float]]:
            told = {uuid: _number(path) for uuid, path in paths.items()}
            return {uuid: {WHOLE: min(busy, 100) / 100} for uuid, busy in told.items() if busy is not None}

        return ask


VENDOR = Amd()


def _sensors(folder: str, device: Device) -> Sensors:
    """The sensors of a PCI device (Documentation/gpu/amdgpu/thermal.rst and driver-misc.rst), in its
    units."""
    used = _number(os.path.join(folder, "mem_info_vram_used"))
    hwmon = os.path.join(folder, "hwmon")
    try:
        (name,) = os.listdir(hwmon)
    except (OSError, ValueError):
        name = "none"
    millidegrees = _number(os.path.join(hwmon, name, "temp1_input"))
    microwatts = _number(os.path.join(hwmon, name, "power1_average"))
    if microwatts is None:  # its name in newer kernels
        microwatts = _number(os.path.join(hwmon, name, "power1_input"))
    return Sensors(
        None if used is None else min(used, device.memory_bytes),
        None if millidegrees is None else millidegrees / 1000,
        None if microwatts is None else microwatts / 1_000_000,
    )


class _Gpu:
    """One node of KFD's topology with sysfs's facts about its PCI device; 0 or "" where there is none.

    The files are made by the kernel's kfd_topology.c and amdgpu_device.c (Documentation/gpu/amdgpu).
    """

    def __init__(self, root: str, node: str) -> None:
        self.node = node
        self.root = root
        self.gpu_id = _number(os.path.join(node, "gpu_id")) or 0
        self.properties = _properties(os.path.join(node, "properties"))
        minor = self.properties.get("drm_render_minor", 0)
        self.minor = minor if minor < _MINORS else 0
        self.folder = os.path.join(root, f"sys/class/drm/renderD{self.minor}/device")

    @property
    def is_amd(self) -> bool:
        """Whether it is a GPU at all: CPUs are nodes too, and have no such number."""
        return self.gpu_id != 0 and self.properties.get("vendor_id", _VENDOR_ID) == _VENDOR_ID

    @property
    def address(self) -> str:
        """The PCI address as the kernel writes it, 0000:03:00.0; bits above 16 number partitions."""
        location = self.properties.get("location_id", 0)
        bus, slot, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
        return f"{self.properties.get('domain', 0):04x}:{bus:02x}:{slot:02x}.{function}"

    @property
    def unique_id(self) -> int:
        """The GPU's own number, which no other has; 0 for cards without one."""
        known = self.properties.get("unique_id", 0)
        return known or _hexadecimal(_text(os.path.join(self.folder, "unique_id")))

    @property
    def memory(self) -> int:
        """Bytes of device memory: a partition has its share, and the PCI device tells of the whole."""
        whole = _number(os.path.join(self.folder, "mem_info_vram_total")) or 0
        banks = os.path.join(self.node, "mem_banks")
        each = [_properties(os.path.join(banks, bank, "properties")) for bank in _numbered(banks)]
        heaps = [bank for bank in each if bank.get("heap_type") in _DEVICE_HEAPS]
        share = sum(bank.get("size_in_bytes", 0) for bank in heaps)
        return min((amount for amount in (whole, share) if 0 < amount < _MOST_MEMORY), default=0)

    @property
    def version(self) -> tuple[int, int, int] | None:
        """The parts of `gfx90a`: major, minor, stepping."""
        target = self.properties.get("gfx_target_version", 0)
        return (target // 10000, target // 100 % 100, target % 100) if target else None

    @property
    def product(self) -> str:
        """Its board's name; only server cards have it."""
        return _text(os.path.join(self.folder, "product_name"))

    @property
    def name(self) -> str:
        version = self.version
        target = f"gfx{version[0]}{version[1]:x}{version[2]:x}" if version else ""
        return self.product or " ".join(filter(None, ("AMD GPU", target)))


def _device(index: str, gpu: _Gpu, gpus: list[_Gpu], kfd: Node | None) -> Device:
    """A GPU, or a compute partition of one, which is a GPU of its own to KFD and to ROCm."""
    partitions = [other for other in gpus if other.address == gpu.address]
    # Two cards of one number (copied firmware) would be one device: then the address tells them apart.
    alike = any(other.unique_id == gpu.unique_id and other.address != gpu.address for other in gpus)
    is_unique = gpu.unique_id and not alike
    uuid = f"GPU-{gpu.unique_id:016x}" if is_unique else f"GPU-pci-{_with_dashes(gpu.address)}"
    if len(partitions) > 1:
        uuid = f"{uuid}-{partitions.index(gpu)}"
    render = nodes.find(gpu.root, f"dri/renderD{gpu.minor}", (_DRM_MAJOR, gpu.minor)) if gpu.minor else None
    memory = gpu.memory
    fault: str | None = None
    if render is None:
        fault = f"{gpu.node}/properties names no render node"
    elif kfd is None:
        fault = "there is no /dev/kfd, through which programs compute"
    elif not memory:
        fault = f"{gpu.node} tells of no device memory"
    version = gpu.version
    facts = [("arch", ".".join(map(str, version)))] if version else []
    facts += [("brand", brand) for brand in _BRANDS if brand in gpu.product.lower()]
    details = [("gpu_id", str(gpu.gpu_id))]
    if len(partitions) == 1:
        # A limit of the region holds for the card as a whole, for all of its partitions together; the use
        # that it reports is that of all.
        details += [("dmem", f"drm/{gpu.address}/vram"), ("sysfs", gpu.folder)]
    return Device(
        index=index,
        uuid=uuid,
        name=gpu.name,
        memory_bytes=memory,
        nodes=(render,) if render else (),
        vendor=NAME,
        fault=fault,
        facts=tuple(facts),
        details=tuple(details),
    )


def _with_dashes(address: str) -> str:
    return address.replace(":", "-").replace(".", "-")


def _numbered(folder: str) -> list[str]:
    """The entries of a folder that are numbers, in their order; none where there is no such folder."""
    try:
        return sorted((name for name in os.listdir(folder) if is_number(name)), key=int)
    except OSError:
        return []


def _text(path: str) -> str:
    """The first line of a file of sysfs, as far as it can be printed; "" where it cannot be read."""
    try:
        line = files.read(path, _MAX_BYTES).decode("ascii", "replace").partition("\n")[0]
    except OSError:
        return ""
    return "".join(letter for letter in line if letter.isascii() and letter.isprintable()).strip()[
        :_LONGEST_NAME
    ]


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if is_number(text) else None


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16) if 0 < len(text) <= 16 else 0
    except ValueError:
        return 0


def _properties(path: str) -> dict[str, int]:
    """The `name number` lines of a file of KFD's topology; {} where it cannot be read."""
    try:
        lines = files.read(path, _MAX_BYTES).decode("ascii", "replace").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and is_number(pair[1])}
