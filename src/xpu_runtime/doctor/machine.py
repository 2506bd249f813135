"""Facts about the node for several areas, asked once: settings, devices, grants.

Nothing is changed by asking: the driver is asked itself, and no cache is written.
"""

from __future__ import annotations

import os
from typing import Any

from xpu_runtime import paths
from xpu_runtime.config.defaults import DEFAULTS, Config
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import deadline
from xpu_runtime.value import Value
from xpu_runtime.vendors import discovery
from xpu_runtime.vendors.inventory import Inventory

#: Seconds. A card without persistence mode takes several to start; eight of them are started one by one.
_DRIVER_S = 30.0
_FILES_S = 10.0
_LEDGER_S = 3.0


class Machine(Value):
    """The node; None for facts that could not be read."""

    settings: Config
    #: The faults of the configuration file, a line each with its place.
    complaints: tuple[str, ...]
    driver_root: str
    simulated: bool
    inventory: Inventory | None
    #: Why there is no inventory, and the remedy.
    failure: str
    failure_todo: str
    grants: tuple[Grant, ...] | None
    is_root: bool


def ask() -> Machine:
    """Asks the node; takes as long as the driver does, and 50 s at most."""
    read = deadline.one(_settings, _FILES_S)
    settings, complaints = read.values[0] if read.values else (DEFAULTS, (read.error,))
    root, simulated = discovery.driver_root(settings)
    driver, ledger = deadline.together(
        [lambda: iter([_discover(root, simulated)]), lambda: iter([_grants()])], _DRIVER_S
    )
    failure = driver.error
    if driver.hung:
        failure = f"the driver in {root} does not answer within {_DRIVER_S:.0f} s"
    return Machine(
        settings,
        complaints,
        root,
        simulated,
        driver.values[0] if driver.values else None,
        failure,
        driver.todo or "see dmesg, and whether the driver's own tools (`nvidia-smi`) answer",
        ledger.values[0] if ledger.values else None,
        os.geteuid() == 0,
    )


def _settings() -> tuple[Config, tuple[str, ...]]:
    path = paths.config_file()
    if not os.path.lexists(path):
        return DEFAULTS, ()
    from xpu_runtime.config import compile as compiler

    settings, _, problems = compiler.read_config(path)
    return settings, tuple(problem.at(path) for problem in problems)


def _discover(root: str, simulated: bool) -> Inventory:
    from xpu_runtime.vendors import registry

    return registry.discover(root, simulated)


def _grants() -> tuple[Grant, ...]:
    path = paths.in_run_dir("ledger.db")
    if not os.path.exists(path):
        return ()
    waiting.allow(_LEDGER_S)
    with Ledger(path, as_is=True) as ledger:
        return tuple(ledger.grants())


def in_root(root: str, path: str) -> str:
    """Where a `path` of the driver root is on the host."""
    return os.path.join(root, path.lstrip("/"))


def plural(amount: int, what: str, several: str = "") -> str:
    """`1 container`, `2 containers`."""
    return f"{amount} {what if amount == 1 else several or what + 's'}"


def listed(words: list[Any], most: int = 4) -> str:
    """The first of `words`, and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(map(str, words[:most])) + more
