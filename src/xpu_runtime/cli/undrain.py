"""`xpu undrain`: puts drained devices back into service."""

from __future__ import annotations

import click

from xpu_runtime.cli import completion, device_marks
from xpu_runtime.ledger import events
from xpu_runtime.vendors import marks


@click.command(short_help="Put a drained device back into service.")
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True, shell_complete=completion.drained)
def undrain(devices: tuple[str, ...]) -> None:
    """Give DEVICE (an index or UUID) to new containers again.

    \b
    Example:
      xpu undrain GPU-1f2e
    """
    device_marks.unmark(devices, marks.DRAINED, "is not drained", events.UNDRAINED, "in service again")
