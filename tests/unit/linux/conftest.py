"""Fixtures of the system call layer: a C compiler, processes of their own, a container's root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xpu_runtime.linux.rootfs import Root


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`compile_c(name, source, *flags) -> path` of gcc's output."""
    folder = tmp_path_factory.mktemp("c")

    def compile_source(name: str, source: str, *flags: str) -> Path:
        (folder / f"{name}.c").write_text(source)
        program, text = folder / name, folder / f"{name}.c"
        # Before glibc 2.34 dlopen is in a library of its own.
        subprocess.run(["gcc", "-O1", *flags, "-o", program, text, "-ldl"], check=True)
        return folder / name

    return compile_source


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Files beside the root, which must never be read or changed through it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/hostname").write_text("box")
    return folder


@pytest.fixture
def root(inside: Path) -> Iterator[Root]:
    with Root(str(inside)) as opened:
        yield opened


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below `folder`: type and mode, device, content or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        there = path.lstat()
        content = b""
        if path.is_symlink():
            content = os.fsencode(os.readlink(path))
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (there.st_mode, there.st_rdev, content)
    return found
