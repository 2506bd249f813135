"""The pages that people follow: each command of a tutorial or a how-to is run, with a real engine.

It stands in a block of the language `console`, after `# `, with what it prints below it. `...` there stands
for any text, on a line of its own for any lines. Times, ids and numbers may differ. A block after the comment
`<!-- not run: REASON -->` is left out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import REPOSITORY

from .root import Root
from .test_packages import PACKAGES, image_in
from .ways import IMAGE, Docker, Way

pytestmark = pytest.mark.timeout(900)

_PAGES = [
    page
    for folder in ("tutorials", "how-to")
    for page in sorted((REPOSITORY / "docs" / folder).glob("*.md"))
    if "```console" in page.read_text()
]
_BLOCK = re.compile(r"(<!-- not run: .+? -->\n)?^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What is another one at each run: times, ids of containers and of the kernel, memory that a program takes.
_DIFFERS = re.compile(r"\b[0-9a-f]{12,}\b|\d+|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d: ]+")
#: Of a machine without systemd, what the pages ask of it.
_SYSTEMCTL = """#!/bin/sh
case "$*" in
"reload docker") kill -HUP "$(pidof dockerd)" && sleep 1 ;;
"start xpu-agent"|"enable --now xpu-agent") xpu agent > /run/agent.log 2>&1 & sleep 1 ;;
"stop xpu-agent") kill "$(cat /run/agent.pid)" ;;
*) echo "systemctl $*: not on this machine" >&2; exit 1 ;;
esac
"""


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Each command that is to be run, which may go on over lines, and what it should print."""
    for left_out, block in _BLOCK.findall(page.read_text()):
        if left_out:
            continue
        for part in re.split(r"^# ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            end = next(at for at, line in enumerate(lines) if not line.endswith("\\"))
            yield "\n".join(lines[: end + 1]), "\n".join(lines[end + 1 :]).strip("\n")


def matches(said: str, expected: str) -> bool:
    """Whether a command has printed what the page says."""

    def pattern(line: str) -> str:
        pieces = [re.escape(_DIFFERS.sub("0", piece)) for piece in line.strip().split("...")]
        return r"[^\n]*".join(re.sub(r"(\\ )+", r"\\s+", piece) for piece in pieces)

    text = "".join(_DIFFERS.sub("0", line.strip()) + "\n" for line in said.strip("\n").splitlines())
    lines = [
        r"(?:[^\n]*\n)*" if line.strip() == "..." else pattern(line) + r"\n" for line in expected.splitlines()
    ]
    return re.fullmatch("".join(lines), text) is not None


class Reader(Docker):
    """Somebody who follows a page on a machine with docker, in a folder with the packages."""

    _IMAGE = "debian:12"

    def __init__(self, machine: Root, debs: list[Path]) -> None:
        Way.__init__(self, machine)
        image_in(machine)
        self.serve()
        self._done("sh", "-c", f"tar -C {IMAGE} -c . | docker import - {self._IMAGE}")
        machine.path("/usr/bin/systemctl").write_text(_SYSTEMCTL)
        machine.path("/usr/bin/systemctl").chmod(0o755)
        machine.path("/root/build/probe").mkdir(parents=True)
        shutil.copy(REPOSITORY / "build/probe/cuda-probe", machine.path("/root/build/probe"))
        for deb in debs:
            shutil.copy(deb, machine.path("/root"))

    def follow(self, command: str) -> str:
        """What the command prints."""
        return self.machine.run("sh", "-c", command, timeout=300).stdout


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_is_what_happens(page: Path, debs: list[Path]) -> None:
    machine = Root("trixie", packages=PACKAGES["trixie"], network=False)
    try:
        reader = Reader(machine, debs)
        for command, expected in commands(page):
            said = reader.follow(command)
            assert matches(said, expected), f"# {command}\n{said}\n\nthe page has\n{expected}"
    finally:
        machine.close()
