"""NVIDIA's real CUDA runtime for tests: its libraries, and a program that uses them.

The libraries are packages of the `dev` extra: none of them is shipped, and no toolkit is needed. The
simulator's tests run the program on a card, those of the interposers in a slice of one.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from ..simulation import build

PROGRAM = Path(__file__).with_name("program.c")
#: The program's commands.
CHECKS = (
    *("devices", "linear", "shapes", "host", "too-much", "streams", "pools"),
    *("graph", "capture", "graph-too-much", "kernel", "reset"),
)

#: The package of each version, and the file in it that a program links with.
PACKAGES = {
    "11": ("nvidia-cuda-runtime-cu11", "libcudart.so.11.0"),
    "12": ("nvidia-cuda-runtime-cu12", "libcudart.so.12"),
    "12-static": ("nvidia-cuda-runtime-cu12", "libcudart_static.a"),
    "13": ("nvidia-cuda-runtime", "libcudart.so.13"),
    "13-static": ("nvidia-cuda-runtime", "libcudart_static.a"),
}


class Runtime(NamedTuple):
    """One build of the CUDA runtime: "11" or "13-static", and the file of its library."""

    name: str
    library: Path

    @property
    def major(self) -> int:
        """The major number of its CUDA version."""
        return int(self.name.split("-")[0])

    def compile(self, source: Path, program: Path) -> Path:
        """Builds a program from one C file; the program finds the runtime at its path here."""
        flags = ["-std=c11", "-g", "-Wall", "-Wextra", "-Werror"]
        if self.major == 12:  # the function's name in its header
            flags.append("-DcudaGetDeviceProperties=cudaGetDeviceProperties_v2")
        rest = (
            ["-ldl", "-lrt", "-lpthread"]
            if self.library.suffix == ".a"
            else [f"-Wl,-rpath,{self.library.parent}"]
        )
        subprocess.run(["cc", *flags, "-o", program, source, self.library, *rest], check=True, timeout=120)
        return program


def runtimes() -> list[Runtime]:
    """All runtimes for this kind of machine."""
    found = []
    for name, (package, library) in PACKAGES.items():
        if name == "11" and platform.machine() != "x86_64":
            continue  # there is no such package
        files = importlib.metadata.files(package) or []
        place = next(file.locate() for file in files if file.name == library)
        found.append(Runtime(name, Path(place)))
    return found


@pytest.fixture(scope="session")
def native_with_cudart() -> Path:
    """The simulator's compiled parts, with the functions that the runtime needs."""
    return build("sim-cudart", "CUDART=1")


@pytest.fixture(scope="session", params=runtimes(), ids=lambda runtime: runtime.name)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Each of the runtimes."""
    found: Runtime = request.param
    return found


@pytest.fixture(scope="session")
def runtime_program(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """program.c, built for the runtime."""
    return runtime.compile(PROGRAM, tmp_path_factory.mktemp("cudart") / "program")
