"""What tests of the system call layer share: a C compiler, and functions run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`compile_c(name, source, *flags) -> path` of what gcc made of it."""
    folder = tmp_path_factory.mktemp("c")

    def compile_source(name: str, source: str, *flags: str) -> Path:
        (folder / f"{name}.c").write_text(source)
        subprocess.run(["gcc", "-O1", *flags, "-o", folder / name, folder / f"{name}.c"], check=True)
        return folder / name

    return compile_source


@pytest.fixture
def in_child() -> Callable[[Callable[[], None]], None]:
    """Runs a function in a forked process, which may change its namespaces; its failure is the test's."""

    def run(function: Callable[[], None]) -> None:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            status = 0
            try:
                function()
            except BaseException:
                os.write(write_end, traceback.format_exc().encode())
                status = 1
            os._exit(status)
        os.close(write_end)
        with os.fdopen(read_end) as said:
            text = said.read()
        if os.waitpid(child, 0)[1]:
            pytest.fail(text)

    return run
