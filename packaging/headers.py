"""The functions that NVIDIA's headers declare, our tables of these functions, and the wheels that have the
headers.

The tests compare the tables with the wheels that pyproject.toml names; newer_headers.py lists the functions
that newer wheels add. Nothing of the wheels is shipped.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import tomli

REPOSITORY = Path(__file__).resolve().parents[1]
TABLES = {
    "nvidia-cuda-runtime": REPOSITORY / "native/interposer/nvidia/cuda/driver/functions.txt",
    "nvidia-nvml-dev": REPOSITORY / "native/interposer/nvidia/nvml/functions.txt",
}
#: The files of each wheel that declare the driver's functions.
FILES = {
    "nvidia-cuda-runtime": ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfilerTypedefs.h"),
    "nvidia-nvml-dev": ("nvml.h",),
}


def pinned() -> dict[str, str]:
    """The wheels with headers → the version that pyproject.toml names."""
    with open(REPOSITORY / "pyproject.toml", "rb") as file:
        names = tomli.load(file)["project"]["optional-dependencies"]["dev"]
    versions = dict(name.split("==") for name in names if "==" in name)
    return {wheel: versions[wheel] for wheel in TABLES}


def installed(wheel: str) -> Path:
    """The folder of a wheel's headers in this environment. LookupError if it is another version than
    pinned()."""
    found, wanted = importlib.metadata.version(wheel), pinned()[wheel]
    if found != wanted:
        raise LookupError(f"{wheel} is {found} here, and {wanted} in pyproject.toml: make build/venv again")
    files = importlib.metadata.files(wheel) or []
    (header,) = (file.locate() for file in files if file.name == FILES[wheel][0])
    return Path(header).parent


def text_of_installed(wheel: str) -> str:
    """The text of all files that declare functions, one after the other."""
    return "".join((installed(wheel) / name).read_text() for name in FILES[wheel])


def decided(table: Path) -> dict[str, list[str]]:
    """A table of functions: decision → names."""
    sections = re.split(r"(?m)^\[(\w+)\]$", re.sub(r"(?m)^#.*", "", table.read_text()))
    return {name: body.split() for name, body in zip(sections[1::2], sections[2::2])}


def name_of(symbol: str) -> str:
    """The CUDA function of which a symbol is a variant."""
    return re.sub(r"_v\d+$", "", re.sub(r"_pt(sz|ds)$", "", symbol))


def symbols(text: str) -> set[str]:
    """CUDA's functions as a header declares them, with the names that its macros give to newer ones."""
    macros = re.findall(r"#define\s+cu[A-Z]\w*\s+(?:__CUDA_API_PT[SD][ZS]\()?(cu[A-Z]\w*)", text)
    inline = re.findall(r"static inline CUresult (cu[A-Z]\w*)", text)
    return {*macros, *re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text)} - set(inline)


def functions(wheel: str, text: str) -> set[str]:
    """The functions that a wheel's headers declare, by the names in its table."""
    if wheel == "nvidia-cuda-runtime":
        return {name_of(symbol) for symbol in symbols(text)}
    return set(re.findall(r"DECLDIR\s+(nvml[A-Z]\w*)\s*\(", text))


def undecided(wheel: str, text: str) -> list[str]:
    """The functions that a wheel's headers declare and its table does not have."""
    table = {name for names in decided(TABLES[wheel]).values() for name in names}
    return sorted(functions(wheel, text) - table)
