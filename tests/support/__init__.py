"""What tests share: fixtures in modules that the top conftest.py names as plugins, and plain functions.

A fixture that one folder alone uses is in that folder's conftest.py. Nothing here is part of the product.
"""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 1 << 20
GIB = 1 << 30
#: Programs that stand in for those of an engine in tests that need none; the low-level runtime is `runc`.
STAND_INS = REPOSITORY / "tests/support/bin"
