"""The files of engines as people have them (tests/unit/engines/files): a text or a tree for each title."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from . import REPOSITORY

_FILES = REPOSITORY / "tests" / "unit" / "engines" / "files"


class Tree(NamedTuple):
    """`decides`: the file with the default runtime that counts; "": the engine's own counts."""

    title: str
    decides: str
    files: dict[str, str]

    def write(self, top: Path) -> None:
        for name, text in self.files.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text)


def shapes(*names: str) -> dict[str, str]:
    """The texts of the files `names`, each of which has one file a title."""
    found = {}
    for name in names:
        for part in ("\n" + (_FILES / name).read_text()).split("\n=== ")[1:]:
            title, _, text = part.partition("\n")
            assert title not in found, title
            found[title] = text.removesuffix("\n") + "\n"
    return found


def parsed(text: str) -> dict[str, Any] | None:
    """The content of a TOML file; None if the text is none."""
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError:
        return None


def trees(name: str) -> list[Tree]:
    """The trees of the file `name`."""
    found = []
    for part in ("\n" + (_FILES / name).read_text()).split("\n=== ")[1:]:
        title, _, rest = part.removesuffix("\n").partition("\n--- ")
        title, _, decides = title.partition(", decided by ")
        files = dict(each.split("\n", 1) for each in rest.split("\n--- "))
        found.append(Tree(title, re.sub("^none$", "", decides), {at: f"{files[at]}\n" for at in files}))
    return found


def snapshot(top: Path) -> dict[str, tuple[bytes, int, int]]:
    """The files below `top`: their bytes, inodes and times."""
    return {
        str(path.relative_to(top)): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
        for path in top.rglob("*")
        if path.is_file()
    }
