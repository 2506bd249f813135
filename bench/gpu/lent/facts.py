"""Prints a machine's facts, a line each, before anything is changed on it: facts.py

They are for readers of the record, and for the next kit: the machine's state, the place of the driver, and
the way in which a program finds it.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card

TOOLS = (
    *("cc", "gcc", "make", "git", "musl-gcc", "nvcc", "runc", "crun", "docker", "busybox", "patchelf"),
    *("unshare", "nsenter", "mount", "flock", "ldconfig", "nvidia-smi", "nvidia-cuda-mps-control"),
    *("compute-sanitizer", "ncu", "cuda-gdb", "gdb", "strace"),
)
PACKAGES = (
    "torch",
    "triton",
    "jax",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "cuda-bindings",
    "nvidia-ml-py",
    "numpy",
)
_QUERY = (
    "name,uuid,driver_version,memory.total,memory.used,compute_mode,persistence_mode,mig.mode.current,"
    "ecc.mode.current"
)
_ENVIRONMENT = ("CUDA", "NVIDIA", "LD_", "TORCH", "PYTORCH", "XLA", "JAX", "TRITON", "PYTHON", "VIRTUAL_ENV")
#: The driver that the loader takes for a program.
_LOADED = (
    "import ctypes, sys\n"
    "try: ctypes.CDLL('libcuda.so.1')\n"
    "except OSError as error: sys.exit(f'no libcuda.so.1 ({error})')\n"
    "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libcuda' in line})"
)
_PATIENCE = 15


def said(*command: str) -> str:
    """The output of a command on one line, or the reason for none."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"none: {error}"
    lines = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
    return "; ".join(lines) or f"nothing, status {done.returncode}"


def read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return "; ".join(line.strip() for line in file.read().strip().splitlines())
    except OSError as error:
        return f"none: {error.strerror}"


def system() -> Iterator[tuple[str, object]]:
    yield "kernel", f"{platform.release()} {platform.machine()}"
    release = platform.freedesktop_os_release() if os.path.exists("/etc/os-release") else {}
    yield "system", release.get("PRETTY_NAME", "no /etc/os-release")
    yield "libc", "-".join(platform.libc_ver())
    yield "processors", f"{os.cpu_count()}, may use {len(os.sched_getaffinity(0))}"
    yield "load average", " ".join(f"{each:.1f}" for each in os.getloadavg())
    yield "memory", " ".join(" ".join(read("/proc/meminfo").split("; ")[:3]).split())
    status = read("/proc/self/status").split("; ")
    wanted = [line for line in status if line.startswith(("CapEff", "Seccomp", "NoNewPrivs"))]
    yield "user", f"{os.getuid()}, {' '.join(' '.join(wanted).split())}"
    yield "first process", read("/proc/1/comm")
    yield "file systems", ", ".join(read("/proc/filesystems").replace("nodev", "").replace(";", " ").split())


def interpreters() -> Iterator[tuple[str, object]]:
    yield "this python", f"{sys.executable} {platform.python_version()}"
    yield "prefix", f"{sys.prefix}, base {sys.base_prefix}"
    yield "python3 on PATH", shutil.which("python3") or "none"
    for path in sorted({"/usr/bin/python3", *glob.glob("/opt/*/.venv/bin/python3")}):
        yield path, f"{said(path, '--version')}, {os.path.realpath(path)}"
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)
    yield "PATH", os.environ.get("PATH", "not set")
    for name, value in sorted(os.environ.items()):
        if name.startswith(_ENVIRONMENT):
            yield name, value


def tools() -> Iterator[tuple[str, object]]:
    where = f"{os.environ.get('PATH', '')}:/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/sbin:/sbin"
    found = {name: shutil.which(name, path=where) for name in TOOLS}
    yield "tools", ", ".join(path for path in found.values() if path)
    yield "no", ", ".join(name for name, path in found.items() if not path)
    yield "gcc", said("gcc", "--version")[:80]
    libraries = glob.glob("/usr/lib/*-linux-gnu/libc.a") + glob.glob("/usr/lib64/libc.a")
    yield "static C library", ", ".join(libraries) or "none"


def mounts() -> Iterator[tuple[str, object]]:
    lines = read("/proc/self/mountinfo").split("; ")
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point, options = (fields.split() + [""] * 6)[4:6]
        wanted = rest.startswith("cgroup") or "nvidia" in point
        if wanted or point in ("/", "/sys", "/sys/fs/cgroup", "/run", "/opt", "/tmp"):
            yield f"mount {point}", f"{rest.split()[0]} {options}"
    yield "mounts", len(lines)
    for path in ("/", "/opt", "/tmp", "/dev/shm", "/run"):
        if os.path.isdir(path):
            yield f"free {path}", f"{shutil.disk_usage(path).free >> 20} MiB"


def driver() -> Iterator[tuple[str, object]]:
    # The root of a running simulation (host.py).
    root = os.environ.get("XPU_GPU_ROOT", "")
    yield "driver", read(f"{root}/proc/driver/nvidia/version")
    yield "driver's parameters", read(f"{root}/proc/driver/nvidia/params")
    nodes = glob.glob(f"{root}/dev/nvidia*") + glob.glob(f"{root}/dev/nvidia-caps/*")
    yield "device nodes", " ".join(sorted(nodes))
    ldconfig = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin") or "ldconfig"
    wanted = ("libcuda.so", "libnvidia-ml.so")
    cached = [line.strip() for line in said(ldconfig, "-p").split("; ") if line.strip().startswith(wanted)]
    yield "in the loader's cache", "; ".join(cached) or f"no {', no '.join(wanted)}"
    yield "the loader finds", said(sys.executable, "-c", _LOADED)
    for folder in ("/usr/local/nvidia", "/usr/local/nvidia/lib64", "/usr/local/nvidia/bin"):
        yield folder, " ".join(sorted(os.listdir(folder))) if os.path.isdir(folder) else "is not there"
    where = f"{root and f'{root}/usr/bin:'}{os.environ.get('PATH', '')}:/usr/local/nvidia/bin"
    smi = [shutil.which("nvidia-smi", path=where) or "nvidia-smi"]
    if root:
        smi = ["env", f"LD_LIBRARY_PATH={':'.join(glob.glob(f'{root}/usr/lib/*-linux-gnu'))}", *smi]
    yield "card", said(*smi, f"--query-gpu={_QUERY}", "--format=csv,noheader")
    words = ("--query-compute-apps=pid,name,used_memory", "--format=csv,noheader")
    yield "programs on the card", said(*smi, *words)


GROUPS: tuple[Callable[[], Iterator[tuple[str, object]]], ...] = (
    system,
    interpreters,
    tools,
    mounts,
    driver,
)


def main() -> None:
    for group in GROUPS:
        try:
            for name, value in group():
                card.report(name, value)
        # A missing fact must not keep the others back.
        except Exception as error:
            card.report(group.__name__, f"unreadable: {type(error).__name__}: {error}")


main()
