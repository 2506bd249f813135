"""`xpu sim`: simulated devices, for machines that have no GPU.

It only starts, stops and shows them, by the simulator's own package, which an installation may leave out. No
other command knows that package.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TypedDict

import click

from xpu_runtime import paths
from xpu_runtime.cli.terminal.table import json_option, print_json, print_table
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.observe import driver_questions
from xpu_runtime.vendors import discovery


@click.group()
def sim() -> None:
    """Simulate GPUs on a machine that has none.

    The driver is simulated, and everything above it is real: NVML, CUDA, containers.

    \b
    Example:
      xpu sim up --topology 2xT4
      xpu devices
      xpu sim down
    """
    if importlib.util.find_spec("xpu_simulator") is None:
        raise XpuError(
            "the simulator is not installed",
            "install the package xpu-simulator; from a clone, `make install` installs it",
        )


@sim.command()
@click.option(
    "--topology",
    required=True,
    metavar="NAME|FILE",
    help="One of `xpu sim list`, also with a driver branch (4xT4-R580), or a YAML file of your own.",
)
@click.option(
    "--force", is_flag=True, help="Go on beside a real driver, or while processes use the present devices."
)
def up(topology: str, force: bool) -> None:
    """Bring simulated devices up.

    \b
    Example:
      xpu sim up --topology 4xT4
      xpu sim up --topology 4xT4-R580
      xpu sim up --topology ./mine.yaml
    """
    from xpu_simulator import simulator

    before = simulator.status()
    state = simulator.up(topology, force=force)
    _renew_cdi()
    news = "is already up" if before == state else "is up"
    devices = f"{state.gpus} device{'s' if state.gpus > 1 else ''}"
    driver = f"driver {state.driver} (CUDA {state.cuda})"
    click.echo(f"{state.topology} {news}: {devices} with {driver}, driver root {state.root}")
    click.echo("see the devices with `xpu devices`, end the simulation with `xpu sim down`")


@sim.command(short_help="Take the simulated devices down.")
def down() -> None:
    """Take the simulated devices down; programs that still run on them get errors.

    \b
    Example:
      xpu sim down
    """
    from xpu_simulator import simulator

    state = simulator.status()
    users = simulator.users()
    there = simulator.down()
    _renew_cdi()
    if not there:
        click.echo("nothing is up")
        return
    click.echo(f"{state.topology} is down" if state else "removed what was left of a simulation")
    if users:
        click.echo(f"processes that still used it: {', '.join(map(str, users))}")


def _renew_cdi() -> None:
    """Has the CDI file name the devices that are there now, where there is such a file."""
    if os.path.exists(paths.cdi_file()):
        try:
            discovery.renew_cdi(driver_questions.refreshed_inventory(load()))
        except XpuError as error:
            click.echo(f"xpu: {paths.cdi_file()} is as it was: {error}", err=True)


class TopologyJson(TypedDict):
    """A topology that can be simulated."""

    name: str
    description: str
    #: Its number of devices.
    gpus: int


class SimulationJson(TypedDict):
    """The simulation that is up."""

    topology: str
    #: Version of the driver that is simulated.
    driver: str
    #: Version of CUDA that it has.
    cuda: str
    #: The driver root.
    root: str
    #: Its number of devices.
    gpus: int
    #: The process id of the simulator's daemon.
    pid: int
    #: When the daemon began, in clock ticks since boot.
    started: int


class SimulationsJson(TypedDict):
    """The topologies that can be simulated, and the running simulation."""

    topologies: list[TopologyJson]
    #: Null: nothing is up.
    up: SimulationJson | None
    #: Processes that use the simulated devices, by their ids.
    processes: list[int]


@sim.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """Show the topologies, and the one that is up.

    \b
    Example:
      xpu sim list
    """
    from xpu_simulator import simulator

    state = simulator.status()
    known = simulator.topologies()
    if as_json:
        told: SimulationsJson = {
            "topologies": [
                {"name": each.name, "description": each.description, "gpus": each.gpus} for each in known
            ],
            "up": None
            if state is None
            else {
                "topology": state.topology,
                "driver": state.driver,
                "cuda": state.cuda,
                "root": state.root,
                "gpus": state.gpus,
                "pid": state.pid,
                "started": state.started,
            },
            "processes": simulator.users(),
        }
        print_json(told)
        return
    rows = [[entry.name, str(entry.gpus), entry.description] for entry in known]
    print_table(["TOPOLOGY", "GPUS", "DESCRIPTION"], rows)
    click.echo("Each also with a driver branch, such as 2xT4-R580; R615, the default, has memory limits.")
    click.echo(f"Driver branches: {', '.join(simulator.branches())}")
    click.echo(f"Up: {state.topology} (driver {state.driver}, {state.root})" if state else "Up: nothing")
