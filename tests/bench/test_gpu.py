"""The scripts for machines with a real GPU: without one they say so, and on a simulated one they work.

Their results on a simulated card say nothing about hardware, and computed values are not checked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import lookups
import places
import pytest

import sandbox
from share import runfolder
from support import REPOSITORY
from support.exports import listed
from support.sharing_time import until
from support.simulation import Up, libraries
from xpu_runtime.limits import pages
from xpu_runtime.linux import proc

from .scripts import SCRIPTS, machine

CASES_FOLDER = SCRIPTS / "cases"
#: The environment without the variables of a run on a card.
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("XPU_GPU_")}
SKIPPED = 77
#: Scripts that run programs in slices themselves.
OUTSIDE = ("answers.py", "used_memory.py", "run")
#: The scripts of the run, with their words.
RUN = (SCRIPTS / "run").read_text()
CASES = [json.loads(words) for words in re.findall(r': (\["\w+\.py".*\]),', RUN)]
# An entry that the pattern misses would be left out silently.
assert {words[0] for words in CASES} == set(re.findall(r'"(\w+\.py)"', RUN)), CASES


def run(name: str, *words: str, timeout: int = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / name), *words],
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_outside_a_slice_a_script_is_skipped_with_a_reason(words: list[str]) -> None:
    done = run(f"cases/{words[0]}", *words[1:])
    assert done.returncode == SKIPPED, done.stdout + done.stderr
    assert done.stdout.startswith("skipped: ") and done.stdout.count("\n") == 1
    assert not done.stderr


@pytest.mark.parametrize("script", OUTSIDE)
def test_without_a_driver_all_is_skipped(script: str) -> None:
    done = run(script)
    assert done.returncode == SKIPPED
    assert done.stdout.startswith("skipped: no NVIDIA driver")


def test_scripts_without_a_framework_pass_on_a_simulated_card(
    up: Up, installed: Path, tmp_path: Path
) -> None:
    state = up("1xT4-R580")
    record, results = tmp_path / "record.md", tmp_path / "results.json"
    words = ["--root", state.root, "--mem", "2G", "--record", str(record), "--json", str(results)]
    done = run("run", *words, "--place", "sandbox", "--prefix", str(installed), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = outcomes_in(record)
    assert set(outcomes.values()) == {"ok", "skipped"}
    assert {name for name, outcome in outcomes.items() if outcome == "ok"} >= {
        "nvidia-smi inside",
        "cuMemGetInfo against the driver's report",
        "driver API to the limit and past it",
        "look-ups",
        "overhead",
    }
    text = record.read_text()
    assert "Tesla T4, 580.105.08" in text and "simulated" in text
    # The figures of passed scripts are kept, and each script's whole output.
    assert "262.0 MiB used, 262.0 MiB reported by the driver" in text
    assert "cuMemAlloc gets: 2048.0 MiB" in (tmp_path / "record-logs/limit.log").read_text()
    assert [json.loads(line)["name"] for line in results.read_text().splitlines()] == list(outcomes)
    (said,) = re.findall("exported, packed: (.*)", (tmp_path / "record-logs/lookups.log").read_text())
    functions = {name for name in listed("libcuda")["R580"] if name.startswith("cu")}
    assert set(lookups.unpacked(said)) == functions
    for each in ("exported, without a decision", "exported, not by R580", "exported by R580 there, not here"):
        assert re.search(f"{each}.*: none", text), each


def test_the_facts_of_a_machine_are_those_of_the_simulated_card(
    up: Up,
) -> None:
    words = [sys.executable, str(SCRIPTS / "lent/facts.py")]
    environ = {**os.environ, "XPU_GPU_ROOT": up("1xT4-R580").root}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    facts = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert facts["card"].startswith("Tesla T4, GPU-") and "580.105.08" in facts["driver"]
    assert facts["device nodes"].count("/dev/nvidia0") == 1
    assert len(facts["load average"].split()) == 3


def test_a_run_whose_scripts_are_all_skipped_is_skipped(up: Up, tmp_path: Path) -> None:
    words = ["--root", up("1xT4-R580").root, "--record", str(tmp_path / "record.md")]
    assert run("run", *words, "--only", "vectorAdd").returncode == SKIPPED
    done = run("run", *words, "--only", "vectoradd")
    assert done.returncode == 1 and "no name contains 'vectoradd': nvidia-smi inside" in done.stderr


def test_a_program_that_finds_no_card_where_one_was_seen_has_failed(
    up: Up,
) -> None:
    root = up("1xT4-R580").root
    program = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import card; card.Cuda()"
    for seen, status in ({}, SKIPPED), ({"XPU_GPU_SEEN": "1"}, 1):
        with places.opened("native", machine=machine(root)) as place:
            done = place.run([sys.executable, "-c", program], 60, {"CUDA_VISIBLE_DEVICES": "99", **seen})
        assert done.returncode == status and "no GPU: cuInit gives" in done.stdout, done.stdout


def test_a_script_that_hangs_is_ended_in_time_and_leaves_no_process(up: Up, tmp_path: Path) -> None:
    state, record, pids = up("1xT4-R580"), tmp_path / "record.md", tmp_path / "pids"
    hanging = tmp_path / "python"
    hanging.write_text(f"#!/bin/sh\nsetsid sleep 1000 & echo $! $$ >> {pids}; echo begun; wait\n")
    hanging.chmod(0o755)
    words = ["--root", state.root, "--record", str(record), "--python", str(hanging), "--timeout", "1"]
    done = run("run", *words, "--only", "look-ups", "--only", "overhead")
    assert done.returncode == 1
    rows = record.read_text().splitlines()[-2:]
    assert all("| FAILED | FAILED: begun / " in row and "no end within 1 s" in row for row in rows)
    assert (tmp_path / "record-logs/lookups.log").read_text() == "begun\n"
    assert len(pids.read_text().split()) == 4
    assert not [pid for pid in map(int, pids.read_text().split()) if not proc.is_ending(pid)]


def test_a_run_that_is_killed_leaves_the_results_so_far(up: Up, tmp_path: Path) -> None:
    state, record = up("1xT4-R580"), tmp_path / "record.md"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$1" in *smi.py) exec {sys.executable} "$@";; esac; sleep 1000\n')
    python.chmod(0o755)
    words = ["--root", state.root, "--record", str(record), "--python", str(python)]
    started = subprocess.Popen([sys.executable, str(SCRIPTS / "run"), *words], stdout=subprocess.DEVNULL)
    until((tmp_path / "record-logs/mem_info.log").exists, "the second script runs", 60)
    started.kill()
    started.wait()
    assert outcomes_in(record) == {"nvidia-smi inside": "ok"}
    for folder in runfolder.dead("xpu-gpu-"):
        runfolder.remove(folder, REPOSITORY)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["limit.py"], "FAILED: no GPU: cuInit gives CUDA_ERROR_NO_DEVICE"),
        (["torch_limit.py", "caching"], "FAILED: this PyTorch 0 finds no GPU: RuntimeError: as a stand-in"),
    ],
    ids=["the driver", "PyTorch"],
)
def test_a_card_that_is_not_found_in_a_slice_is_a_failure(
    up: Up, tmp_path: Path, words: list[str], said: str
) -> None:
    root = up("1xT4-R580").root
    (tmp_path / "torch.py").write_text(
        "__version__ = 0\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
        "    @staticmethod\n    def init(): raise RuntimeError('as a stand-in')\n"
    )
    environ = {"CUDA_VISIBLE_DEVICES": "99", "PYTHONPATH": str(tmp_path)}
    with places.opened("sandbox", machine=machine(root), memory="2G") as place:
        done = place.run([sys.executable, str(CASES_FOLDER / words[0]), *words[1:]], 60, environ)
    assert done.returncode == 1 and said in done.stdout, done.stdout


def test_a_slice_of_another_size_than_was_asked_for_is_a_failure(up: Up) -> None:
    root = up("1xT4-R580").root
    with places.opened("sandbox", machine=machine(root), memory="2G") as place:
        done = place.run([sys.executable, str(CASES_FOLDER / "limit.py")], 60, {"XPU_GPU_LIMIT": "1"})
    assert done.returncode == 1 and "and 1 were asked for" in done.stdout, done.stdout


def outcomes_in(record: Path) -> dict[str, str]:
    rows = [line for line in record.read_text().splitlines() if line.startswith("| ")][1:]
    return {fields[1].strip(): fields[2].strip() for fields in (line.split("|") for line in rows)}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("limit.py", "FAILED: cuMemAlloc past the limit: granted"),
        ("mem_info.py", "FAILED: the card is as large as the slice"),
        ("smi.py", "FAILED: the card is as large as the slice"),
    ],
)
def test_a_limit_that_does_not_hold_is_found(up: Up, tmp_path: Path, script: str, said: str) -> None:
    """With the real libraries in the place of the interposers, programs get more than the slice."""
    state = up("1xT4-R580")
    uuid = "GPU-" + "-".join("0" * length for length in (8, 4, 4, 4, 12))
    pages.create(str(tmp_path), "a-slice", (pages.Entry(uuid, 2 << 30),))
    words = [sys.executable, str(CASES_FOLDER / script)]
    command = sandbox.command(
        words,
        pages=str(tmp_path),
        real=str(libraries(state.root)),
        interposers=sandbox.build(),
        simulation=state.root,
    )
    path = {"PATH": f"{state.root}/usr/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        command, env=sandbox.environ(path, interposed=False), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout
