"""The shell's suggestions for an argument (TAB).

Made from files of the node: no driver is asked, and engines only for names, for a second at most. If
something is missing or wrong, nothing is suggested; the command itself prints the reason.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import BashComplete, CompletionItem

from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.observe import names
from xpu_runtime.request.cdi import KIND
from xpu_runtime.vendors import cdi_file, discovery, marks
from xpu_runtime.vendors.inventory import Inventory

#: Seconds to wait for a ledger that another process has locked.
_LEDGER_S = 1.0
#: Characters at which bash divides words besides spaces (COMP_WORDBREAKS), and that our values have.
_BREAKS = "=:"


def devices(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Indexes and UUIDs of the node's devices."""
    try:
        inventory = discovery.cached(discovery.driver_root(load())[0])
    except (XpuError, OSError):
        return []
    there = inventory.devices if inventory is not None else ()
    named = [(device.index, device.name) for device in there] + [(each.uuid, each.name) for each in there]
    return _beginning(incomplete, named)


def cdi_devices(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of our CDI devices, as engines take them."""
    try:
        config = load()
        root, is_simulated = discovery.driver_root(config)
        inventory = discovery.cached(root) or Inventory(root, is_simulated, (), (), ())
    except (XpuError, OSError):
        return []
    found = cdi_file.devices(inventory, config)
    return _beginning(
        incomplete, [(f"{KIND}={name}", " ".join(part.values())) for name, part in found.items()]
    )


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
    told = _marks()
    return _beginning(incomplete, [(uuid, marks.as_drained(why)) for uuid, why in told.drained.items()])


def reserved(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    told = _marks()
    return _beginning(incomplete, [(uuid, marks.as_reserved(each)) for uuid, each in told.reserved.items()])


def reservations(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = {each.name for each in _marks().reserved.values()}
    return _beginning(incomplete, [(name, "") for name in sorted(names) if name])


class Bash(BashComplete):
    """bash takes `a=b:c` for five words, and puts a suggestion in the place of the last one."""

    def get_completion_args(self) -> tuple[list[str], str]:
        words, last = super().get_completion_args()
        whole: list[str] = []
        for word in [*words, last]:
            if whole and word and (word[0] in _BREAKS or whole[-1][-1:] in _BREAKS):
                whole[-1] += word
            else:
                whole.append(word)
        before = whole[-1] if last.strip(_BREAKS) == "" else whole[-1][: -len(last)]
        # The value of --option=VALUE.
        self._before = before.partition("=")[2] if before.startswith("--") else before
        return whole[:-1], whole[-1]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self._before)}"


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
