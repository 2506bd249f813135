"""Programs of cuda_program.py in sandboxes, for tests of the CUDA interposer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support import MIB
from support.simulation import Process

from .sandboxes import FOLDER, Sandbox

#: CUresult.
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT = 0, 1, 2, 3, 201
NOT_FOUND, CONTEXT_IS_DESTROYED, NOT_PERMITTED = 500, 709, 800

REAL_CUDA = f"{FOLDER}/libcuda.real"
WAYS = ("symbol", "lookup")

#: A card whose contexts take 300 MiB.
HEAVY: dict[str, Any] = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": 300}]}
CONTEXT = 300 * MIB
#: A driver that does not know the container's processes by their pids.
BLIND: dict[str, Any] = {
    "driver": "R580",
    "gpus": [
        {
            "model": "T4",
            "context_mib": 300,
            "fail": {
                f"nvmlDeviceGetComputeRunningProcesses_{version}": "NVML_ERROR_NOT_SUPPORTED"
                for version in ("v2", "v3")
            },
        }
    ],
}


class Program(Process):
    """A process in a sandbox; see cuda_program.py. `within` is a command that starts it."""

    def __init__(
        self,
        sandbox: Sandbox,
        way: str = "symbol",
        setup: str = "",
        within: Sequence[str] = (),
        **environ: str,
    ) -> None:
        self.sandbox = sandbox
        script = str(Path(__file__).with_name("cuda_program.py"))
        # pytest's own stderr is a readable file, and the interposer takes no readable file for a stderr.
        appended = "exec 2>>/proc/self/fd/2\n" + setup
        command = sandbox.command([*within, sys.executable, script, way], appended)
        super().__init__(command, {**sandbox.environ(REAL_CUDA=REAL_CUDA), **environ}, None)


Start = Callable[..., Program]


def exported(library: str | os.PathLike[str]) -> set[str]:
    """CUDA's functions that a library exports."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    )
    names = {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}
    return {name for name in names if name.startswith("cu")}


def kinds(sandbox: Sandbox, device: int = 0) -> dict[str, int]:
    """The account's bytes by kind, of all processes together."""
    found: dict[str, int] = {}
    for one in sandbox.usage(device + 1):
        if one.device == device:
            for kind, size in one.kinds.items():
                found[kind] = found.get(kind, 0) + size
    return found
