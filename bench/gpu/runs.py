"""The three runs on a machine with a card that is lent for minutes: which steps, in which order, how long.

What is worth most to users comes first, and what may leave a card unusable last: MPS last but one, then the
boundary to the kernel driver. A step says which answer would be a fault of ours. None changes a setting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
#: Seconds of a whole run; whoever lends a machine ends a run after ten minutes.
WHOLE_S = 540.0


@dataclass(frozen=True)
class Machine:
    """What equip.py made of a machine: where the product is, the interpreter that measures, where results go.
    `small`: for a simulated card, in short and without torch."""

    prefix: str
    python: str
    results: Path
    small: bool = False

    def program(self, name: str, *words: str) -> list[str]:
        """A measuring program of this folder."""
        return [self.python, str(HERE / name), "--json", str(self.results / "measured.jsonl"), *words]


@dataclass(frozen=True)
class Step:
    """A step that measures, or with `measures` False one whose output is only kept. `small_s`: its seconds
    where the machine is `small`; None: it is left out there."""

    name: str
    seconds: float
    words: Callable[[Machine], list[str]]
    fault: str
    small_s: float | None = 30.0
    measures: bool = True


def _program(name: str, *words: str) -> Callable[[Machine], list[str]]:
    return lambda machine: machine.program(name, *words)


def _share(machine: Machine) -> list[str]:
    """The harness of bench/share on the real card, with spin kernels."""
    more = ["--only", "at 30 %", "--seconds", "1"] if machine.small else ["--within", "210"]
    results = ["--results", str(machine.results / "share.jsonl")]
    return [machine.python, "-m", "share", machine.prefix, "--real", "--quick", *more, *results]


def _xpu(*words: str) -> Callable[[Machine], list[str]]:
    return lambda machine: [f"{machine.prefix}/bin/xpu", *words]


NODE = (
    Step("doctor", 40, _xpu("doctor"), "a problem that is none, or a cure that is no cure", measures=False),
    Step(
        "devices",
        30,
        _xpu("devices"),
        "not the card, its memory or its driver as nvidia-smi says",
        measures=False,
    ),
)

RUNS: dict[int, tuple[Step, ...]] = {
    1: (
        *NODE,
        Step(
            "containers",
            120,
            _program("containers.py"),
            "a container does not start, sees another size than its slice, or gets 5 GiB of 4",
            small_s=60,
        ),
        Step(
            "used memory",
            90,
            _program("used_memory.py"),
            "the card loses memory that no account has, or an account has memory that the card has not lost",
        ),
        Step(
            "answers", 150, _program("answers.py"), "a result in the slice differs from the one beside it", 30
        ),
        Step(
            "cases",
            150,
            _program("run", "--place", "container"),
            "a case fails in the slice that holds outside, or a limit is passed",
            small_s=60,
        ),
    ),
    2: (
        *NODE,
        Step(
            "launches",
            140,
            _program("launches.py"),
            "a launch at no cap costs more than outside, beyond 1 us",
        ),
        Step(
            "caps",
            330,
            _program("caps.py"),
            "a real kernel's share is off its cap by more than 5 points, or throughput is lost at no cap",
        ),
    ),
    3: (
        *NODE,
        Step(
            "reported",
            60,
            _program("reported.py"),
            "pids or memory that the driver reports are taken for another's",
        ),
        Step("share", 240, _share, "shares of spin kernels are off by more than on the simulated card"),
        Step(
            "look-ups",
            60,
            _program("run", "--place", "sandbox", "--only", "look-ups", "--only", "overhead"),
            "a look-up gives what this driver would not, or a call costs more than said",
        ),
        Step(
            "mps", 60, _program("mps.py"), "a slice under MPS has more than its part, or MPS is left running"
        ),
        Step(
            "boundary",
            90,
            _program("boundary/run"),
            "a program in a slice reaches what its devices do not allow",
        ),
    ),
}
