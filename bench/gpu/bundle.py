"""The bundle of a container whose root file system is the machine's own root (places.py).

The root is an overlay, so that the host's files stay as they are; its upper folder is in a tmpfs, as an
overlay's cannot be in an overlay. It shows one file system: what else is mounted below / is bound in, but for
the kernel's own, /run, /tmp, and the driver, which the runtime brings.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from host import PlaceError

from xpu_runtime.linux import mountinfo, syscalls

#: Where a driver's libraries are among others.
_SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
_LEFT_OUT = ("/proc", "/sys", "/dev", "/run", "/var/run", "/tmp")
#: What a container gets of Docker, too.
_CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"),
    "CAP_AUDIT_WRITE",
)


def prepare(folder: Path, simulated_root: str) -> None:
    """The product's run folder and configuration: the runc of PATH, the simulated driver's root if any."""
    (folder / "run/sim").mkdir(parents=True)
    if simulated_root:
        (folder / "run/sim/root").symlink_to(simulated_root)
    runc = shutil.which("runc") or "runc"
    (folder / "config.yaml").write_text(f"low_level_runtimes: [{runc}]\n")


def overlay(folder: Path, driver_folder: str) -> Path:
    """Makes the bundle's folder and mounts its root file system. PlaceError."""
    folder.mkdir()
    writable, rootfs = folder / "writable", folder / "rootfs"
    for each in (writable, rootfs):
        each.mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "upper", str(writable))
    for name in ("upper", "work"):
        (writable / name).mkdir()
    layers = f"lowerdir=/,upperdir={writable}/upper,workdir={writable}/work"
    _mount("-t", "overlay", "-o", layers, "rootfs", str(rootfs))
    if top := _driver_top(driver_folder):
        # Not a mount of its own: it must not be found there. Only the overlay's upper folder is changed.
        shutil.rmtree(f"{rootfs}{top}", ignore_errors=True)
    return rootfs


def unmount(bundle: Path) -> None:
    for name in ("rootfs", "writable"):
        if os.path.ismount(bundle / name):
            syscalls.umount2(str(bundle / name), syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
    shutil.rmtree(bundle, ignore_errors=True)


def environ(libraries: Sequence[str]) -> dict[str, str]:
    """This process's own without what leads to a driver or asks for devices."""
    dropped = ("XPU_", "NVIDIA_VISIBLE", "NVIDIA_DRIVER", "CUDA_VISIBLE", "LD_LIBRARY_PATH", "LD_PRELOAD")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {"PATH": os.defpath, **kept, **({"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {})}


def spec(
    name: str, rootfs: Path, environ: dict[str, str], binds: Sequence[str], driver_folder: str
) -> dict[str, Any]:
    """One with the host's network, a large /dev/shm, and a first process that reaps."""
    kinds = ("bounding", "effective", "permitted")
    shm = ["nosuid", "nodev", "mode=1777"]
    mounts = [
        _mounted("/proc", "proc"),
        _mounted("/dev", "tmpfs", "nosuid", "strictatime", "mode=755"),
        _mounted("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
        _mounted("/dev/shm", "tmpfs", *shm),
        _mounted("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        _mounted("/run", "tmpfs", "nosuid", "nodev", "mode=755"),
        _mounted("/tmp", "tmpfs", "nosuid", "nodev", "mode=1777"),
    ]
    for path in [*_mounted_below_root(driver_folder), *binds]:
        if os.path.exists(path):
            mounts.append(
                {"destination": path, "source": path, "type": "bind", "options": ["bind", "rprivate"]}
            )
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/sh", "-c", "sleep 1000000 & wait"],
            "env": [f"{key}={value}" for key, value in environ.items()],
            "cwd": "/",
            "capabilities": {kind: list(_CAPABILITIES) for kind in kinds},
            "rlimits": [_limit(name) for name in ("RLIMIT_NOFILE", "RLIMIT_MEMLOCK")],
        },
        "root": {"path": str(rootfs), "readonly": False},
        "mounts": mounts,
        "linux": {
            "cgroupsPath": f"/{name}",
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount")],
        },
    }


def _limit(name: str) -> dict[str, Any]:
    """As large as it is here: a container may not raise one."""
    _, hard = resource.getrlimit(getattr(resource, name))
    amount = (1 << 64) - 1 if hard == resource.RLIM_INFINITY else hard
    return {"type": name, "hard": amount, "soft": amount}


def _mounted(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def _mounted_below_root(driver_folder: str) -> list[str]:
    """The outer ones first."""
    left_out = [*_LEFT_OUT, *filter(None, [_driver_top(driver_folder)])]
    points = {each.point for each in mountinfo.read()}
    return sorted(
        point
        for point in points
        if point != "/" and not any(point == top or point.startswith(f"{top}/") for top in left_out)
    )


def _driver_top(folder: str) -> str:
    """The folder that is the driver's alone; empty: it is one of the system's."""
    real = os.path.realpath(folder)
    if any(real == top or os.path.dirname(real) == top for top in _SYSTEM):
        return ""
    return os.path.dirname(real) if os.path.basename(real) in ("lib", "lib64") else real


def _mount(*words: str) -> None:
    """PlaceError."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode:
        raise PlaceError(f"mount {' '.join(words)}: {done.stderr.strip()}")
