"""`xpu unreserve`: gives reserved devices to everyone again."""

from __future__ import annotations

import click

from xpu_runtime.cli import completion, device_marks
from xpu_runtime.ledger import events
from xpu_runtime.vendors import marks


@click.command(short_help="Give a reserved device to everyone again.")
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True, shell_complete=completion.reserved)
def unreserve(devices: tuple[str, ...]) -> None:
    """Give DEVICE (an index or UUID) to new containers without a reservation again.

    \b
    Example:
      xpu unreserve GPU-1f2e
    """
    device_marks.unmark(devices, marks.RESERVED, "is not reserved", events.UNRESERVED, "for everyone again")
