"""Code that several test folders share: fixtures in modules that the top conftest.py names as plugins, and
plain functions.

A fixture of one folder is in that folder's conftest.py. Nothing here is part of the product.
"""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 1 << 20
GIB = 1 << 30
#: Stand-ins for the programs of an engine, in tests that need no engine; the low-level runtime is `runc`.
STAND_INS = REPOSITORY / "tests/support/bin"


def script(path: Path, text: str) -> Path:
    """Makes a program of `path`: of the shell, unless its first line names another interpreter."""
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
