"""The modules that a container's start pays for: the list is pinned, so that none slips in."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support import REPOSITORY

SOURCE = REPOSITORY / "src"

#: The modules before any of ours: the interpreter's own under -I -S, and `os`, which each start needs, with
#: its imports. They differ between versions.
BARE = """
import os, sys
sys.path.insert(0, {source!r})
before = set(sys.modules)
import {modules}
print("\\n".join(sorted(set(sys.modules) - before)))
"""

#: From the standard library; each was weighed.
LIGHT = {
    "__future__", "_ctypes", "_json", "_sqlite3", "_struct", "binascii", "errno", "fcntl", "struct",
}  # fmt: skip


def imported(modules: str, python: str = sys.executable) -> set[str]:
    """The modules that an import of these brings into a bare interpreter."""
    code = BARE.format(source=str(SOURCE), modules=modules)
    done = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def packages(modules: set[str]) -> set[str]:
    """The packages of ours, or modules of ours that are in none."""
    return {name.split(".")[1] for name in modules if name.startswith("xpu_runtime.")}


@pytest.mark.parametrize(
    "modules",
    [
        "xpu_runtime.shim",
        "xpu_runtime.hook",
        "xpu_runtime.start.in_container",
        "xpu_runtime.start.spec_mode",
        "xpu_runtime.ledger.store",
    ],
)
def test_an_entry_point_imports_nothing_heavy(modules: str) -> None:
    found = imported(modules, "/usr/bin/python3")
    assert {name for name in found if not name.startswith("xpu_runtime")} <= LIGHT


def test_the_shim_without_spec_mode_opens_neither_ledger_nor_devices() -> None:
    assert not packages(imported("xpu_runtime.shim")) & {"ledger", "vendors", "limits"}


def test_stopping_a_container_imports_no_plan() -> None:
    found = packages(imported("xpu_runtime.hook, xpu_runtime.ledger.store"))
    assert not found & {"start", "granting", "delivery", "limits", "config"}
