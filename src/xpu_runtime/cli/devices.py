"""`xpu devices`: the node's devices, with the granted and the used part.

Names no vendor and no backend: both have their own names.
"""

from __future__ import annotations

from typing import TypedDict

import click

from xpu_runtime.cli.terminal import template
from xpu_runtime.cli.terminal.screen import Line
from xpu_runtime.cli.terminal.table import (
    Column,
    json_option,
    lines,
    memory,
    percent,
    print_json,
    print_lines,
    share,
    watch_option,
    watched,
    wide_option,
    width_of_window,
    wrapped,
)
from xpu_runtime.config.load import load
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import Use
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import choose, registry
from xpu_runtime.linux.deadline import Answer
from xpu_runtime.observe import driver_questions
from xpu_runtime.value import Value
from xpu_runtime.vendors import discovery, marks
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors import registry as vendors
from xpu_runtime.vendors.inventory import Device, Inventory
from xpu_runtime.vendors.vendor import WHOLE, Sensors

#: The table's columns, by the fields of --format.
_HEADS = {
    "Index": "INDEX",
    "Name": "NAME",
    "Memory": "MEMORY",
    "Used": "USED",
    "Util": "UTIL",
    "Granted": "GRANTED",
    "Cores": "CORES",
    "Slices": "SLICES",
    "LimitsBy": "LIMITS BY",
    "State": "STATE",
    "UUID": "UUID",
}
_LEFT_OUT = ("UUID", "LIMITS BY", "SLICES", "UUID", "UTIL", "CORES", "USED", "NAME")
#: How many characters of a UUID a narrow window shows: its start is enough to tell it apart.
_UUID = 12


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Print only the UUIDs.")
@template.option(tuple(_HEADS))
@wide_option
@watch_option
@json_option
def devices(quiet: bool, template_: str | None, wide: bool, watch: bool, as_json: bool) -> None:
    """List the devices of this node and what is granted of each.

    It asks the driver again, so that new containers get a changed MIG layout.

    \b
      MEMORY       the total less the driver's own part: less than nvidia-smi's
               total
      USED, UTIL   memory and share of time in use by all processes, as the driver
               reports them; a dash if it does not
      GRANTED, CORES   granted to containers, with reservations of pods
      LIMITS BY    the backend that would hold a slice's memory limit, and how
               strongly; for a whole MIG device: the hardware

    A drained device gets no new slices (`xpu drain`). A reserved one gets only those of containers that name
    its reservation (`xpu reserve`).

    On a terminal, columns without room are left out, and a line names them. --format takes the fields of the
    whole table; `--format json` prints the objects of --json, one on each line.

    \b
    Example:
      xpu devices --watch
      xpu devices --format '{{.Index}} {{.Used}}'
      xpu devices --json | jq '.[] | select(.slices == 0).uuid'
    """
    if sum([quiet, template_ is not None, watch, as_json]) > 1:
        raise click.UsageError("Give one of -q, --format, --watch and --json.")
    inventory, hangs = _refreshed()
    if quiet:
        for device in inventory.devices:
            click.echo(device.uuid)
        for problem in hangs:
            click.echo(f"xpu: {problem}", err=True)
        return
    told = _read(inventory, hangs)
    if as_json:
        print_json(told.entries)
    elif template_ not in (None, template.TABLE):
        template.print_rows(template_, _HEADS, told.rows, told.entries)
    elif not told.rows:
        raise DeviceError(node.why_empty(inventory))
    elif watch:
        watched(lambda columns: _page(None if wide else columns))
        return
    else:
        print_lines(_table(inventory, told, width_of_window(wide)))
    for problem in told.problems:
        click.echo(f"xpu: {problem}", err=True)


class DeviceJson(TypedDict):
    """A device of the node."""

    #: A GPU's index is a number, a MIG device's is text (`"0:1"`).
    index: int | str
    uuid: str
    name: str
    #: Bytes that containers can have: without what the driver keeps for itself.
    memory_bytes: int
    #: Bytes in use by any process; null: not known.
    memory_used_bytes: int | None
    #: Bytes granted to containers or reserved for pods.
    memory_granted_bytes: int
    #: The part of these bytes that is reserved for pods and not yet granted to a container.
    memory_reserved_bytes: int
    #: Percent of the device's time in use by any process; null: not known.
    utilization_percent: float | None
    #: Percent of the device's time granted as caps or reserved for pods.
    cores_granted: int
    #: The part of these percent that is reserved for pods and not yet granted to a container.
    cores_reserved: int
    #: Slices granted on it.
    slices: int
    #: False: the device has a fault.
    healthy: bool
    #: Why it is drained (`xpu drain`), which may be empty; null: it is not.
    drained: str | None
    #: The reservation that it is kept for (`xpu reserve`); null: none.
    reserved_for: str | None
    #: Why it is reserved, which may be empty; null: it is not.
    reserved_reason: str | None
    #: Whether `xpu sim` simulates it.
    simulated: bool
    #: The backend that would hold the memory limit of a slice on it.
    memory_backend: str | None
    #: `hard`, `soft` or `unenforced`.
    memory_strength: str | None


class _Devices(Value):
    """The output: a JSON object and the fields of a row for each device, and notes."""

    entries: list[DeviceJson]
    rows: list[dict[str, str]]
    problems: list[str]


def _read(inventory: Inventory, hangs: list[str]) -> _Devices:
    told = marks.read()
    entries, problems = _entries(inventory, told, hangs)
    rows = [_row(entry, _state(entry, device, told)) for entry, device in zip(entries, inventory.devices)]
    return _Devices(entries, rows, [*inventory.problems, *problems])


def _refreshed() -> tuple[Inventory, list[str]]:
    """The drivers' present devices; if a driver hangs, its last known ones, with a note."""
    config = load()
    try:
        return driver_questions.refreshed_inventory(config), []
    except driver_questions.DriverHangsError as error:
        known = discovery.cached(discovery.driver_root(config)[0])
        if known is None:
            raise
        return known, [f"these are the driver's last known devices, and their use is not known: {error}"]


def _page(width: int | None) -> list[Line]:
    inventory, hangs = _refreshed()
    told = _read(inventory, hangs)
    problems = [line for each in told.problems for line in wrapped(each, width, hang=2, style="yellow")]
    return [*_table(inventory, told, width), [], *problems]


def _entries(inventory: Inventory, told: marks.Marks, hangs: list[str]) -> tuple[list[DeviceJson], list[str]]:
    """A JSON object for each device, and the questions that failed: none waits for a driver that hangs."""
    with Ledger() as ledger:
        uses = ledger.uses()
    answer = Answer(()) if hangs else driver_questions.one(lambda: _asked(inventory))
    sensors, busy, errors = answer.values[0] if answer.values else ({}, {}, [])
    errors += [answer.why] if answer.error else []
    problems = [
        *hangs,
        *(f"memory and time in use are not known: {error}" for error in dict.fromkeys(errors)),
    ]
    entries: list[DeviceJson] = []
    for device in inventory.devices:
        use = uses.get(device.uuid, Use())
        reserved = told.reservation(device)
        held = choose.for_memory(inventory, device)
        whole = busy.get(device.uuid, {}).get(WHOLE)
        entries.append(
            {
                "index": plain_index(device.index),
                "uuid": device.uuid,
                "name": device.name,
                "memory_bytes": device.memory_bytes,
                "memory_used_bytes": sensors.get(device.uuid, Sensors()).memory_used_bytes,
                "memory_granted_bytes": use.booked(device.memory_bytes),
                "memory_reserved_bytes": use.reserved(device.memory_bytes),
                "utilization_percent": None if whole is None else round(100 * whole, 1),
                "cores_granted": use.cores,
                "cores_reserved": use.reserved_cores,
                "slices": use.slices,
                "healthy": device.fault is None,
                "drained": told.why_drained(device),
                "reserved_for": reserved.name if reserved else None,
                "reserved_reason": reserved.reason if reserved else None,
                "simulated": inventory.simulated,
                "memory_backend": held.memory_backend,
                "memory_strength": held.memory_strength,
            }
        )
    return entries, problems


def _asked(
    inventory: Inventory,
) -> tuple[dict[str, Sensors], dict[str, dict[int, float]], list[str]]:
    """Drivers' devices and their use, and the questions that failed. Any of it can hang."""
    errors: list[str] = []
    sensors = vendors.sensors(inventory, errors)
    busy: dict[str, dict[int, float]] = {}
    try:
        busy = vendors.utilization(inventory, whole=True, tell=errors.append)()
    except DeviceError as error:  # of all of them
        errors.append(str(error))
    return sensors, busy, errors


def _row(entry: DeviceJson, state: str) -> dict[str, str]:
    return {
        "Index": str(entry["index"]),
        "Name": entry["name"],
        "Memory": memory(entry["memory_bytes"]),
        "Used": memory(entry["memory_used_bytes"]),
        "Util": share(entry["utilization_percent"]),
        "Granted": memory(entry["memory_granted_bytes"]),
        "Cores": percent(entry["cores_granted"]),
        "Slices": str(entry["slices"]),
        "LimitsBy": _held_by(entry),
        "State": state,
        "UUID": entry["uuid"],
    }


def _table(inventory: Inventory, told: _Devices, width: int | None) -> list[Line]:
    rows = told.rows
    columns = {field: Column(head, [row[field] for row in rows]) for field, head in _HEADS.items()}
    columns["Name"] = columns["Name"].replace(least=12, keeps_end=True)
    columns["State"] = columns["State"].replace(least=10, styles=list(map(_style, told.entries)))
    start = Column("UUID", [row["UUID"][:_UUID] for row in rows])
    columns["UUID"] = columns["UUID"].replace(short=start)
    found = lines(list(columns.values()), _LEFT_OUT, width)
    kind = "simulated " if inventory.simulated else ""
    summaries = [wrapped(f"{kind}{driver.summary}", width) for driver in inventory.drivers]
    return [*found, [], *(line for each in summaries for line in each)]


def _style(entry: DeviceJson) -> str:
    if not entry["healthy"]:
        return "red"
    return "green" if entry["drained"] is None and entry["reserved_for"] is None else "yellow"


def _state(entry: DeviceJson, device: Device, told: marks.Marks) -> str:
    drained, reserved = told.why_drained(device), told.reservation(device)
    states = [marks.as_drained(drained)] if drained is not None else []
    states += [marks.as_reserved(reserved)] if reserved is not None else []
    states = [*states, *([device.fault] if device.fault else [])] or ["healthy"]
    for_pods = [memory(entry["memory_reserved_bytes"])] if entry["memory_reserved_bytes"] else []
    for_pods += [f"{percent(entry['cores_reserved'])} of the cores"] if entry["cores_reserved"] else []
    return "; ".join([*states, *([f"{' and '.join(for_pods)} reserved for pods"] if for_pods else [])])


def _held_by(entry: DeviceJson) -> str:
    if entry["memory_backend"] == registry.NONE:
        return "nothing"
    return f"{entry['memory_backend']} ({entry['memory_strength']})"
