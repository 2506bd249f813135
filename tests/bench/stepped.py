"""Runs of bench/gpu/lent/steps.py with a test's own steps. Each step is a program, as in bench/gpu/lease."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.sharing_time import until

from .scripts import SCRIPTS

_PROGRAM = """
import json, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
import steps

run = steps.Steps("a run", Path({out!r}), {seconds}, {count})
steps.end_earlier_runs()
for name, seconds, words, *how in json.loads({given!r}):
    run.step(name, seconds, words, "a fault", **{{"measures": True, **(how[0] if how else {{}})}})
sys.exit(run.finish())
"""
Step = tuple[Any, ...]


def shell(name: str, script: str, seconds: float = 20, **how: Any) -> Step:
    """`how`: further arguments of Steps.step."""
    return name, seconds, ["sh", "-c", script], how


def python(name: str, script: str, seconds: float = 20) -> Step:
    return name, seconds, [sys.executable, "-c", script]


class Run:
    """A run of these steps, which writes into `out`."""

    def __init__(self, out: Path, steps: Sequence[Step], seconds: float = 100) -> None:
        self.out, self.printed = out, out.with_name("printed")
        program = self.program(out, steps, seconds)
        with self.printed.open("wb") as output:
            self.popen = subprocess.Popen([sys.executable, "-c", program], stdout=output, stderr=output)

    @staticmethod
    def program(out: Path, steps: Sequence[Step], seconds: float = 100) -> str:
        given = json.dumps(steps)
        return _PROGRAM.format(
            scripts=str(SCRIPTS / "lent"), out=str(out), seconds=seconds, count=len(steps), given=given
        )

    def text(self) -> str:
        return self.printed.read_text()

    def results(self, **like: object) -> list[dict[str, Any]]:
        """The lines with these values. Every line must be whole."""
        lines = [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]
        return [line for line in lines if like.items() <= line.items()]

    def outcomes(self) -> dict[str, str]:
        return {line["step"]: line["word"] for line in self.results(kind="step")}

    def wait_for(self, name: str) -> None:
        """Waits until a step has said the value of that name."""
        until(lambda: (self.out / "results.jsonl").exists() and self.results(name=name) != [], name, 30)

    def log(self) -> bytes:
        return unpacked((self.out / "log.gz").read_bytes())


def unpacked(log: bytes) -> bytes:
    """The log as zcat shows it: all members, and the readable part of one that was cut off."""
    text = b""
    while log:
        member = zlib.decompressobj(31)
        text += member.decompress(log)
        log = member.unused_data
    return text


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
