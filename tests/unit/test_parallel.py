"""Tests side by side: one marked `alone` runs alone, others do not, and a folder stays together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import REPOSITORY
from support.parallel import scope_of

pytestmark = pytest.mark.slow

CONFTEST = """
from pathlib import Path
from support import parallel
parallel.LOCKS = Path(__file__).parent / "locks"
pytest_plugins = ["support.parallel"]
"""
TESTS = """
import os, time
from pathlib import Path
import pytest

LOG, NAME = Path(__file__).parent / "log", Path(__file__).stem

def say(word):
    with LOG.open("a") as log:
        log.write(word + "\\n")

def test_beside_the_other_file():
    say(f"ready {NAME}")
    end = time.monotonic() + 60
    while LOG.read_text().count("ready") < 2:
        assert time.monotonic() < end

@pytest.mark.parametrize("number", range(20))
def test_with_others(number):
    say("other")

@pytest.mark.alone
@pytest.mark.parametrize("number", range(3))
def test_alone(number):
    say("begin")
    time.sleep(0.1)
    say("end")

@pytest.mark.parametrize("number", range(20))
def test_with_others_again(number):
    say("other")
"""


def test_a_test_that_is_to_be_alone_waits_for_the_others_and_lets_none_begin(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("test_a", "test_b"):
        (tmp_path / f"{name}.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
        + ["-c", "/dev/null", f"--basetemp={tmp_path}/base", tmp_path],
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": f"{REPOSITORY}/tests:{REPOSITORY}/src"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    begun = [at for at, word in enumerate(words) if word == "begin"]
    assert len(begun) == 6
    assert [words[at + 1] for at in begun] == ["end"] * 6


def test_a_folder_whose_tests_share_an_engine_is_one_workers() -> None:
    folder = "tests/integration/engines"
    assert scope_of(f"{folder}/test_docker.py::test_x[a::b]") == folder
    assert scope_of("tests/integration/limits/test_set.py::test_x") == "tests/integration/limits/test_set.py"


def test_a_release_of_debian_stays_together_and_other_parameters_do_not_part_a_file() -> None:
    folder = "tests/distributions"
    assert scope_of(f"{folder}/test_packages.py::test_x[trixie-own-runc]") == f"{folder}/trixie"
    assert scope_of(f"{folder}/test_demo.py::test_x[trixie]") == f"{folder}/trixie"
    assert scope_of(f"{folder}/test_upgrade.py::test_x[upgrade]") == f"{folder}/test_upgrade.py"
