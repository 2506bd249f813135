"""Tables for people, JSON for scripts, and how both write amounts.

Knows nothing of what it prints.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import click

from xpu_runtime.cli.screen import printable
from xpu_runtime.request.units import show

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def print_json(value: Any) -> None:
    """The value as indented JSON."""
    click.echo(json.dumps(value, indent=2))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, two spaces apart; nothing is cut."""
    rows = [[printable(str(text)) for text in row] for row in rows]
    widths = [max(len(line[at]) for line in [heads, *rows]) for at in range(len(heads))]
    for line in [heads, *rows]:
        texts = (text.ljust(width) for text, width in zip(line, widths))
        click.echo("  ".join(texts).rstrip())


def memory(amount: int | None) -> str:
    """Bytes, or a dash for unknown or unlimited."""
    return "-" if amount is None else show(amount)


def used_of(used: int | None, limit: int, unaccounted: int | None = None) -> str:
    """`1.5G/4G`, or a dash for unknown; `1.5G/4G (2G unaccounted)` where the account lacks that much."""
    beyond = f" ({show(unaccounted)} unaccounted)" if unaccounted else ""
    return ("-" if used is None else f"{show(used)}/{show(limit)}") + beyond


def percent(amount: int | None) -> str:
    """A percentage, or a dash for none."""
    return "-" if amount is None else f"{amount}%"


def share(percentage: float | None) -> str:
    """A measured percentage, or a dash for unknown."""
    return "-" if percentage is None else f"{percentage:.0f}%"


def timestamp(seconds: float) -> str:
    """RFC 3339, UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
