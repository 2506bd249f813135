"""docs/reference/events.md: kinds of events, and the fields of the journal."""

from __future__ import annotations

from xpu_runtime.agent import journal
from xpu_runtime.ledger.vocabulary import KINDS

from .markdown import table


def kinds() -> str:
    """The kinds, with the priority of their entries in the journal."""
    rows = [
        (f"`{kind}`", "warning" if kind in journal.WARNED_OF else "info", meaning)
        for kind, meaning in KINDS.items()
    ]
    return table(("kind", "priority", "meaning"), rows)


def fields_of_journal() -> str:
    """The fields of an entry in systemd's journal."""
    rows = [(f"`{name}`", meaning) for name, meaning, _ in (*journal.FIELDS, *journal.FIELDS_OF_DEVICE)]
    return table(("field", "meaning"), rows)
