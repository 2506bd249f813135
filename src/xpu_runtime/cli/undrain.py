"""`xpu undrain`: puts drained devices back into service."""

from __future__ import annotations

import click

from xpu_runtime.cli.drain import uuid_of
from xpu_runtime.config.load import load
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger import events
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.vendors import discovery, drained


@click.command(short_help="Put a drained device back into service.")
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True)
def undrain(devices: tuple[str, ...]) -> None:
    """Give DEVICE (an index or UUID) to new containers again.

    \b
    Example:
      xpu undrain GPU-1f2e
    """
    # By its UUID also one that is not there any more.
    known = drained.reasons()
    gone = [device for device in devices if device in known]
    inventory = discovery.load(load()) if len(gone) < len(devices) else None
    for name in devices:
        uuid = name if inventory is None or name in known else uuid_of(inventory, name)
        if not drained.undrain(uuid):
            raise DeviceError(f"{name} is not drained", "see `xpu devices`")
        with Ledger() as ledger:
            ledger.note(events.UNDRAINED, "", [events.Part(uuid)])
        click.echo(f"{uuid} is in service again")
