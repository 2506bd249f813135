"""Commands' release of ended containers' slices, with a deadline in case a driver hangs."""

from __future__ import annotations

import click

from xpu_runtime import granting
from xpu_runtime.config.defaults import Config
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import enforce
from xpu_runtime.observe import driver_questions


def reap(config: Config) -> list[Grant]:
    """As `granting.reap`, with `clear`."""
    return granting.reap(config, clear)


def clear(config: Config, grants: list[Grant]) -> None:
    """As `granting.clear`; where a driver has to lift limits, and does not, that is said: the slices are free
    all the same."""
    if not any(enforce.must_lift(grant) for grant in grants):
        granting.clear(config, grants)
    elif problem := driver_questions.one(lambda: granting.clear(config, grants)).why:
        click.echo(f"xpu: limits of released slices may still be in force: {problem}", err=True)
