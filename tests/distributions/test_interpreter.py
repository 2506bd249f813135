"""A distribution gets another Python while our tree is installed: a bundle of another version is not read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .root import Root, own_suite

pytestmark = pytest.mark.timeout(900)

_LIB = "lib/xpu-container-runtime"
#: Releases with another Python than this machine's, which writes the first bundle.
_OTHERS = [suite for suite in ("bookworm", "trixie", "forky") if suite != own_suite()]
_FROM_BUNDLE = """
import sys
sys.path.insert(0, sys.argv[1])
import xpu_bundle
xpu_bundle.install()
import xpu_runtime.start.in_container
print(type(xpu_runtime.start.in_container.__loader__).__name__)
"""


@pytest.mark.parametrize("suite", _OTHERS)
def test_a_tree_starts_with_a_bundle_that_another_python_wrote(
    root: Callable[..., Root], installed: Path, tmp_path: Path, suite: str
) -> None:
    here, machine = tmp_path / "prefix", root(suite, packages=["make", "python3"])
    shutil.copytree(installed, here)
    shutil.copytree(here, machine.path("/opt") / "prefix")

    def loader_here() -> str:
        words = [sys.executable, "-IS", "-c", _FROM_BUNDLE, str(here / _LIB / "python")]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    def loader_there() -> str:
        done = machine.run("python3", "-IS", "-c", _FROM_BUNDLE, f"/opt/prefix/{_LIB}/python")
        assert done.returncode == 0, done.stdout
        return done.stdout

    assert (loader_here(), loader_there()) == ("Bundle\n", "SourceFileLoader\n")
    hook = machine.run("/opt/prefix/bin/xpu-container-runtime-hook")
    assert hook.stdout.startswith("xpu: usage: xpu-container-runtime-hook STAGE")
    # The package does this when the distribution's Python has changed.
    assert machine.run("python3", "-IS", f"/opt/prefix/{_LIB}/precompile.py").stdout == ""
    assert loader_there() == "Bundle\n"
    shutil.copy(machine.path("/opt") / "prefix" / _LIB / "python" / "start.bundle", here / _LIB / "python")
    assert loader_here() == "SourceFileLoader\n"
    hook = subprocess.run([here / "bin" / "xpu-container-runtime-hook"], capture_output=True, text=True)
    assert hook.stderr.startswith("xpu: usage: xpu-container-runtime-hook STAGE")
