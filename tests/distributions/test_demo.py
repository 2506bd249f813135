"""`make demo` on a fresh machine of newer Debians than the one that we develop on. On one of them the whole
build of the first tutorial."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from support import REPOSITORY, pages

from .root import Root

# The first run of each downloads a hundred packages.
pytestmark = pytest.mark.timeout(900)
_PAGE = REPOSITORY / "docs/tutorials/first-slice.md"
_AS_THE_TUTORIAL = [
    # A package is made of a commit.
    "git init -q && git add -A && git -c user.name=reader -c user.email=reader@localhost commit -qm clone",
    *(
        step.words
        for step in pages.steps(_PAGE, "tests/distributions/test_demo.py")
        if isinstance(step, pages.Command)
    ),
]


@pytest.mark.parametrize("suite", ["trixie", "forky"])
def test_make_demo_on_a_fresh_machine(root: Callable[..., Root], suite: str) -> None:
    # The packages that the README requires; `make demo` gets everything else itself.
    machine = root(suite, packages=["git", "make", "python3"])
    clone(machine, "/root/xpu")
    commands = _AS_THE_TUTORIAL if suite == "trixie" else ["make demo"]
    done = machine.run("sh", "-ec", "\n".join(commands), cwd="/root/xpu", timeout=600)
    assert done.returncode == 0 and "everything as it should be" in done.stdout, done.stdout
    assert machine.programs() == [], "the demo leaves no process behind"
    assert list(machine.path("/run").glob("xpu*")) == []
    if suite == "trixie":
        made = {path.name.partition("_")[0] for path in machine.path("/root/xpu/dist").iterdir()}
        assert made == {"cuda-probe", "xpu-container-runtime", "xpu-simulator"}


def clone(machine: Root, folder: str) -> None:
    """Copies this working tree, without built or ignored files, into a folder of the machine."""
    machine.path(folder).mkdir()
    command = 'git ls-files -z --cached --others --exclude-standard | tar --null -T - -c | tar -x -C "$0"'
    subprocess.run(["sh", "-c", command, machine.path(folder)], cwd=REPOSITORY, check=True)
