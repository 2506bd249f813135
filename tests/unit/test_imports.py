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
    code = BARE.format(source=str(SOURCE), modules=modules)
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    brought = {name for name in done.stdout.split() if not name.startswith("xpu_runtime")}
    assert brought <= LIGHT


def test_the_shim_without_spec_mode_opens_neither_ledger_nor_devices() -> None:
    code = BARE.format(source=str(SOURCE), modules="xpu_runtime.shim")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    ours = {name.split(".")[1] for name in done.stdout.split() if name.count(".") >= 1 and "xpu" in name}
    assert not ours & {"ledger", "vendors", "limits"}


def test_stopping_a_container_imports_no_plan() -> None:
    code = BARE.format(source=str(SOURCE), modules="xpu_runtime.hook, xpu_runtime.ledger.store")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    ours = {name.split(".")[1] for name in done.stdout.split() if name.startswith("xpu_runtime.")}
    assert not ours & {"start", "granting", "delivery", "limits", "config"}
