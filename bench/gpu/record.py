"""What a measuring program says: `name: value`, `ok: …`, `FAILED: …`, `skipped: …`, as soon as it is known.

With --json FILE each is a line of JSON there as well, on the disk before the next is measured. The C programs
beside this are taken from --programs FOLDER (XPU_GPU_PROGRAMS), and built where they are not in it: a machine
with a card may have no compiler. Once a card was seen, `skipped` is for a missing tool alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from host import Machine, PlaceError, machine

SKIPPED = 77
REPOSITORY = Path(__file__).resolve().parents[2]
#: Where programs are built, which containers see too.
BUILD = REPOSITORY / "build" / "gpu"
_STRICT = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


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

    def skip(self, why: str) -> NoReturn:
        self._line("skipped", why, why)
        sys.exit(1 if self._failed else SKIPPED)

    def built(self, name: str, sources: Sequence[Path]) -> str:
        """The path of a C program; it is skipped where it is not there and cannot be built."""
        found = Path(self._programs, name)
        if self._programs and found.exists():
            return str(found)
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            self.skip(f"no compiler, and {name} is not in --programs")
        BUILD.mkdir(parents=True, exist_ok=True)
        # Under a name of its own first: another program may be running the one that is there.
        new = BUILD / f"{name}.{os.getpid()}"
        words = [
            compiler,
            *_STRICT,
            f"-I{REPOSITORY}/native/headers",
            "-o",
            str(new),
            *map(str, sources),
            "-ldl",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise PlaceError(f"{name} cannot be built: {done.stderr.strip()}")
        new.rename(BUILD / name)
        return str(BUILD / name)

    def _line(self, name: str, value: object, text: str, **numbers: object) -> None:
        print(f"{name}: {text}", flush=True)
        if self._json:
            line = {"program": self._program, "name": name, "value": value, "at": round(time.time(), 3)}
            with open(self._json, "a") as file:
                file.write(json.dumps({**line, **numbers}) + "\n")
                file.flush()
                os.fsync(file.fileno())
