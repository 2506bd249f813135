"""The begin and the end of a measuring program, and the C programs that it runs.

Lines and their JSON are card.py's. C programs are taken from --programs FOLDER (XPU_GPU_PROGRAMS) or built;
or they are already in their build folder, because a machine with a card may have no compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import card
import host
from host import Machine, PlaceError

SKIPPED = card.SKIPPED
REPOSITORY = Path(__file__).resolve().parents[2]
#: The build folder. Programs that were built elsewhere are put here too.
BUILD = REPOSITORY / "build" / "bench"


def add_options(parser: argparse.ArgumentParser) -> None:
    host.add_options(parser)
    parser.add_argument("--json", metavar="FILE", help="a line of JSON for each result as it comes")
    parser.add_argument(
        "--programs",
        metavar="FOLDER",
        default=os.environ.get("XPU_GPU_PROGRAMS", ""),
        help="the folder with built C programs (without it they are built)",
    )
    parser.add_argument(
        "--small",
        action="store_true",
        default=bool(os.environ.get("XPU_GPU_SMALL")),
        help="a short form without a framework, for a simulated card",
    )


class Record:
    """The results of one program: a context manager, at whose end the program ends with its status."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    def __enter__(self) -> Record:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (PlaceError, subprocess.SubprocessError, OSError)):
            card.not_measured(" ".join(str(error).split())[:400])
        elif error is not None:
            return  # a fault of this program, or its exit: it must show
        card.end()

    def machine(self) -> Machine:
        """The machine. Without a driver the program ends."""
        return host.begin(self._options, self._options.json)

    def value(self, name: str, value: object, **numbers: object) -> None:
        """A name has no colon, and begins with a letter; `numbers` go only to the file."""
        card.report(name, value, **numbers)

    def check(self, holds: bool, what: str) -> bool:
        return card.check(holds, what)

    def skip(self, why: str) -> NoReturn:
        card.skip(why)

    def relay(self, where: str, text: str) -> None:
        """Prints another program's lines as its own, each with `where`."""
        for line in text.splitlines():
            name, found, rest = line.partition(": ")
            if name in ("ok", "FAILED"):
                self.check(name == "ok", f"{where}: {rest}")
            elif found and name != "xpu":  # our library's line on stderr about refused memory
                self.value(f"{where}, {name}", rest)

    def built(self, name: str, folder: Path) -> str:
        """The path of a C program, which the Makefile in `folder` builds. Skips if that fails."""
        given = Path(self._options.programs, name)
        if self._options.programs and given.exists():
            return str(given)
        if shutil.which("make") and shutil.which("cc"):
            BUILD.mkdir(parents=True, exist_ok=True)
            # One build at a time: another run would execute a program that is half written.
            words = ["flock", f"{BUILD}/{name}.lock", "make", "-s", "-C", str(folder), f"OUT={BUILD}"]
            done = subprocess.run([*words, f"{BUILD}/{name}"], capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise PlaceError(f"{name} cannot be built: {(done.stdout + done.stderr).strip()}")
        if not (BUILD / name).exists():
            self.skip(f"{name} is not in {BUILD}, and there is no make or compiler to build it")
        return str(BUILD / name)
