"""Sandboxes of the tests: a simulated card, the interposers built for tests, and programs that see one slice.

A sandbox (packaging/sandbox.py) shows a program what a container with a slice shows it, without an engine.
Programs in one sandbox share its account. tests/integration has the same in real containers.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sandbox as sandboxes
from xpu_runtime.limits import pages, usage_page

MACHINE = platform.machine()
#: The folder where test builds of the interposers look for the pages and the real libraries.
ROOT, FOLDER, LIBRARIES = sandboxes.ROOT, sandboxes.FOLDER, sandboxes.LIBRARIES

#: The sanitizers' runtimes.
RUNTIMES = {"address,undefined": "asan", "thread": "tsan"}
#: The fence that the sanitizers of gcc 12 need at a fork, a part of a program.
FORK_FENCE = Path(__file__).with_name("fork_fence.c")


def build(kind: str = "") -> Path:
    """Builds the interposers for sandboxes; `kind`: sanitizers, such as "address,undefined"."""
    return Path(sandboxes.build(kind))


class Sandbox:
    """Runs programs that see one slice."""

    def __init__(self, folder: Path, root: str, interposers: Path) -> None:
        self.pages = folder
        self.driver_root = root
        self.interposers = interposers

    @property
    def driver(self) -> Path:
        """The folder of the driver's own libraries."""
        (found,) = Path(self.driver_root).glob("usr/lib/*-linux-gnu")
        return found

    def command(self, arguments: list[str], setup: str = "") -> list[str]:
        """The command that runs `arguments` in the sandbox; `setup`: shell that runs before it."""
        return sandboxes.command(
            arguments,
            pages=str(self.pages),
            real=str(self.driver),
            interposers=str(self.interposers),
            simulation=self.driver_root,
            setup=setup,
        )

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of a program in the sandbox: the loader finds the interposers as in a container."""
        return sandboxes.environ(more)

    def start(
        self, arguments: list[str], *, setup: str = "", env: dict[str, str] | None = None, **options: Any
    ) -> Any:
        """A Popen of the program in the sandbox."""
        return subprocess.Popen(self.command(arguments, setup), env=self.environ(**(env or {})), **options)

    def run(
        self,
        arguments: list[str],
        *,
        setup: str = "",
        env: dict[str, str] | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """The finished program, with its output as text."""
        return subprocess.run(
            self.command(arguments, setup),
            env=self.environ(**(env or {})),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def python(self, script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a Python script; ctypes.CDLL("libcuda.so.1") in it is the interposer."""
        return self.run([sys.executable, "-c", script, *arguments], **options)

    def set_limit(self, limit: int | None, device: int = 0) -> None:
        """Changes the page as `xpu set` does."""
        with pages.OpenQuota(str(self.pages)) as page:
            page.set_limit(device, limit)

    def usage(self, devices: int = 1) -> list[usage_page.ProcessUsage]:
        return [each for each in usage_page.slots(str(self.pages), devices) if not each.dead]

    def total(self, device: int = 0) -> int:
        """The account's total in bytes, from the page."""
        page = (self.pages / pages.USAGE).read_bytes()
        at = 1024 + 64 * device
        return (int.from_bytes(page[at : at + 8], "little") >> 31) * 512


#: `make(4 * GIB)` is a new sandbox with that limit: the fixture `sandbox`.
Make = Callable[..., Sandbox]


def uuids(root: str, kind: str = "") -> list[str]:
    """The UUIDs of the cards below a driver root, by its nvidia-smi; `kind`: the driver's sanitizers."""
    (smi,) = Path(root).glob("usr/bin/nvidia-smi")
    (libraries,) = Path(root).glob("usr/lib/*-linux-gnu")
    environ = dict(os.environ)
    if kind:
        environ.update({"LD_PRELOAD": runtime_of(kind), "ASAN_OPTIONS": "detect_leaks=0"})
        environ["LD_LIBRARY_PATH"] = str(
            libraries
        )  # a sanitizer's dlopen ignores the program's own search path
    command = [str(smi), "--query-gpu=uuid", "--format=csv,noheader"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    return listed.stdout.split()


def compile_c(source: Path, out: Path, *options: str | Path) -> Path:
    """Compiles a test program with the machine's compiler."""
    compiler = shutil.which("gcc") or "cc"
    flags = ["-std=c11", "-O2", "-g", "-Wall", "-Werror", "-pthread"]
    subprocess.run([compiler, *flags, "-o", out, source, *options], check=True)
    return out


def runtime_of(kind: str) -> str:
    """The sanitizer's runtime, which must be loaded before all other libraries."""
    name = f"lib{RUNTIMES[kind]}.so"
    found = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()
