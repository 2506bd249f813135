"""The three runs on a machine that is lent (bench/gpu/lease), on a simulated card: what is set up and left.

What is measured is not looked at: a simulated card's figures say nothing of a real one's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import lease
from support import REPOSITORY, simulation
from xpu_simulator.simulator import SimState

from .lent_machine import OUT, TREE, LentMachine, make_driver, make_kit

sys.path.insert(0, str(REPOSITORY / "bench/gpu"))
import kit as kits
import runs

pytestmark = pytest.mark.timeout(900)
#: What is seen of what a run prints, and what is brought back.
MOST_PRINTED, MOST_FILES, MOST_BYTES = 12_000, 8, 16 << 20
SET_UP = ("facts", "set-up")
#: A virtual environment with PyTorch: then the whole runs are tried, which take half an hour.
BY_HAND = "XPU_LEASE_PYTHON" in os.environ
#: Its contexts take memory, as a real card's do.
CARD = {"model": os.environ.get("XPU_LEASE_CARD", "T4"), "context_mib": 518 if BY_HAND else 300}
#: Steps that judge times, about which two processors that do other things say anything.
TIMED = ("launches", "caps", "mps")


@pytest.fixture(scope="session")
def kit(installed: Path) -> Path:
    return make_kit()


@pytest.fixture
def lent(up: Callable[..., SimState], tmp_path: Path, kit: Path) -> Iterator[Callable[..., LentMachine]]:
    """Machines that are closed when the test ends; arguments as LentMachine's."""
    made: list[LentMachine] = []
    # PyTorch takes no driver that does not say that it is NVIDIA's (sim/README.md).
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
    """What a run has left, and has printed."""

    def __init__(self, machine: LentMachine, run: int, printed: str) -> None:
        folder = machine.path(OUT) / str(run)
        assert len(printed) < MOST_PRINTED
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) <= MOST_FILES and all(path.stat().st_size < MOST_BYTES for path in files)
        self.printed, self.log = printed, _unpacked((folder / "log.gz").read_bytes())
        self.summary = (folder / "summary.md").read_text() if (folder / "summary.md").exists() else ""
        # Who kills it may come between a line and its end.
        lines = (folder / "results.jsonl").read_text().rpartition("\n")[0].splitlines()
        self.results: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def outcomes(self) -> dict[str, str]:
        return {each["step"]: each["word"] for each in self.results if each["kind"] == "step"}

    def said(self, step: str) -> dict[str, str]:
        """The values of a step."""
        values = [each for each in self.results if (each["step"], each["kind"]) == (step, "value")]
        return {each["name"]: each["value"] for each in values}

    def held(self, step: str) -> int:
        return sum((each["step"], each["kind"]) == (step, "ok") for each in self.results)

    def failures(self) -> str:
        return "\n".join(each["text"] for each in self.results if each["kind"] == "FAILED")


def _unpacked(data: bytes) -> str:
    """As zcat shows it: every member, and of one that was cut off what there is."""
    text = b""
    while data:
        member = zlib.decompressobj(31)
        text += member.decompress(data)
        data = member.unused_data
    return text.decode(errors="replace")


def run(machine: LentMachine, number: int, *words: str) -> Left:
    return Left(machine, number, machine.lease(number, "--small", *words).stdout)


def names(number: int) -> list[str]:
    return [*SET_UP, *(step.name for step in runs.RUNS[number] if step.brief or BY_HAND)]


def assert_held(left: Left, but: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """Each step was ok, or what `but` says of it."""
    allowed = but or {}
    wrong = {step: word for step, word in left.outcomes().items() if word not in allowed.get(step, ("ok",))}
    assert not wrong, f"{left.failures()}\n{left.log}"


def test_the_three_runs_go_to_their_end_and_leave_nothing_on_the_machine(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent()
    # No kernel driver is behind the nodes of a simulated card.
    but = {**dict.fromkeys(TIMED, ("ok", "FAILED")), "boundary": ("skipped",)}
    for number in runs.RUNS:
        left = run(machine, number)
        assert list(left.outcomes()) == names(number)
        assert_held(left, but)
        assert left.said("facts")["in the loader's cache"].count("/usr/local/nvidia/lib64/libcuda.so") == 2
        for step in names(number):
            assert step in ("facts", "doctor", "devices", "share", "boundary") or left.held(step), left.log
            assert f"===== {step}," in left.log and f"| {step} |" in left.summary
        assert machine.programs() == []
        mounts = machine.path("/proc/1/mountinfo").read_text().splitlines()
        assert [line for line in mounts if "xpu-" in line.split()[4]] == []
        if number == 1:
            assert left.said("set-up")["built here"] == "from the kit's sources"
        else:
            assert "set up by an earlier run" in left.log


def test_without_a_compiler_cgroups_and_the_loader_s_cache_all_comes_from_the_kit(
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


def test_on_a_machine_with_cgroup_v2_alone_containers_start(lent: Callable[..., LentMachine]) -> None:
    left = run(lent(cgroups="v2"), 1, "--only", "containers")
    assert_held(left)
    assert left.said("set-up")["cgroups"].startswith("v2 at /sys/fs/cgroup")


def test_a_run_that_is_killed_leaves_its_results_and_nothing_for_the_next(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent()
    results = f"{OUT}/1/results.jsonl"
    for step in ("facts", "set-up", "containers", "cases"):
        # When that step has said something; in the end the run itself is over, too.
        script = (
            f"rm -rf {OUT}; bench/gpu/lease 1 --small & "
            f"""until grep -q '"step": "{step}"' {results} 2> /dev/null; do sleep 0.05; done; """
            "kill -9 $!; wait"
        )
        left = Left(machine, 1, machine.run("sh", "-c", script).stdout)
        assert f"===== {step}," in left.log and left.said("facts")["kernel"]
        before = names(1)[: names(1).index(step)]
        assert list(left.outcomes()) in (before, [*before, step])  # it may just have ended
        assert all(f"| {each} | {word} |" in left.summary for each, word in left.outcomes().items())
    left = run(machine, 1, "--only", "containers")
    assert_held(left)
    assert machine.programs() == []


def test_with_everything_failing_little_is_printed_and_few_files_are_left(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent(with_kit=False, compiler=False, cgroups="none")
    for number in runs.RUNS:
        left = run(machine, number)
        assert list(left.outcomes()) == names(number)
        # What is there in no form, such as a program that nobody has built, is a tool that is missing.
        assert set(list(left.outcomes().values())[1:]) <= {"FAILED", "skipped"}
        assert f"FAILED set-up: no kit in {TREE}/build/lease" in left.printed
        for step, word in left.outcomes().items():
            assert word != "FAILED" or f"FAILED {step}: " in left.printed
        assert left.printed.splitlines()[-1].startswith(f"run {number} (small): ")


def test_a_packed_tree_of_other_sources_is_taken_only_if_that_is_asked_for(
    lent: Callable[..., LentMachine],
) -> None:
    machine = lent(compiler=False)
    changed = machine.path(TREE) / "src/xpu_runtime/version.py"
    changed.write_text(changed.read_text() + "\n")
    left = run(machine, 1, "--only", "devices")
    assert left.outcomes() == {"facts": "ok", "set-up": "FAILED", "devices": "FAILED"}
    assert "such as src/xpu_runtime/version.py: run `make lease` again" in left.failures()
    assert_held(run(machine, 1, "--only", "devices", "--any-kit"))


def test_without_a_driver_a_run_ends_after_its_set_up_which_says_what_cannot_be_written(
    lent: Callable[..., LentMachine],
) -> None:
    unwritable = f"mkdir -p {kits.PLACE}; mount -t tmpfs -o ro none {kits.PLACE}"
    machine = lent(compiler=False, card=False, changed=unwritable)
    done = machine.lease(1, "--small")
    left = Left(machine, 1, done.stdout)
    assert left.outcomes() == {"facts": "ok", "set-up": "FAILED"} and done.returncode == 1
    assert f"{kits.PLACE} and" in done.stdout and "must be writable" in done.stdout
    assert "no NVIDIA driver found on this machine: nothing to measure" in done.stdout


#: The driver in a folder that everybody may write, and in one that the product does not know.
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
def test_a_driver_that_the_product_does_not_take_is_offered_to_it(
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


# ---- the program ----


def test_a_step_that_no_run_has_is_refused_and_those_that_it_has_are_named() -> None:
    words = [
        sys.executable,
        "-B",
        str(REPOSITORY / "bench/gpu/lease"),
        "1",
        "--only",
        "container",
        "--only",
        "anwsers",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and not done.stdout
    assert "no step of this run has 'anwsers'" in done.stderr and "used memory, answers, cases" in done.stderr


def test_the_card_is_held_open_and_one_that_hangs_holds_up_nothing(tmp_path: Path) -> None:
    script = """
import os, runpy, sys, time
keep_awake = runpy.run_path(sys.argv[1])["keep_awake"]
os.mkfifo(sys.argv[3])
keep_awake(sys.argv[3])
keep_awake(sys.argv[2])
fds = "/proc/self/fd/"
while not any(os.path.realpath(fds + each) == sys.argv[2] for each in os.listdir(fds)):
    time.sleep(0.01)
print("held")
"""
    node = tmp_path / "node"
    node.touch()
    words = [
        sys.executable,
        "-c",
        script,
        str(REPOSITORY / "bench/gpu/lease"),
        str(node),
        str(tmp_path / "hangs"),
    ]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60).stdout == "held\n"


# ---- the kit itself ----


def test_the_same_files_make_the_same_kit(kit: Path) -> None:
    before = {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()}
    assert make_kit() == kit
    assert {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()} == before


def test_a_kit_says_what_is_in_it_and_is_refused_when_that_is_not_so(kit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kit"
    shutil.copytree(kit, folder)
    manifest = kits.read(folder)
    assert {"bin/runc", "bin/busybox", "tree.tar.gz", "build/bench/share-load"} <= {
        each["path"] for each in manifest["files"]
    }
    assert kits.differences(manifest) == []
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < kits.MOST
    with (folder / "bin/busybox").open("ab") as file:
        file.write(b"more")
    with pytest.raises(kits.KitError, match="bin/busybox is missing or not the one"):
        kits.read(folder)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "{}",
        '{"format": 1}',
        '{"format": 1, "files": [1], "sources": {}, "commit": ""}',
        '{"format": 1, "files": null, "sources": {}, "commit": ""}',
        '{"format": 1, "files": [], "sources": [], "commit": ""}',
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / kits.MANIFEST).write_text(text)
    with pytest.raises(kits.KitError, match="run `make lease`"):
        kits.read(tmp_path)


def test_a_kit_that_is_too_large_names_what_makes_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kits, "MOST", 1000)
    for name, size in (("small", 10), ("large", 2_000_000)):
        (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(lease.PackError, match=r"2\.0 MB of at most 0; the largest: large 2\.0 MB, small"):
        lease.write_manifest(tmp_path, "", {"small": ("", ""), "large": ("", "")})
