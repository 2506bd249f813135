"""The programs of the tests' cluster: built once for all clones of a user, and never half."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import REPOSITORY

#: parts.prepare of a clone, the build itself left out: one line of `builds` for each that began.
CLONE = """
import os, signal, sys, time
from pathlib import Path
from kubernetes import parts

clone, builds, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def make(folder):
    with builds.open("a") as log:
        log.write("begun\\n")
    for name in ("etcd", "containerd", "containerd-shim-runc-v2", "ctr", *parts._BUILT):
        (folder / "programs" / name).touch()
    (folder / "programs" / "kubelet").write_text("half")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    (folder / "programs" / "kubelet").write_text("whole")

parts._OF_THIS_CLONE, parts._make = clone / "build", make
print(parts.prepare())
"""


class Clones:
    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.builds = folder, folder / "builds"
        self._environ = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": f"{REPOSITORY}/tests"}

    def begin(self, clone: str, how: str = "") -> subprocess.Popen[str]:
        words = [sys.executable, "-c", CLONE, str(self.folder / clone), str(self.builds), how]
        return subprocess.Popen(words, env=self._environ, stdout=subprocess.PIPE, text=True)

    def prepare(self, clone: str) -> Path:
        return self.end(self.begin(clone))

    def end(self, process: subprocess.Popen[str]) -> Path:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        found = Path(said.splitlines()[-1])
        assert len(list(found.iterdir())) == 8
        assert (found / "kubelet").read_text() == "whole"
        return found

    def built(self) -> int:
        return len(self.builds.read_text().splitlines())


def test_a_second_clone_uses_the_build_of_the_first_unless_it_lacks_a_program(tmp_path: Path) -> None:
    clones = Clones(tmp_path, tmp_path / "cache")
    found = clones.prepare("one")
    assert clones.prepare("two") == found
    assert clones.built() == 1
    (found / "ctr").unlink()
    clones.prepare("two")
    assert clones.built() == 2


def test_of_clones_that_build_at_once_one_does(tmp_path: Path) -> None:
    clones = Clones(tmp_path, tmp_path / "cache")

    begun = [clones.begin(f"clone-{number}") for number in range(4)]

    assert len({clones.end(each) for each in begun}) == 1
    assert clones.built() == 1


def test_a_build_that_is_killed_leaves_nothing_that_is_taken_for_a_whole_one(tmp_path: Path) -> None:
    clones = Clones(tmp_path, tmp_path / "cache")
    killed = clones.begin("one", "killed")
    assert killed.wait(60) == -signal.SIGKILL
    assert killed.stdout is not None
    killed.stdout.close()

    found = clones.prepare("two")

    assert clones.built() == 2
    assert {each.name for each in found.parent.iterdir()} == {"lock", found.name}


@pytest.mark.parametrize("shared", ["no-folder/cache", "no-folder"])
def test_where_no_folder_can_be_shared_each_clone_has_its_own(tmp_path: Path, shared: str) -> None:
    # A mode would not keep root out.
    (tmp_path / "no-folder").write_text("")
    clones = Clones(tmp_path, tmp_path / shared)

    one, two = clones.prepare("one"), clones.prepare("two")

    assert (one.parent, two.parent) == (tmp_path / "one/build", tmp_path / "two/build")
    assert clones.built() == 2
