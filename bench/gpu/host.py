"""The machine that measuring programs run on: its driver, its nvidia-smi, where the product is installed.

A real card's driver is found as hosts have it; a simulated one has a root of its own. Every measuring program
takes the same options (add_options), whose defaults the environment sets for all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import card

REPOSITORY = Path(__file__).resolve().parents[2]
UNITS = {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10}
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: Where hosts keep a driver that the loader's cache may not know.
DRIVER_FOLDERS = [
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/usr/lib/wsl/lib",
]


class PlaceError(Exception):
    """What did not work, and what it said."""


@dataclasses.dataclass(frozen=True)
class Driver:
    """Where the driver's libraries are on this host."""

    folder: str
    paths: Mapping[str, str]

    def path_of(self, name: str) -> str:
        return self.paths[name]


@dataclasses.dataclass(frozen=True)
class Machine:
    """What all places have in common. `root`: a simulated driver's, empty on a real card. `devices`: comma
    list of indexes or UUIDs."""

    prefix: str
    root: str
    python: str
    driver: Driver
    devices: str = "0"

    @property
    def smi(self) -> str:
        """nvidia-smi, as the host has it; empty: there is none."""
        if self.root:
            return f"{self.root}/usr/bin/nvidia-smi"
        top = Path(self.driver.folder)
        beside = [str(top), *(str(each / "bin") for each in (top, *list(top.parents)[:2]))]
        return shutil.which("nvidia-smi", path=":".join([*beside, os.environ.get("PATH", os.defpath)])) or ""

    def query(self, fields: str) -> list[str]:
        """What nvidia-smi on the host says of each chosen device, a line each. PlaceError."""
        if not self.smi:
            raise PlaceError(f"no nvidia-smi beside {self.driver.folder} and none on PATH")
        words = [self.smi, "-i", self.devices, f"--query-gpu={fields}", "--format=csv,noheader"]
        done = subprocess.run(words, env=self.environ(), capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise PlaceError(
                f"nvidia-smi ends with {done.returncode}: {(done.stdout or done.stderr).strip()[:300]}"
            )
        return done.stdout.strip().split("\n")

    def environ(self) -> dict[str, str]:
        """A program's on the host: the loader finds the driver, the shell its programs."""
        environ = dict(os.environ)
        if self.root or not _in_cache("libcuda.so.1"):
            environ["LD_LIBRARY_PATH"] = ":".join([*self.other_libraries(), self.driver.folder])
        if self.smi:
            environ["PATH"] = f"{environ.get('PATH', os.defpath)}:{os.path.dirname(self.smi)}"
        return environ

    def other_libraries(self) -> list[str]:
        """The folders of LD_LIBRARY_PATH that have no driver in them."""
        folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        return [each for each in folders if each and not os.path.lexists(f"{each}/libcuda.so.1")]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every measuring program has."""
    environ = os.environ
    built = str(REPOSITORY / "build/root")
    parser.add_argument(
        "--prefix", default=environ.get("XPU_GPU_PREFIX", built), help="where the product is installed"
    )
    parser.add_argument(
        "--root",
        default=environ.get("XPU_GPU_ROOT", ""),
        help="a simulated driver's root; empty: the real one",
    )
    parser.add_argument(
        "--python",
        default=environ.get("XPU_GPU_PYTHON", sys.executable),
        help="the interpreter that has PyTorch, JAX, CuPy",
    )
    parser.add_argument("--devices", default="0", help="comma list of GPU indexes (0)")


def machine(options: argparse.Namespace | None = None) -> Machine:
    """From a parser's options (add_options), or without any from the environment. PlaceError: no driver."""
    if options is None:
        parser = argparse.ArgumentParser()
        add_options(parser)
        options = parser.parse_args([])
    prefix = os.path.realpath(options.prefix)
    root = options.root and os.path.realpath(options.root)
    return Machine(prefix, root, options.python, find_driver(root), options.devices)


def begin(options: argparse.Namespace, results: str | None = None) -> Machine:
    """The machine that a measuring program is on, whose results go to the file `results`, too. It ends here,
    skipped, where there is no driver, and failed where the kernel driver runs and the rest is not found."""
    # Places have to be closed: a run that has no more time left sends this first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if results:
        os.environ["XPU_GPU_JSON"] = os.path.abspath(results)
    try:
        on = machine(options)
        for line in on.query("name,driver_version,memory.total"):
            card.report("card", line)
    except PlaceError as error:
        if os.path.exists("/proc/driver/nvidia/version"):
            card.fail(str(error))
        card.skip(f"no NVIDIA driver runs on this machine (no /proc/driver/nvidia/version): {error}")
    return on


def find_driver(root: str) -> Driver:
    """The loader's cache, LD_LIBRARY_PATH, then the folders that hosts keep a driver in. PlaceError."""
    cuda, nvml = LIBRARIES
    if root:
        folders = [str(path) for path in Path(root).glob("usr/lib/*-linux-gnu")]
    else:
        folders = [os.path.dirname(path) for path in [_in_cache(cuda)] if path]
        folders += [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
        folders += DRIVER_FOLDERS
    for folder in folders:
        if _is_ours(f"{folder}/{cuda}"):
            found = {name: f"{folder}/{name}" for name in LIBRARIES if os.path.exists(f"{folder}/{name}")}
            if nvml not in found:
                beside = [each for each in folders if _is_ours(f"{each}/{nvml}")]
                if not beside:
                    raise PlaceError(
                        f"{folder} has libcuda.so.1; no libnvidia-ml.so.1 in {', '.join(folders)}"
                    )
                found[nvml] = f"{beside[0]}/{nvml}"
            return Driver(folder, found)
    raise PlaceError(f"no libcuda.so.1 in the loader's cache, nor in {', '.join(folders)}")


@functools.cache
def _in_cache(name: str) -> str:
    """Where the loader's cache has a library for this machine; empty: nowhere."""
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not ldconfig:
        return ""
    done = subprocess.run([ldconfig, "-p"], capture_output=True, text=True)
    lines = [line for line in done.stdout.split("\n") if line.startswith(f"\t{name} (")]
    paths = [line.split("=> ")[1] for line in lines]
    return next((path for path in paths if _is_ours(path)), "")


def _is_ours(path: str) -> bool:
    """Whether it is a library of 64 bits for this processor (elf(5))."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return False
    wanted = {"x86_64": 62, "aarch64": 183}[platform.machine()]
    return head[:5] == b"\x7fELF\x02" and int.from_bytes(head[18:20], "little") == wanted


def bytes_of(amount: str) -> int:
    """4G, 512M."""
    return int(float(amount[:-1]) * UNITS[amount[-1].upper()])
