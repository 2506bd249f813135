"""SQLite's C module, imported at a third of the cost of `import sqlite3`.

`sqlite3` brings `datetime` and `collections`; `_sqlite3` itself imports `functools` for one thing, the
cache of prepared statements, and `functools` costs twice as much as SQLite (2 ms of a hook's 20). A
transaction of ours prepares a dozen statements once each, so it does without the cache. Knows no table of the
ledger.
"""

from __future__ import annotations

import sys

from xpu_runtime.errors import XpuError, incomplete_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def _without_cache(*_: object) -> Callable[[object], object]:
    return lambda prepare: prepare


def _import() -> ModuleType:
    if "functools" in sys.modules:
        import _sqlite3

        return _sqlite3
    lean = type(sys)("functools")
    lean.lru_cache = _without_cache  # type: ignore[attr-defined]
    sys.modules["functools"] = lean
    try:
        import _sqlite3
    finally:
        del sys.modules["functools"]
    return _sqlite3


try:
    sqlite: ModuleType = _import()
except (ImportError, AttributeError, TypeError):  # it has another name there, or needs more of functools
    try:
        import sqlite3
    except ImportError as error:
        raise XpuError(*incomplete_python(error)) from None
    sqlite = sqlite3


def rows_if_any(db: Any, statement: str, *values: object) -> list[Any]:
    """The rows of a query; none where there is no such table (yet): some are made with their first row."""
    try:
        rows: list[Any] = db.execute(statement, values).fetchall()
    except sqlite.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return []
    return rows
