"""NVIDIA's driver for `xpu doctor`: whether its parts are there, loaded, and of one version.

An upgrade of the driver's packages under a loaded kernel module is the most frequent fault of a node: from
then on every new program fails, and running ones go on. Only files are read here, and NVML is not asked.
"""

from __future__ import annotations

import os
import re

from xpu_runtime import finding
from xpu_runtime.finding import Finding
from xpu_runtime.linux import files
from xpu_runtime.vendors import nodes
from xpu_runtime.vendors.nvidia import driver_files
from xpu_runtime.vendors.nvidia.driver_files import DriverFiles
from xpu_runtime.vendors.nvidia.search import NVML

_CHECK = "driver"
_VERSION = re.compile(r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)\s")
_IN_NAME = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")
_VENDOR_ID = "0x10de"
_DISPLAY_CLASS = "0x03"  # PCI's: display controllers, among them 3D ones without an output
_MAX_BYTES = 64 << 10
_SMI = "nvidia-smi"
_WSL = "/usr/lib/wsl/"
_RELOAD = (
    "reboot, or stop all programs that use the GPUs and run: "
    "rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; modprobe nvidia"
)


def examine(root: str, *, answers: bool) -> list[Finding]:
    """As `Vendor.examine`; `answers`: NVML answers, so the driver is loaded even if files are missing."""
    found = driver_files.find(root)
    library = found.path_of(NVML)
    if library is None:
        cards = _cards() if root == "/" else 0
        if not cards:
            return []
        text = f"the PCI bus has {cards} NVIDIA GPU(s), and {found.missing}"
        todo = "install NVIDIA's driver, R470 or newer; where it lies elsewhere, " + _into_cache("its folder")
        return [finding.problem(_CHECK, text, todo)]
    findings = []
    kernel = kernel_version(root)
    name = _IN_NAME.search(os.path.basename(os.path.realpath(library)))
    if kernel is None:
        findings += [] if answers else [_not_loaded(root)]
    elif name and name[1] != kernel:
        text = f"the loaded kernel module is {kernel}, and {library} is {name[1]}"
        findings.append(finding.problem(_CHECK, text, _RELOAD))
    findings += _of_folder(found)
    if (
        kernel is not None
        and nodes.find(root, "nvidia-uvm", (nodes.majors(root).get("nvidia-uvm"), 0)) is None
    ):
        text = "the kernel module nvidia-uvm is not loaded: CUDA does not start in containers"
        findings.append(finding.problem(_CHECK, text, "modprobe nvidia-uvm, and load it at each boot"))
    return findings


def _of_folder(found: DriverFiles) -> list[Finding]:
    """Files that are missing in the folder of the libraries, or beside it."""
    findings = []
    if found.by_caller:
        theirs = f"get that in {found.engines_folder}" if found.engines_folder else "find no driver"
        text = f"only this shell's LD_LIBRARY_PATH leads to the driver in {found.folder}: containers {theirs}"
        findings.append(finding.problem(_CHECK, text, _into_cache(found.folder)))
    if found.folder.startswith(_WSL):
        text = f"the driver in {found.folder} is WSL's: it has no device nodes to give to containers"
        findings.append(finding.problem(_CHECK, text, "use a Linux machine with the card"))
    if found.path_of("libcuda.so.1") is None:
        text = f"libcuda.so.1 is not beside {found.folder}/{NVML}, so no container can compute"
        findings.append(finding.problem(_CHECK, text, "install the driver's CUDA library (Debian: libcuda1)"))
    if found.program(_SMI) is None:
        text = f"containers get no {_SMI}: it is neither beside {found.folder} nor in /usr/bin"
        findings.append(finding.warning(_CHECK, text, f"install it (Debian: {_SMI}), or put it there"))
    return findings


def _into_cache(folder: str) -> str:
    """The command that puts a folder into the loader's cache for good: `ldconfig FOLDER` holds only until the
    next run of ldconfig."""
    return f"write {folder} into /etc/ld.so.conf.d/nvidia.conf and run `ldconfig`"


def _not_loaded(root: str) -> Finding:
    text = (
        f"the kernel module nvidia is not loaded ({root.rstrip('/')}/proc/driver/nvidia/version is missing)"
    )
    if root == "/" and os.path.isdir("/sys/module/nouveau"):
        text += "; nouveau is, and has the card"
        return finding.problem(_CHECK, text, "put `blacklist nouveau` into /etc/modprobe.d, and reboot")
    return finding.problem(_CHECK, text, "modprobe nvidia, then look into dmesg")


def kernel_version(root: str) -> str | None:
    """The version of the loaded module, from the driver's own file; None where it is not loaded."""
    try:
        text = files.read(os.path.join(root, "proc/driver/nvidia/version"), _MAX_BYTES).decode(
            "ascii", "replace"
        )
    except OSError:
        return None
    match = _VERSION.search(text)
    return match[1] if match else None


def _cards() -> int:
    """How many GPUs of NVIDIA's the PCI bus has (sysfs-bus-pci), without those that virtual machines have."""
    top = "/sys/bus/pci/devices"
    try:
        names = os.listdir(top)
    except OSError:
        return 0
    found = 0
    for name in names:
        try:
            with open(f"{top}/{name}/vendor") as vendor, open(f"{top}/{name}/class") as kind:
                is_gpu = vendor.read().strip() == _VENDOR_ID and kind.read().startswith(_DISPLAY_CLASS)
            driver = os.path.basename(os.path.realpath(f"{top}/{name}/driver"))
            found += is_gpu and driver != "vfio-pci"
        except OSError:
            continue  # it has been taken out
    return found
