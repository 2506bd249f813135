"""`xpu reserve`: keeps devices for the containers that name the reservation."""

from __future__ import annotations

import click

from xpu_runtime.cli import completion, device_marks
from xpu_runtime.ledger import events
from xpu_runtime.request.request import NAMES, is_name
from xpu_runtime.vendors import marks


def _name(context: click.Context, param: click.Parameter, value: str) -> str:
    if not is_name(value):
        raise click.BadParameter(f"{value[:60]!r} is not the name of a reservation: {NAMES}")
    return value


@click.command(short_help="Keep a device for containers that name a reservation.")
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True, shell_complete=completion.devices)
@click.option(
    "--for",
    "name",
    required=True,
    callback=_name,
    metavar="NAME",
    help="The reservation's name.",
    shell_complete=completion.reservations,
)
@click.option("--reason", default="", metavar="TEXT", help="The text in refusals and in `xpu devices`.")
def reserve(devices: tuple[str, ...], name: str, reason: str) -> None:
    """Give DEVICE (an index or UUID) only to new containers with XPU_RESERVATION=NAME.

    These containers get no other device. A reservation binds privileged containers too. It prevents
    accidents, not attacks: anyone who can set a container's variables can name any reservation. Containers
    that hold a slice of the device keep it until they end. A GPU stands for its MIG devices, except for one
    with a reservation of its own. A reservation stays across reboots, until `xpu unreserve`; repeat the
    command to change its name or reason.

    \b
    Example:
      xpu reserve GPU-1f2e --for team-a --reason "course until Friday"
      docker run --runtime=xpu -e XPU_RESERVATION=team-a -e XPU_MEM=4G IMAGE
    """
    found = marks.Reservation(name, marks.line(reason))
    before = marks.read().reserved
    text = f"for {name}: {found.reason}" if found.reason else f"for {name}"

    def said(uuid: str) -> str:
        was = before.get(uuid, found).name
        return f"reserved for {name}" + (f", and no longer for {was or 'nobody'}" if was != name else "")

    device_marks.mark(devices, lambda uuid: marks.reserve(uuid, found), events.RESERVED, text, said)
