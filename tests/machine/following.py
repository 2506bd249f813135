"""The pages whose commands need systemd, followed on this machine; support.pages reads them.

The reader has the packages, and not what `make install` has put into /usr/local.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from support import pages

from .checking import HERE, SYSTEM, run

_FOLDER = Path("/root/packages")
_ENVIRON = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
#: Commands that only look: what they show may come a moment after the command before them.
_LOOKS = re.compile(r"(ls|journalctl|systemctl status|(su - \w+ -c ')?xpu (events|ps|top))\b")
_PATIENCE = 60


@contextlib.contextmanager
def _reader(page: str) -> Iterator[list[pages.File | pages.Command]]:
    """Makes the machine a reader's; the steps of the page."""
    steps = list(pages.steps(Path(HERE, "pages", page)))
    shutil.copytree(f"{HERE}/packages", _FOLDER)
    run("mount", "-t", "tmpfs", "none", "/usr/local")
    try:
        yield steps
    finally:
        run("umount", "/usr/local")
        shutil.rmtree(_FOLDER)
        run("systemctl", "stop", "xpu-agent")
        run("xpu", "sim", "down")


def _follow(page: str) -> None:
    with _reader(page) as steps:
        for step in steps:
            if isinstance(step, pages.File):
                path = _FOLDER / step.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(step.text)
            else:
                _do(step)


def _do(step: pages.Command) -> None:
    """Runs a command; AssertionError if it prints something else than the page has."""
    deadline = time.monotonic() + _PATIENCE
    while not pages.matches(said := _say(step.words), step.prints):
        assert _LOOKS.match(step.words) and time.monotonic() < deadline, (
            f"# {step.words}\n{said}\n\nthe page has\n{step.prints}"
        )
        time.sleep(0.5)


def _say(words: str) -> str:
    # The page shows its output whatever its status is.
    return run("sh", "-c", f"cd {_FOLDER}\n{words}\ntrue", environ=_ENVIRON)


def the_agents_page_says_what_happens() -> None:
    _follow("agent.md")


def the_page_on_running_a_node_says_what_happens() -> None:
    SYSTEM.docker("import", f"{HERE}/image.tar", "debian:12")
    run("useradd", "--create-home", "ada")
    _follow("operate.md")


FOLLOWED = (the_page_on_running_a_node_says_what_happens, the_agents_page_says_what_happens)
