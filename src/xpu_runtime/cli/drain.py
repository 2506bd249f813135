"""`xpu drain`: takes devices out of service for new slices."""

from __future__ import annotations

import click

from xpu_runtime.cli import completion, device_marks
from xpu_runtime.ledger import events
from xpu_runtime.vendors import marks


@click.command(short_help="Keep new containers off a device.")
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True, shell_complete=completion.devices)
@click.option("--reason", default="", metavar="TEXT", help="The text in refusals and in `xpu devices`.")
def drain(devices: tuple[str, ...], reason: str) -> None:
    """Keep new containers off DEVICE (an index or UUID), privileged ones too.

    Containers that hold a slice of it keep the slice until they end. A GPU stands for all of its MIG devices.
    The device stays drained across reboots, until `xpu undrain`; repeat the command to change the reason.

    \b
    Example:
      xpu drain GPU-1f2e --reason "fan"
      xpu drain 0 1
    """
    why = marks.line(reason)
    device_marks.mark(devices, lambda uuid: marks.drain(uuid, why), events.DRAINED, why, lambda _: "drained")
