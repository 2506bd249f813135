"""The machine that measuring programs run on: its driver, its nvidia-smi, and the product's installation.

A real card's driver is found as on any host. A simulated one has a root of its own. Every measuring program
takes the same options (add_options). The environment sets their defaults for all programs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import card

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "src"))

from xpu_runtime import paths  # noqa: E402
from xpu_runtime.vendors.nvidia import driver_files  # noqa: E402

UNITS = {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10}
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


class PlaceError(Exception):
    """A failure, and the output of the failed program."""


@dataclasses.dataclass(frozen=True)
class Driver:
    """The places of the driver's libraries on this host."""

    folder: str
    paths: Mapping[str, str]
    #: The host's nvidia-smi; empty: there is none.
    smi: str
    #: Whether programs of the host find the driver without LD_LIBRARY_PATH.
    in_cache: bool

    def path_of(self, name: str) -> str:
        return self.paths[name]


@dataclasses.dataclass(frozen=True)
class Machine:
    """What all places share. `root`: a simulated driver's, empty for a real card. `devices`: a comma list of
    indexes or UUIDs."""

    prefix: str
    root: str
    python: str
    driver: Driver
    devices: str = "0"

    @property
    def is_simulated(self) -> bool:
        """True also for a simulated driver in a real one's place, as in a rehearsal of the whole."""
        return bool(self.root) or card.is_simulated()

    @property
    def smi(self) -> str:
        return self.driver.smi

    def query(self, fields: str) -> list[str]:
        """The answer of the host's nvidia-smi for each chosen device, a line each. PlaceError."""
        if not self.smi:
            raise PlaceError(f"no nvidia-smi beside {self.driver.folder} and none on PATH")
        words = [self.smi, "-i", self.devices, f"--query-gpu={fields}", "--format=csv,noheader"]
        done = subprocess.run(words, env=self.environ(), capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise PlaceError(
                f"nvidia-smi ends with {done.returncode}: {(done.stdout or done.stderr).strip()[:300]}"
            )
        return done.stdout.strip().split("\n")

    def memory(self) -> int:
        """Bytes of the smallest chosen device. PlaceError."""
        return min(int(line.split()[0]) for line in self.query("memory.total")) * card.MIB

    def environ(self) -> dict[str, str]:
        """The environment of a program on the host: the loader finds the driver, the shell its programs."""
        environ = dict(os.environ)
        if not self.driver.in_cache:
            environ["LD_LIBRARY_PATH"] = ":".join([*self.other_libraries(), self.driver.folder])
        if self.smi:
            environ["PATH"] = f"{environ.get('PATH', os.defpath)}:{os.path.dirname(self.smi)}"
        return environ

    def other_libraries(self) -> list[str]:
        """The folders of LD_LIBRARY_PATH without a driver in them."""
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
        help="a simulated driver's root; empty: the real driver",
    )
    parser.add_argument(
        "--python",
        default=environ.get("XPU_GPU_PYTHON", sys.executable),
        help="the interpreter that has PyTorch, JAX, CuPy",
    )
    parser.add_argument("--devices", default="0", help="comma list of GPU indexes (0)")


def machine(options: argparse.Namespace | None = None) -> Machine:
    """The machine by a parser's options (add_options), or by the environment. PlaceError: no driver."""
    if options is None:
        parser = argparse.ArgumentParser()
        add_options(parser)
        options = parser.parse_args([])
    prefix = os.path.realpath(options.prefix)
    root = options.root and os.path.realpath(options.root)
    return Machine(prefix, root, options.python, find_driver(root), options.devices)


def begin(options: argparse.Namespace, results: str | None = None) -> Machine:
    """The machine of a measuring program, whose results also go to the file `results`. Without a driver the
    program ends here, skipped. If the kernel driver runs and the rest is not found, it ends here, failed."""
    # Places must be closed: a run without time left sends this signal first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if results:
        os.environ["XPU_GPU_JSON"] = os.path.abspath(results)
    try:
        on = machine(options)
        for line in on.query("name,driver_version,memory.total"):
            card.report("card", line)
        os.environ[card.SEEN_VARIABLE] = "1"
    except PlaceError as error:
        if os.path.exists("/proc/driver/nvidia/version"):
            card.not_measured(str(error))
            card.end()
        card.skip(f"no NVIDIA driver runs on this machine (no /proc/driver/nvidia/version): {error}")
    return on


def find_driver(root: str) -> Driver:
    """Finds the driver as the product does, also by the caller's LD_LIBRARY_PATH. PlaceError."""
    paths.take_caller_library_path()
    found = driver_files.find(root or "/")
    libraries = {name: found.path_of(name) for name in LIBRARIES}
    if not found.folder:
        raise PlaceError(found.missing)
    missing = [name for name, path in libraries.items() if path is None]
    if missing:
        raise PlaceError(f"no {', no '.join(missing)} beside {found.folder}/{LIBRARIES[1]}")
    smi = found.program("nvidia-smi") or shutil.which("nvidia-smi") or ""
    whole = {name: path for name, path in libraries.items() if path}
    return Driver(found.folder, whole, smi, found.in_cache and found.root == "/")


def bytes_of(amount: str) -> int:
    """4G, 512M."""
    return int(float(amount[:-1]) * UNITS[amount[-1].upper()])
