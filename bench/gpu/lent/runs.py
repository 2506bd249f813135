"""The three runs on a machine with a card that is lent for minutes: their steps, order and times.

The steps that users need most come first. Steps that may leave a card unusable come last: MPS, and then the
boundary to the kernel driver. Each step names the answer that would be a fault of ours. No step changes a
setting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import steps

HERE = Path(__file__).resolve().parents[1]
REPOSITORY = HERE.parents[1]
#: Seconds of a whole run. A lent machine's owner ends a run after ten minutes.
WHOLE_S = 540.0


@dataclass(frozen=True)
class Machine:
    """The machine as equip.py set it up: the product's installation, and the interpreter that measures.
    `results`: the folder of results. `small`: in short, and without PyTorch."""

    prefix: str
    python: str
    results: Path
    small: bool = False

    def program(self, name: str, *words: str) -> list[str]:
        """A measuring program of bench/gpu."""
        return [self.python, str(HERE / name), "--json", str(self.results / "measured.jsonl"), *words]


@dataclass(frozen=True)
class Step:
    """A step. `measures`: False if its output is only kept. `brief`: False if it is left out on a `small`
    machine. `grace`: seconds that it has to clean up. The last step of a run has all of its remaining
    time."""

    name: str
    seconds: float
    words: Callable[[Machine], list[str]]
    fault: str
    measures: bool = True
    brief: bool = True
    grace: float = steps.GRACE_S


def _xpu(*words: str) -> Callable[[Machine], list[str]]:
    return lambda machine: [f"{machine.prefix}/bin/xpu", *words]


def _program(name: str, *small: str) -> Callable[[Machine], list[str]]:
    """`small`: arguments for a small machine."""
    return lambda machine: machine.program(name, *(small if machine.small else ()))


#: A log for each case would be too many files to bring back. So the logs go to log.gz, marked as no results.
#: The shell ignores the SIGTERM of the timeout, and goes on.
_KEPT = """
trap : TERM
rm -rf "$1" && mkdir -p "$1" && cd "$1" && shift
"$@"
status=$?
for log in record-logs/*.log; do
    [ ! -e "$log" ] || sed "s|^|\\| ${log##*/}: |" "$log"
done
exit $status
"""


def _cases(place: str, *only: str) -> Callable[[Machine], list[str]]:
    """bench/gpu/run, whose rows are in summary.md and results.jsonl."""
    words = ["--place", place, *(word for name in only for word in ("--only", name))]

    def command(machine: Machine) -> list[str]:
        program = machine.program("run", *words, "--record", "record.md")
        return ["sh", "-c", _KEPT, "sh", f"{machine.prefix}/../cases", *program]

    return command


def _share(machine: Machine) -> list[str]:
    """The harness of bench/share on the real card, with spin kernels: the commonest faults first."""
    words = ["--only", "at 30 %", "--seconds", "1"] if machine.small else ["--within", "150"]
    return [*_harness(machine), "--quick", *words, "--out", str(machine.results / "share")]


def _mixes(machine: Machine) -> list[str]:
    """As many as there is time for. Each is reported as it ends. A second folder would be too many files."""
    # With the whole set the loads alone would take all of that time.
    words = ["--set", "beside", "--only", "30/70", "--seconds", "2", "--within", "110"]
    return [*_harness(machine), *words]


def _harness(machine: Machine) -> list[str]:
    folders = ":".join(str(REPOSITORY / name) for name in ("bench", "src", "packaging"))
    return ["env", f"PYTHONPATH={folders}", machine.python, "-m", "share", machine.prefix, "--real"]


NODE = (
    Step("doctor", 40, _xpu("doctor"), "it reports a problem that does not exist", measures=False),
    Step("devices", 30, _xpu("devices"), "not nvidia-smi's card, total - reserved, driver", measures=False),
)

RUNS: dict[int, tuple[Step, ...]] = {
    1: (
        *NODE,
        Step(
            "containers",
            120,
            _program("containers.py"),
            "it does not start, shows another size than the slice's, or grants 5 GiB of 4",
        ),
        Step(
            "used memory",
            90,
            _program("used_memory.py"),
            "the card's loss and the account differ",
        ),
        Step(
            "answers",
            150,
            _program("answers.py", "--mem", "2G"),
            "a result in the slice that differs from the host's",
        ),
        Step(
            "cases",
            150,
            _cases("container"),
            "a case fails only in the slice, or a limit is passed",
        ),
    ),
    2: (
        *NODE,
        Step(
            "launches",
            110,
            _program("launches.py"),
            "without a cap, a launch costs 1 us more than outside",
        ),
        Step(
            "caps",
            400,
            _program("caps.py"),
            "a share 3 points off its cap, 10 in 2 s, or 2 % of throughput lost without a cap",
        ),
    ),
    3: (
        *NODE,
        Step("reported", 70, _program("reported.py"), "memory or pids of one process taken for another's"),
        Step("share", 160, _share, "spin kernels' shares are worse than on the simulated card"),
        Step(
            "look-ups",
            60,
            _cases("sandbox", "look-ups", "overhead"),
            "a look-up gets another answer than the driver's, or a call costs more than documented",
        ),
        Step("mixes", 125, _mixes, "as for share", brief=False),
        Step(
            "isolation",
            60,
            _program("isolation.py"),
            "a fault in one container ends or spoils another's work, or memory stays",
        ),
        Step(
            "mps",
            150,
            _program("mps.py"),
            "a slice under MPS has more than its part, or MPS runs on",
            # An MPS server that is killed can leave a card unusable: the program tells it to quit.
            grace=30,
        ),
        Step(
            "boundary",
            100,
            _program("boundary/run"),
            "none: a failure says that this driver does not allow a limit at the kernel driver's boundary",
        ),
    ),
}
