"""The scripts of bench/gpu, as tests call them in their own process, and the lines that they print."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import places
from record import Record

from support import REPOSITORY

SCRIPTS = REPOSITORY / "bench/gpu"
#: It prints what it is told, and keeps no file.
RECORD = Record(SimpleNamespace(json="", programs=""))  # type: ignore[arg-type]


def failures(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("FAILED")]


def machine(root: str, prefix: object = REPOSITORY) -> places.Machine:
    """The simulated card's machine, with the product below `prefix`."""
    return places.Machine(str(prefix), root, sys.executable, places.find_driver(root))
