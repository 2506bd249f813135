"""Calls between C files (account, interposers, simulator) go down: no circle, no call to a folder above.

Includes alone do not show it, as a declaration of an upper file's function may stand in a lower header.
"""

from __future__ import annotations

import subprocess
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support import REPOSITORY

pytestmark = pytest.mark.slow

NVIDIA = "native/interposer/nvidia"
#: The folders of each library and program, the lowest first.
PARTS = {
    "libcuda": (
        *("native/account", f"{NVIDIA}/client", f"{NVIDIA}/cuda/driver"),
        *(f"{NVIDIA}/cuda/memory", f"{NVIDIA}/cuda/pacing", f"{NVIDIA}/cuda/calls"),
    ),
    "libnvidia-ml": ("native/account", f"{NVIDIA}/client", f"{NVIDIA}/nvml"),
    "simulated libcuda": (
        *("sim/client", "sim/cuda/core", "sim/cuda/memory", "sim/cuda/code", "sim/cuda/graphs"),
        *("sim/cuda/streams", "sim/cuda"),
    ),
    "simulated libnvidia-ml": ("sim/client", "sim/nvml"),
    "xpu-sim-driver": ("sim/driver",),
    "nvidia-smi": ("sim/smi",),
    "nvidia-cuda-mps-control": ("sim/mps/control",),
}
INCLUDES = (f"-I{REPOSITORY}/native", f"-I{REPOSITORY}/{NVIDIA}")


@cache
def symbols(source: Path, folder: Path) -> tuple[set[str], set[str]]:
    """The symbols that a file defines for others, and those of others that it uses. Compiles it into the
    folder."""
    made = folder / f"{str(source.relative_to(REPOSITORY)).replace('/', '-')}.o"
    subprocess.run(["gcc", "-std=c11", "-O0", "-c", "-o", made, source, *INCLUDES], check=True, timeout=60)
    listed = subprocess.run(["nm", made], check=True, capture_output=True, text=True, timeout=60).stdout
    words = [line.split()[-2:] for line in listed.splitlines()]
    return {name for kind, name in words if kind in "TDBRC"}, {name for kind, name in words if kind == "U"}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.mark.parametrize("part", PARTS)
def test_files_call_only_those_below_them(part: str, objects: Path) -> None:
    folders = PARTS[part]
    rank = {REPOSITORY / folder: at for at, folder in enumerate(folders)}
    found = {
        source: symbols(source, objects)
        for folder in folders
        for source in sorted((REPOSITORY / folder).glob("*.c"))
    }
    home = {name: source for source, (defined, _) in found.items() for name in defined}
    calls = {
        source: {home[name] for name in used if name in home} - {source}
        for source, (_, used) in found.items()
    }
    upwards = [
        f"{source.relative_to(REPOSITORY)} calls {called.relative_to(REPOSITORY)}"
        for source in calls
        for called in calls[source]
        if rank[called.parent] > rank[source.parent]
    ]
    assert not upwards
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        pytest.fail("a circle: " + " → ".join(source.name for source in error.args[1]))
