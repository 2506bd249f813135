"""`make demo` on a fresh machine of newer Debians than the one that we develop on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from support import REPOSITORY

from .root import Root

# The first run of each downloads a hundred packages.
pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("suite", ["trixie", "forky"])
def test_make_demo_on_a_fresh_machine(root: Callable[..., Root], suite: str) -> None:
    # The packages that the README requires; `make demo` gets everything else itself.
    machine = root(suite, packages=["make", "python3"])
    clone(machine, "/root/xpu")
    done = machine.run("make", "demo", cwd="/root/xpu", timeout=600)
    assert done.returncode == 0 and "everything as it should be" in done.stdout, done.stdout
    assert machine.programs() == [], "the demo leaves no process behind"
    assert list(machine.path("/run").glob("xpu*")) == []


def clone(machine: Root, folder: str) -> None:
    """Copies this working tree, without built or ignored files, into a folder of the machine."""
    machine.path(folder).mkdir()
    command = 'git ls-files -z --cached --others --exclude-standard | tar --null -T - -c | tar -x -C "$0"'
    subprocess.run(["sh", "-c", command, machine.path(folder)], cwd=REPOSITORY, check=True)
