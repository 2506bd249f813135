"""The bundle of a container whose root file system is the machine's own root (places.py).

The root is an overlay, so that the host's files stay as they are. Its upper folder is in a tmpfs, because an
overlay cannot be the upper folder of another. It shows one file system. Other mounts below / are bound into
it read-only, as they are the host's own: all but the kernel's own, /run, /tmp, and the driver, which the
runtime brings. The system's folders, in which the runtime makes mount points, are overlays, too.
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

#: Folders that have a driver's libraries among others.
_SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")
_OVERLAID = (*_SYSTEM, "/usr", "/usr/local", "/usr/bin", "/usr/sbin", "/bin", "/sbin", "/etc", "/var")
_LEFT_OUT = ("/proc", "/sys", "/dev", "/run", "/var/run", "/tmp")
#: Folders where programs write beside their home or their modules, which may be read-only. All of it ends
#: with the container, so that no program uses the compiled files of another.
_CACHES = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "TMPDIR": "/tmp",
    "CUDA_CACHE_PATH": "/tmp/cuda-cache",
    "CUPY_CACHE_DIR": "/tmp/cupy-cache",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor-cache",
    "TORCH_EXTENSIONS_DIR": "/tmp/torch-extensions",
    "TRITON_CACHE_DIR": "/tmp/triton-cache",
    "XDG_CACHE_HOME": "/tmp/cache",
}
#: Docker gives these to a container too.
_CAPABILITIES = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"),
    "CAP_AUDIT_WRITE",
)


def overlay(folder: Path, driver_folder: str) -> Path:
    """Makes the bundle's folder and mounts its root file system. PlaceError."""
    folder.mkdir()
    writable, rootfs = folder / "writable", folder / "rootfs"
    for each in (writable, rootfs):
        each.mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "upper", str(writable))
    for number, point in enumerate(["/", *(each for each in _mounted(driver_folder) if each in _OVERLAID)]):
        upper, work = writable / f"upper-{number}", writable / f"work-{number}"
        upper.mkdir()
        work.mkdir()
        layers = f"lowerdir={point},upperdir={upper},workdir={work}"
        _mount("-t", "overlay", "-o", layers, "rootfs", f"{rootfs}{point}")
    if top := _driver_top(driver_folder):
        # The driver must not be found there, though it is no mount of its own. Only the upper folder changes.
        shutil.rmtree(f"{rootfs}{top}", ignore_errors=True)
    return rootfs


def unmount(bundle: Path) -> None:
    for name in ("rootfs", "writable"):
        if os.path.ismount(bundle / name):
            syscalls.umount2(str(bundle / name), syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
    shutil.rmtree(bundle, ignore_errors=True)


def environ(libraries: Sequence[str]) -> dict[str, str]:
    """This process's environment without variables that lead to a driver or ask for devices."""
    dropped = ("XPU_", "NVIDIA_VISIBLE", "NVIDIA_DRIVER", "CUDA_VISIBLE", "LD_LIBRARY_PATH", "LD_PRELOAD")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {
        "PATH": os.defpath,
        **kept,
        **_CACHES,
        **({"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}),
    }


def spec(
    name: str,
    rootfs: Path,
    environ: dict[str, str],
    binds: Sequence[str],
    driver_folder: str,
    shared: str = "",
) -> dict[str, Any]:
    """A spec with a large /dev/shm and a first process that reaps. Of the host only `shared` is writable. Its
    network is a loopback, which runc sets up: the host's may be down, and NCCL needs one."""
    kinds = ("bounding", "effective", "permitted")
    shm = ["nosuid", "nodev", "mode=1777"]
    mounts = [
        _mount_of("/proc", "proc"),
        _mount_of("/dev", "tmpfs", "nosuid", "strictatime", "mode=755"),
        _mount_of("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
        _mount_of("/dev/shm", "tmpfs", *shm),
        _mount_of("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        _mount_of("/run", "tmpfs", "nosuid", "nodev", "mode=755"),
        _mount_of("/tmp", "tmpfs", "nosuid", "nodev", "mode=1777"),
    ]
    bound = [each for each in _mounted(driver_folder) if each not in _OVERLAID]
    for path in [*bound, *binds]:
        # A single file there is the driver's, as engines put it into containers.
        if os.path.isdir(path) or (os.path.exists(path) and not path.startswith("/usr/")):
            mounts.append(_bind(path, "ro"))
    mounts += [_bind(shared)] if shared else []
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
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount", "network")],
        },
    }


def _limit(name: str) -> dict[str, Any]:
    """As large as here: a container may not raise one."""
    _, hard = resource.getrlimit(getattr(resource, name))
    amount = (1 << 64) - 1 if hard == resource.RLIM_INFINITY else hard
    return {"type": name, "hard": amount, "soft": amount}


def _mount_of(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def _bind(path: str, *options: str) -> dict[str, Any]:
    return {"destination": path, "source": path, "type": "bind", "options": ["bind", "rprivate", *options]}


def _mounted(driver_folder: str) -> list[str]:
    """The mounts below /, outer ones first."""
    left_out = [*_LEFT_OUT, *filter(None, [_driver_top(driver_folder)])]
    points = {each.point for each in mountinfo.read()}
    return sorted(
        point
        for point in points
        if point != "/" and not any(point == top or point.startswith(f"{top}/") for top in left_out)
    )


def interpreter_folder(program: str) -> list[str]:
    """The folder of an interpreter, such as a virtual environment, if the container would not show it. Never
    /usr: a bound folder is the host's own, and a container's mount points would be made in it."""
    path = os.path.abspath(program)
    below = any(path.startswith(f"{top}/") for top in _LEFT_OUT)
    return [os.path.dirname(os.path.dirname(path))] if below else []


def _driver_top(folder: str) -> str:
    """The folder that is the driver's alone. Empty: it is one of the system's."""
    real = os.path.realpath(folder)
    if any(real == top or os.path.dirname(real) == top for top in _SYSTEM):
        return ""
    return os.path.dirname(real) if os.path.basename(real) in ("lib", "lib64") else real


def _mount(*words: str) -> None:
    """Runs mount(8). PlaceError."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode:
        raise PlaceError(f"mount {' '.join(words)}: {done.stderr.strip()}")
