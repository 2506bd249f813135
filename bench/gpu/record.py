"""What a measuring program says: `name: value`, `ok: …`, `FAILED: …`, `skipped: …`, as soon as it is known.

With --json FILE each is a line of JSON there as well, on the disk before the next is measured. C programs are
taken from --programs FOLDER (XPU_GPU_PROGRAMS), or built, or were laid where they are built: a machine with a
card may have no compiler. Once a card was seen, `skipped` is for a missing tool alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from host import Machine, PlaceError, machine

SKIPPED = 77
REPOSITORY = Path(__file__).resolve().parents[2]
#: Where programs are built, and are laid by whoever brings them built.
BUILD = REPOSITORY / "build" / "bench"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        metavar="FILE",
        default=os.environ.get("XPU_GPU_JSON", ""),
        help="each result is added to it as a line of JSON",
    )
    parser.add_argument(
        "--programs",
        metavar="FOLDER",
        default=os.environ.get("XPU_GPU_PROGRAMS", ""),
        help="where the C programs are, built already (else they are built)",
    )
    parser.add_argument(
        "--small",
        action="store_true",
        default=bool(os.environ.get("XPU_GPU_SMALL")),
        help="in short, without a framework: for a simulated card",
    )


class Record:
    """The lines of one program: a context manager, at whose end the program ends with its status."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._program = Path(sys.argv[0]).name
        self._json: str = options.json
        self._programs: str = options.programs
        self._failed = False
        # What is opened has to be closed: places remove containers.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def __enter__(self) -> Record:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (PlaceError, subprocess.SubprocessError, OSError)):
            self.check(False, " ".join(str(error).split())[:400])
        elif error is not None:
            return  # a fault of this program: let it be seen
        sys.exit(1 if self._failed else 0)

    def machine(self, options: argparse.Namespace) -> Machine:
        """The machine, or the end where it has no driver."""
        try:
            return machine(options)
        except PlaceError as error:
            self.skip(f"no driver: {error}")

    def value(self, name: str, value: object, **numbers: object) -> None:
        """A name has no colon, and begins with a letter; `numbers` are for the file alone."""
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        self._line(name, value, text, **numbers)

    def check(self, holds: bool, what: str) -> bool:
        word = "ok" if holds else "FAILED"
        self._failed = self._failed or not holds
        self._line(word, what, what)
        return holds

    def relay(self, where: str, text: str) -> None:
        """The lines of another program, as its own, each with `where`."""
        for line in text.splitlines():
            name, found, rest = line.partition(": ")
            if name in ("ok", "FAILED"):
                self.check(name == "ok", f"{where}: {rest}")
            elif found and name != "xpu":  # which says on stderr that memory was refused
                self.value(f"{where}, {name}", rest)

    def skip(self, why: str) -> NoReturn:
        self._line("skipped", why, why)
        sys.exit(1 if self._failed else SKIPPED)

    def built(self, name: str, folder: Path) -> str:
        """The path of a C program, which the Makefile in `folder` builds; skipped where that cannot be."""
        given = Path(self._programs, name)
        if self._programs and given.exists():
            return str(given)
        if shutil.which("make") and shutil.which("cc"):
            BUILD.mkdir(parents=True, exist_ok=True)
            # One at a time: another run would execute a program that is half written.
            words = ["flock", f"{BUILD}/{name}.lock", "make", "-s", "-C", str(folder), f"OUT={BUILD}"]
            done = subprocess.run([*words, f"{BUILD}/{name}"], capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise PlaceError(f"{name} cannot be built: {(done.stdout + done.stderr).strip()}")
        if not (BUILD / name).exists():
            self.skip(f"{name} is not in {BUILD}, and there is no make and compiler to build it")
        return str(BUILD / name)

    def _line(self, name: str, value: object, text: str, **numbers: object) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more; the file is written all the same
            print(f"{name}: {text}", flush=True)
        if self._json:
            line = {"program": self._program, "name": name, "value": value, "at": round(time.time(), 3)}
            with open(self._json, "a") as file:
                file.write(json.dumps({**line, **numbers}) + "\n")
                file.flush()
                os.fsync(file.fileno())
