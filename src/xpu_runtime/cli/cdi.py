"""`xpu cdi`: the file by which engines give slices as CDI devices, without our runtime.

vendors/cdi_file.py has its content.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Collection, Sequence
from typing import TypedDict

import click

from xpu_runtime import paths, textfile
from xpu_runtime.cli.terminal.table import json_option, print_json, print_table
from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.errors import ConfigError, DeviceError, did_you_mean
from xpu_runtime.observe import driver_questions
from xpu_runtime.request.cdi import KIND, VARIABLES, variable
from xpu_runtime.request.units import parse_memory
from xpu_runtime.vendors import cdi_file as content
from xpu_runtime.vendors import discovery
from xpu_runtime.vendors.inventory import Inventory


@click.group()
def cdi() -> None:
    """Give slices as CDI devices, without our runtime.

    \b
    Example:
      xpu cdi generate
      docker run --device yoyoworks.com/xpu=4g IMAGE
    """


@cdi.command(short_help="Write the CDI file that engines read.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="Another file, in JSON if its name ends with .json; - is standard output.",
)
def generate(output: str | None) -> None:
    """Write the CDI file that engines read, /etc/cdi/yoyoworks.com-xpu.yaml: the sizes of the configuration,
    and this node's devices.

    The package writes it when you install it. xpu writes it again when the devices change. Run this command
    after you have changed `cdi.sizes`. Another program's file at this path is left alone.

    \b
    Example:
      xpu cdi generate
      xpu cdi generate --output -
    """
    config = load()
    inventory = _inventory(config)
    text = content.text(inventory, config)
    if output == "-":
        click.echo(text, nl=False)
        return
    path = output or paths.cdi_file()
    if not output:
        if os.path.exists(path) and content.there(path) is None:
            raise ConfigError(
                f"{path} was not written by `xpu cdi generate`", "move it away, then do this again"
            )
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    else:
        path = textfile.replaceable(path)
        if output.endswith(".json"):
            text = json.dumps(content.document(inventory, config), indent=2) + "\n"
    content.write(path, text)
    count = len(content.devices(inventory, config))
    click.echo(f"{path}: {count} devices; see them with `xpu cdi list`")


class CdiDeviceJson(TypedDict):
    """A device that an engine can be asked for."""

    #: The name for engines: `yoyoworks.com/xpu=4g`.
    name: str
    #: The request that it stands for, as variables; empty: the container's own say it.
    request: dict[str, str]


@cdi.command(name="list", short_help="Show the CDI devices, by their names for engines.")
@json_option
def list_(as_json: bool) -> None:
    """Show the CDI devices that `xpu cdi generate` would write now, by their names for engines.

    \b
    Example:
      xpu cdi list
    """
    config = load()
    found = content.devices(_inventory(config), config)
    if as_json:
        told: list[CdiDeviceJson] = [
            {"name": f"{KIND}={name}", "request": _requested(part)} for name, part in found.items()
        ]
        print_json(told)
        return
    rows = [
        [f"{KIND}={name}", " ".join(f"{key}={value}" for key, value in _requested(part).items()) or "-"]
        for name, part in found.items()
    ]
    print_table(["DEVICE", "REQUEST"], rows)


def _requested(part: dict[str, str]) -> dict[str, str]:
    return {VARIABLES[key]: value for key, value in part.items()}


def _inventory(config: Config) -> Inventory:
    """The node's devices; none where the driver cannot be asked, as sizes need none of it."""
    try:
        return driver_questions.refreshed_inventory(config)
    except DeviceError as error:
        click.echo(f"xpu: whole devices are left out: {error}", err=True)
        root, is_simulated = discovery.driver_root(config)
        return Inventory(root, is_simulated, (), (), ())


def variables_of(devices: Sequence[str], inventory: Inventory, config: Config) -> list[str]:
    """The variables that an engine adds for `devices`, in the words of `--device`. click.UsageError if one is
    not ours."""
    known = {
        f"{KIND}={name}": variable(name, part) for name, part in content.devices(inventory, config).items()
    }
    for device in devices:
        if device not in known:
            text = f"there is no CDI device {device!r} of ours: `xpu cdi list` shows them"
            raise click.UsageError("; ".join(filter(None, (text, _nearest(device, known, config)))))
    return [known[device] for device in devices]


def _nearest(device: str, known: Collection[str], config: Config) -> str:
    """`did you mean …?` for a device that is not `known`: it lacks the kind, or is between two sizes."""
    meant = f"{KIND}={device.rpartition('=')[2]}".lower()
    wanted = _bytes(meant.rpartition("=")[2])
    if wanted is None or meant in known:
        return did_you_mean(meant, known)
    amounts = {f"{KIND}={size['name']}": _bytes(str(size.get("mem", ""))) for size in config.cdi_sizes}
    sizes = sorted((amount, name) for name, amount in amounts.items() if amount is not None)
    at = bisect.bisect([amount for amount, _ in sizes], wanted)
    nearest = [name for _, name in sizes[max(at - 1, 0) : at + 1]]
    return f"did you mean {' or '.join(nearest)}?" if nearest else ""


def _bytes(text: str) -> int | None:
    """The amount of memory in `text`; None if it is none, or a share of a device."""
    try:
        return parse_memory(text).bytes
    except ValueError:
        return None


def notes(inventory: Inventory, config: Config) -> list[str]:
    """A note if engines do not know the devices as they are now."""
    path = paths.cdi_file()
    try:
        is_right = content.there(path) == content.text(inventory, config)
    except OSError:
        is_right = False
    return [] if is_right else [f"{path}, which engines read, is not there or stale: xpu cdi generate"]
