"""The three runs on a lent machine (bench/gpu/lease), on a simulated card: their set-up and their results.

The measured numbers are not judged: a simulated card's figures say nothing about a real one's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import isolation
import kit as kits
import pytest
import runs

from support import REPOSITORY, simulation
from support.simulation import Up

from .lent_machine import OUT, TREE, LentMachine, make_driver
from .stepped import unpacked

pytestmark = pytest.mark.timeout(900)
#: The limits of a run's visible output, and of the files that are brought back.
MOST_PRINTED, MOST_FILES, MOST_BYTES = 12_000, 8, 16 << 20
SET_UP = ("facts", "set-up")
#: With a virtual environment with PyTorch the whole runs are tried. They take half an hour.
BY_HAND = "XPU_LEASE_PYTHON" in os.environ
#: The card's contexts take memory, as a real card's do.
CARD = {"model": os.environ.get("XPU_LEASE_CARD", "T4"), "context_mib": 518 if BY_HAND else 300}
#: Steps that judge times. On two busy processors they may pass or fail.
TIMED = ("launches", "caps", "mps")
#: The lines of each step, beyond checks that held.
SAYS = {
    "used memory": (
        r"1 GiB by cuMemAlloc, MiB: card \+1324, account \+1324, difference \+0",
        r"two processes, 1 GiB each, MiB: card \+2648, account \+2648, difference \+0",
        r"nothing after exit, MiB: card \+0, account \+0, difference \+0",
        r"ok: past the limit, nvidia-smi: nvidia-smi shows 4096 MiB of 4096",
        r"skipped: PyTorch, cuBLAS, cuDNN: no PyTorch in ",
    ),
    "answers": (r"ok: copies, bytes: exact, the same bits", r"skipped: sort: no PyTorch in "),
    "launches": (
        r"(ok|FAILED): launch, cap 50: [+-]\d+ ns",
        r"pair of 1 MiB, bounds: not checked",
        r"ns after round 1 of 1: launch native \d+, no cap \d+",
    ),
    "caps": (r"(ok|FAILED): spin without a cap", r"xpu set took"),
    "isolation": (
        r"illegal access, its program: errors CUDA_ERROR_ILLEGAL_ADDRESS",
        *(rf"(?s)(ok: {name}: .*){{3}}" for name in isolation.WRONG),
    ),
    "mps": (
        *(f"ok: {where}: kernels run" for where in ("host before", "MPS at 30", "MPS at 60")),
        r"ok: host afterwards: kernels run",
        r"ok: the MPS daemon ends with the last container",
    ),
    "boundary": (r"skipped: no NVIDIA kernel driver behind /dev/nvidiactl",),
}


@pytest.fixture
def lent(up: Up, tmp_path: Path, kit: Path) -> Iterator[Callable[..., LentMachine]]:
    """Machines that are closed when the test ends. The arguments are LentMachine's."""
    made: list[LentMachine] = []
    # PyTorch takes only a driver that says that it is NVIDIA's (sim/README.md).
    native = {"native": str(simulation.build("sim-cudart", "CUDART=1"))} if BY_HAND else {}
    state = up({"driver": "R580", "gpus": [CARD]}, **native)

    def make(with_kit: bool = True, **how: Any) -> LentMachine:
        driver = make_driver(state, tmp_path / f"nvidia-{len(made)}")
        made.append(LentMachine(state, driver, kit if with_kit else None, **how))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


class Left:
    """The files and the output of a run."""

    def __init__(self, machine: LentMachine, run: int, printed: str) -> None:
        self.folder = folder = machine.path(OUT) / str(run)
        assert len(printed) < MOST_PRINTED
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) <= MOST_FILES and all(path.stat().st_size < MOST_BYTES for path in files)
        self.printed, self.log = printed, unpacked((folder / "log.gz").read_bytes()).decode(errors="replace")
        self.summary = (folder / "summary.md").read_text() if (folder / "summary.md").exists() else ""
        # A kill may come between a line and its end.
        lines = (folder / "results.jsonl").read_text().rpartition("\n")[0].splitlines()
        self.results: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def outcomes(self) -> dict[str, str]:
        return {each["step"]: each["word"] for each in self.results if each["kind"] == "step"}

    def said(self, step: str) -> dict[str, str]:
        """The values of a step."""
        values = [each for each in self.results if (each["step"], each["kind"]) == (step, "value")]
        return {each["name"]: each["value"] for each in values}

    def output(self, step: str) -> str:
        """The output of a step."""
        _, _, rest = self.log.partition(f"===== {step},")
        return rest.partition("\n===== ")[0]

    def measured(self) -> dict[str, dict[str, Any]]:
        """The measurements by name."""
        lines = (self.folder / "measured.jsonl").read_text().splitlines()
        return {each["name"]: each for each in map(json.loads, lines)}

    def held(self, step: str) -> int:
        return sum((each["step"], each["kind"]) == (step, "ok") for each in self.results)

    def failures(self) -> str:
        return "\n".join(each["text"] for each in self.results if each["kind"] == "FAILED")


def run(machine: LentMachine, number: int, *words: str) -> Left:
    return Left(machine, number, machine.lease(number, "--small", *words).stdout)


def names(number: int) -> list[str]:
    return [*SET_UP, *(step.name for step in runs.RUNS[number] if step.brief or BY_HAND)]


def assert_held(left: Left, but: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """Checks that each step was ok, or had the outcome in `but`."""
    allowed = but or {}
    wrong = {step: word for step, word in left.outcomes().items() if word not in allowed.get(step, ("ok",))}
    assert not wrong, f"{left.failures()}\n{left.log}"


def assert_measured(found: Mapping[str, dict[str, Any]]) -> None:
    """Checks the costs of launches in each place, and a load on the host and under a cap that changes."""
    places = {"native", "no cap", "cap 100", "cap 50"}
    assert all(set(found[name]["ns"]) == places for name in ("launch", "graph launch", "start"))
    ((low, high, got, mean, worst),) = found["spin at 30"]["outcomes"]
    assert low == high == pytest.approx(30) and got > 0 and worst >= mean >= 0
    # One point runs all the time, the others in bursts: a unit takes the same time.
    points = found["spin on the host"]["points"]
    assert len(points) == 4
    assert all(clock > 0 and 0.0003 < taken < 0.002 for clock, taken in points)


def test_the_three_runs_complete_and_leave_nothing_on_the_machine(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent()
    # The nodes of a simulated card have no kernel driver.
    but = {**dict.fromkeys(TIMED, ("ok", "FAILED")), "boundary": ("skipped",)}
    missing: list[tuple[str, str, str]] = []
    for number in runs.RUNS:
        left = run(machine, number)
        assert list(left.outcomes()) == names(number)
        assert_held(left, but)
        assert left.said("facts")["in the loader's cache"].count("/usr/local/nvidia/lib64/libcuda.so") == 2
        for step in names(number):
            assert step in ("facts", "doctor", "devices", "share", "boundary") or left.held(step), left.log
            assert f"===== {step}," in left.log and f"| {step} |" in left.summary
            output = left.output(step)
            missing += [(step, each, output) for each in SAYS.get(step, ()) if not re.search(each, output)]
        assert machine.programs() == []
        mounts = machine.path("/proc/1/mountinfo").read_text().splitlines()
        assert [line for line in mounts if "xpu-" in line.split()[4]] == []
        if number == 2:
            assert_measured(left.measured())
        if number == 1:
            assert left.said("set-up")["built here"] == "from the kit's sources"
        else:
            assert "set up by an earlier run" in left.log
    assert not missing


def test_without_a_compiler_cgroups_and_the_loaders_cache_all_comes_from_the_kit(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent(compiler=False, cached=False, cgroups="none")
    left = run(machine, 1, "--only", "doctor", "--only", "devices", "--only", "containers")
    assert_held(left)
    assert left.said("set-up")["not built here"] == "no make, cc"
    assert "mount -t cgroup2 none /sys/fs/cgroup" in left.log
    assert left.said("facts")["in the loader's cache"].startswith("no libcuda.so")
    left = run(machine, 3, "--only", "share", "--only", "look-ups")
    assert_held(left)
    assert (machine.path(OUT) / "3/share/results.json").exists()


def test_containers_start_on_a_machine_with_cgroup_v2_alone(lent: Callable[..., LentMachine]) -> None:
    left = run(lent(compiler=False, cgroups="v2"), 1, "--only", "containers")
    assert_held(left)
    assert left.said("set-up")["cgroups"].startswith("v2 at /sys/fs/cgroup")


def test_a_run_that_is_killed_leaves_its_results_and_nothing_for_the_next(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent()
    results, only = f"{OUT}/1/results.jsonl", dict.fromkeys(SET_UP, "devices")
    for step in ("facts", "set-up", "containers", "cases"):
        # The kill comes when that step has printed something. The last step may end the run itself.
        script = (
            f"rm -rf {OUT}; bench/gpu/lease 1 --small --only {only.get(step, step)} & "
            f"""until grep -q '"step": "{step}"' {results} 2> /dev/null; do sleep 0.05; done; """
            "kill -9 $!; wait"
        )
        left = Left(machine, 1, machine.run("sh", "-c", script).stdout)
        assert f"===== {step}," in left.log and left.said("facts")["kernel"]
        steps = [*SET_UP, step]
        before = steps[: steps.index(step)]
        assert list(left.outcomes()) in (before, [*before, step])  # it may just have ended
        assert all(f"| {each} | {word} |" in left.summary for each, word in left.outcomes().items())
    left = run(machine, 1, "--only", "containers")
    assert_held(left)
    assert machine.programs() == []


def test_a_run_whose_steps_all_fail_prints_little_and_leaves_few_files(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent(with_kit=False, compiler=False, cgroups="none")
    for number in runs.RUNS:
        left = run(machine, number)
        assert list(left.outcomes()) == names(number)
        # Anything that is missing in every form, such as a program that is not built, is a missing tool.
        assert set(list(left.outcomes().values())[1:]) <= {"FAILED", "skipped"}
        assert f"FAILED set-up: no kit in {TREE}/build/lease" in left.printed
        for step, word in left.outcomes().items():
            assert word != "FAILED" or f"FAILED {step}: " in left.printed
        assert left.printed.splitlines()[-1].startswith(f"run {number} (small): ")


def test_a_packed_tree_of_other_sources_is_taken_only_on_request(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent(compiler=False)
    changed = machine.path(TREE) / "src/xpu_runtime/version.py"
    changed.write_text(changed.read_text() + "\n")
    left = run(machine, 1, "--only", "devices")
    assert left.outcomes() == {"facts": "ok", "set-up": "FAILED", "devices": "FAILED"}
    assert "such as src/xpu_runtime/version.py: run `make lease` again" in left.failures()
    assert_held(run(machine, 1, "--only", "devices", "--any-kit"))


def test_without_a_driver_a_run_ends_after_its_set_up_which_names_read_only_folders(
    lent: Callable[..., LentMachine],
) -> None:
    unwritable = f"mkdir -p {kits.PLACE}; mount -t tmpfs -o ro none {kits.PLACE}"
    machine = lent(compiler=False, card=False, changed=unwritable)
    done = machine.lease(1, "--small")
    left = Left(machine, 1, done.stdout)
    assert left.outcomes() == {"facts": "ok", "set-up": "FAILED"} and done.returncode == 1
    assert f"{kits.PLACE} and" in done.stdout and "must be writable" in done.stdout
    assert "no NVIDIA driver found on this machine: nothing to measure" in done.stdout


#: The driver in a folder that every user may write to, and in one that the product does not know.
_WRITABLE = """
umount /usr/local/nvidia && mkdir -p /usr/local/nvidia/lib64
cp -a /run/driver/lib64/. /usr/local/nvidia/lib64
chmod 777 /usr/local/nvidia/lib64
"""
_UNKNOWN = """
umount /usr/local/nvidia && mkdir -p /usr/local/nvidia/lib/x86_64-linux-gnu
cp -a /run/driver/lib64/. /usr/local/nvidia/lib/x86_64-linux-gnu
"""


@pytest.mark.parametrize(
    ("changed", "how"),
    [(_WRITABLE, "is copied to /opt/nvidia/lib64"), (_UNKNOWN, "ldconfig")],
    ids=["writable by all", "in no known place"],
)
def test_a_driver_in_a_place_that_the_product_rejects_is_made_known_to_it(
    lent: Callable[..., LentMachine], changed: str, how: str
) -> None:
    kept = "mkdir -p /run/driver && cp -a /usr/local/nvidia/. /run/driver\n"
    left = run(lent(compiler=False, cached=False, changed=kept + changed), 1, "--only", "devices")
    assert_held(left)
    assert how in left.log


@pytest.mark.skipif(not BY_HAND, reason="by hand: XPU_LEASE_PYTHON=FOLDER names an environment with PyTorch")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", runs.RUNS)
def test_the_whole_of_a_run_by_hand(lent: Callable[..., LentMachine], tmp_path: Path, number: int) -> None:
    machine = lent()
    left = Left(machine, number, machine.lease(number).stdout)
    kept = REPOSITORY / "build" / "lent-by-hand" / str(number)
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(machine.path(OUT) / str(number), kept)
    print(left.printed)
    assert list(left.outcomes()) == names(number)
    assert machine.programs() == []
