"""Tests that cost minutes are left out while nothing that they protect has changed since they passed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import REPOSITORY

pytestmark = pytest.mark.slow

CONFTEST = """
from pathlib import Path
from support import tiers
tiers.REPOSITORY = Path(__file__).parent
tiers.PASSED = tiers.REPOSITORY / "tests" / "passed.json"
tiers.PROTECTS = {"tests/slow": ("product", "config")}
pytest_plugins = ["support.tiers"]
"""
LEFT_OUT = "tests/slow was left out"


class Project:
    """A made-up repository: tests/quick and tests/slow, with two files that tests/slow protects."""

    def __init__(self, folder: Path, processes: int = 0) -> None:
        self._folder, self._processes = folder, processes
        self.passed = folder / "tests" / "passed.json"
        self.write("conftest.py", CONFTEST)
        self.write("pytest.ini", "[pytest]\ntestpaths = tests\n")
        self.write("product/deep/code.py", "1")
        self.write("config", "a: 1")
        self.write("tests/quick/test_quick.py", "def test_quick(): pass\n")
        self.write("tests/slow/test_slow.py", "def test_slow(): pass\n")

    def write(self, name: str, content: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def run(self, *words: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *words]
        command += ["-n", str(self._processes), f"--basetemp={self._folder}/base"]
        environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}/tests:{REPOSITORY}/src"}
        environ.pop("PYTEST_ADDOPTS", None)
        done = subprocess.run(
            command, env=environ, cwd=self._folder, capture_output=True, text=True, timeout=120
        )
        assert "passed" in done.stdout or {"--setup-plan", "--collect-only"} & set(words), done.stdout
        assert not done.stderr, done.stderr
        return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_all_processes_of_a_run_leave_out_the_same(tmp_path: Path) -> None:
    project = Project(tmp_path, processes=2)
    assert "2 passed" in project.run("--all")
    left_out = project.run()
    assert "1 passed" in left_out and LEFT_OUT in left_out


def test_it_runs_until_it_has_passed_and_again_when_a_file_changes(project: Project) -> None:
    assert "2 passed" in project.run()
    assert not project.passed.exists(), "only --all writes it down"
    assert "2 passed" in project.run("--all")
    left_out = project.run()
    assert "1 passed" in left_out and LEFT_OUT in left_out
    assert "1 passed" in project.run("tests/slow"), "it was named"
    project.write("README.md", "changed")
    project.write("tests/quick/test_quick.py", "def test_other(): pass\n")
    assert LEFT_OUT in project.run(), "it protects neither of them"
    for name in ("product/deep/code.py", "product/new.py", "config", "tests/slow/test_slow.py"):
        project.write(name, "def test_slow(): assert 'changed'\n")
        changed = project.run("--all")
        assert "2 passed" in changed and LEFT_OUT not in changed


def test_a_link_counts_by_its_target_and_a_missing_file_is_no_error(project: Project, tmp_path: Path) -> None:
    link, folder = tmp_path / "product/link", tmp_path / "product/folder"
    link.symlink_to("nowhere")
    folder.symlink_to("deep")
    assert "2 passed" in project.run("--all")
    assert LEFT_OUT in project.run()
    for each in (link, folder):
        each.unlink()
        each.symlink_to("elsewhere")
        assert LEFT_OUT not in project.run("--all")
        assert LEFT_OUT in project.run()


def test_a_folder_that_fails_or_was_not_run_whole_is_not_recorded(project: Project) -> None:
    some = (["-k", "quick"], ["tests/quick"], ["-x"], ["--setup-plan"], ["--collect-only"])
    for words in some:
        project.run("--all", *words)
        assert not project.passed.exists()
    project.write("tests/slow/test_slow.py", "def test_slow(): assert False\n")
    assert "1 failed, 1 passed" in project.run("--all")
    assert json.loads(project.passed.read_text()) == {}
    assert "1 failed, 1 passed" in project.run()


def test_files_that_change_during_the_run_have_not_passed(project: Project) -> None:
    project.write("tests/quick/test_quick.py", "def test_quick(): open('config', 'a').write('.')\n")
    project.run("--all")
    assert "2 passed" in project.run()
