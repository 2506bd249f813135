"""The exported names of each branch of the driver, by the lists in sim/exports."""

from __future__ import annotations

import subprocess
from pathlib import Path

LISTS = Path(__file__).resolve().parents[2] / "sim" / "exports"
LIBRARIES = ("libcuda", "libnvidia-ml")


def listed(library: str) -> dict[str, set[str]]:
    """Branch → every name that its library exports."""
    branches: dict[str, set[str]] = {}
    names: set[str] = set()
    for line in (LISTS / f"{library}.txt").read_text().splitlines():
        if line.startswith("["):
            names = branches[line.strip("[]")] = set(names)
        elif line.startswith("-"):
            names.remove(line[1:])
        elif line and not line.startswith("#"):
            names.add(line.split()[0])
    return branches


def exported(library: Path) -> set[str]:
    """The names that a library exports, functions and variables."""
    printed = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    return {line.split()[-1] for line in printed.splitlines()}
