"""The driver root of a simulated device: the files of an installed NVIDIA driver.

It has libraries under their versioned names with SONAME links, an ld cache with these names, nvidia-smi,
device nodes, and the files of /proc/driver/nvidia with the capabilities' minor numbers.
"""

from __future__ import annotations

import os
import shutil
import stat
import sysconfig

from xpu_runtime.errors import DeviceError
from xpu_runtime.linux import files, ldcache, syscalls
from xpu_simulator.topology import Gpu, Topology

#: Of nvidia-frontend, as assigned by the kernel's Documentation/admin-guide/devices.txt.
NVIDIA_MAJOR = 195
_CONTROL_MINOR, _MODESET_MINOR = 255, 254
#: From statvfs(3).
_ST_NODEV, _ST_NOEXEC = 4, 8
_MS_NOSUID = 2


def make(root: str, topology: Topology, native: str) -> None:
    """Fills the new folder `root`; `native` has the results of sim/Makefile.

    DeviceError if these are missing; OSError if a file or node cannot be made (root only).
    """
    os.mkdir(root)
    if os.statvfs(root).f_flag & (_ST_NODEV | _ST_NOEXEC):
        # /run, mostly: nodes on it cannot be opened, and libraries not loaded.
        syscalls.mount("xpu-sim", root, "tmpfs", _MS_NOSUID, "mode=755,size=64m")
    for folder in ("dev", "etc", "proc", "run/nvidia-sim", "usr/bin"):
        os.makedirs(os.path.join(root, folder), mode=0o755)
    _libraries(root, topology, native)
    for program in ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        _copy(os.path.join(native, program), os.path.join(root, "usr/bin", program))
    uvm, caps = _free_majors()
    _nodes(os.path.join(root, "dev"), topology, uvm, caps)
    _proc(os.path.join(root, "proc"), topology, uvm, caps)


def unmake(root: str) -> None:
    """Removes the folder and the mounts in it, if it exists."""
    try:
        syscalls.umount2(root, syscalls.MNT_DETACH)
    except OSError:
        pass  # no mount: the run folder itself allows nodes
    shutil.rmtree(root, ignore_errors=True)


def multiarch() -> str:
    """The machine's library folder below /usr/lib: x86_64-linux-gnu."""
    return str(sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu")


def _libraries(root: str, topology: Topology, native: str) -> None:
    folder = f"usr/lib/{multiarch()}"
    os.makedirs(os.path.join(root, folder), mode=0o755)
    entries = []
    flags = ldcache.flags_for(os.uname().machine)
    for name in ("libcuda", "libnvidia-ml"):
        file = f"{name}.so.{topology.driver}"
        _copy(os.path.join(native, f"{name}-{topology.branch}.so"), os.path.join(root, folder, file))
        os.symlink(file, os.path.join(root, folder, f"{name}.so.1"))
        os.symlink(f"{name}.so.1", os.path.join(root, folder, f"{name}.so"))
        entries += [
            ldcache.Entry(f"{name}.so{end}", f"/{folder}/{name}.so{end}", flags) for end in ("", ".1")
        ]
    files.write_atomic(os.path.join(root, "etc/ld.so.cache"), bytes(ldcache.build(entries)))


def _copy(source: str, target: str) -> None:
    try:
        with open(source, "rb") as file:
            files.write_atomic(target, file.read(), 0o755)
    except FileNotFoundError:
        raise DeviceError(
            f"the simulated driver is not built: {source} is missing", "run `make install`"
        ) from None


def _free_majors() -> tuple[int, int]:
    """Two character majors without a driver: opening their nodes gives ENXIO."""
    taken = set()
    with open("/proc/devices", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("Block"):
                break
            if line.strip()[:1].isdigit():
                taken.add(int(line.split()[0]))
    # 384 to 511 are for dynamic majors, which the kernel assigns from the top (char_dev.c).
    free = [major for major in range(384, 512) if major not in taken]
    if len(free) < 2:
        raise DeviceError("all dynamic device majors are taken", "unload a driver that is not needed")
    return free[1], free[0]


def _nodes(dev: str, topology: Topology, uvm: int, caps: int) -> None:
    nodes = {
        "nvidiactl": (NVIDIA_MAJOR, _CONTROL_MINOR),
        "nvidia-modeset": (NVIDIA_MAJOR, _MODESET_MINOR),
        "nvidia-uvm": (uvm, 0),
        "nvidia-uvm-tools": (uvm, 1),
    }
    nodes.update({f"nvidia{gpu.settings['minor']}": (NVIDIA_MAJOR, _minor(gpu)) for gpu in topology.gpus})
    for name, numbers in nodes.items():
        _node(os.path.join(dev, name), 0o666, *numbers)
    os.mkdir(os.path.join(dev, "nvidia-caps"), 0o755)
    for minor, mode in _capabilities(topology).values():
        _node(os.path.join(dev, f"nvidia-caps/nvidia-cap{minor}"), mode, caps, minor)


def _node(path: str, mode: int, major: int, minor: int) -> None:
    os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    os.chmod(path, mode)


def _minor(gpu: Gpu) -> int:
    return int(gpu.settings["minor"])


def _capabilities(topology: Topology) -> dict[str, tuple[int, int]]:
    """Path below /proc/driver/nvidia/capabilities → minor of its node, and the node's mode."""
    found = {}
    if any(gpu.settings.get("mig_capable") for gpu in topology.gpus):
        found = {"mig/config": (1, 0o400), "mig/monitor": (2, 0o444)}
    for gpu in topology.gpus:
        for part in gpu.mig:
            instance = f"gpu{_minor(gpu)}/mig/gi{part['gi']}"
            found[f"{instance}/access"] = (int(part["gi_minor"]), 0o444)
            found[f"{instance}/ci{part['ci']}/access"] = (int(part["ci_minor"]), 0o444)
    return found


def _proc(proc: str, topology: Topology, uvm: int, caps: int) -> None:
    machine = os.uname().machine
    capabilities = _capabilities(topology)
    texts = {
        "devices": f"Character devices:\n{NVIDIA_MAJOR} nvidia\n{NVIDIA_MAJOR} nvidiactl\n"
        f"{uvm} nvidia-uvm\n{caps} nvidia-caps\n\nBlock devices:\n",
        "driver/nvidia/version": f"NVRM version: NVIDIA UNIX {machine} Kernel Module  {topology.driver}  "
        "simulated\nGCC version:  none\n",
        "driver/nvidia/params": "DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
        "ModifyDeviceFiles: 1\n",
    }
    for gpu in topology.gpus:
        texts[f"driver/nvidia/gpus/{gpu.bus_id}/information"] = (
            f"Model: \t\t {gpu.settings['name']}\nIRQ:   \t\t 0\nGPU UUID: \t {gpu.settings['uuid']}\n"
            f"Video BIOS: \t {gpu.settings['vbios']}\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n"
            f"DMA Mask: \t 0x7fffffffffff\nBus Location: \t {gpu.bus_id}\n"
            f"Device Minor: \t {gpu.settings['minor']}\nGPU Excluded:\t No\n"
        )
    for path, (minor, mode) in capabilities.items():
        texts[f"driver/nvidia/capabilities/{path}"] = (
            f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
        )
    if capabilities:
        lines = (
            f"{path.replace('/mig/', '/').removeprefix('mig/')} {entry[0]}"
            for path, entry in capabilities.items()
        )
        texts["driver/nvidia-caps/mig-minors"] = "\n".join(lines) + "\n"
    for path, text in texts.items():
        file = os.path.join(proc, path)
        os.makedirs(os.path.dirname(file), mode=0o755, exist_ok=True)
        files.write_atomic(file, text.encode("ascii"), 0o444)
