"""The shell's suggestions for an argument (TAB).

Made from files of the node: no driver is asked, and engines only for names, for a second at most. If
something is missing or wrong, nothing is suggested; the command itself prints the reason.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.observe import names
from xpu_runtime.vendors import discovery, marks

#: Seconds to wait for a ledger that another process has locked.
_LEDGER_S = 1.0


def devices(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Indexes and UUIDs of the node's devices."""
    try:
        inventory = discovery.cached(discovery.driver_root(load())[0])
    except (XpuError, OSError):
        return []
    there = inventory.devices if inventory is not None else ()
    named = [(device.index, device.name) for device in there] + [(each.uuid, each.name) for each in there]
    return _beginning(incomplete, named)


def containers(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the containers that hold slices, and their names."""
    waiting.allow(_LEDGER_S)
    try:
        with Ledger(as_is=True) as ledger:
            grants = ledger.grants()
    except XpuError:
        return []
    known = names.of(grants)
    called = {grant.container_id: known.of(grant) or "" for grant in grants}
    by_name = [(name, container[:12]) for container, name in called.items() if name]
    return _beginning(incomplete, [*called.items(), *by_name])


def drained(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """UUIDs of drained devices."""
    told = _marks()
    return _beginning(incomplete, [(uuid, marks.as_drained(why)) for uuid, why in told.drained.items()])


def reserved(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """UUIDs of reserved devices."""
    told = _marks()
    return _beginning(incomplete, [(uuid, marks.as_reserved(each)) for uuid, each in told.reserved.items()])


def reservations(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of reservations."""
    names = {each.name for each in _marks().reserved.values()}
    return _beginning(incomplete, [(name, "") for name in sorted(names) if name])


def _marks() -> marks.Marks:
    try:
        return marks.read()
    except XpuError:
        return marks.Marks({}, {})


def _beginning(incomplete: str, offered: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    """The pairs (word, meaning) with this beginning whose word is printable, without spaces: a file may have
    any name."""
    return [
        CompletionItem(word, help=help_)
        for word, help_ in offered
        if word.startswith(incomplete) and word.isprintable() and " " not in word
    ]
