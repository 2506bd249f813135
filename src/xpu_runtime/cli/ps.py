"""`xpu ps`: the slices, their containers, and the backends of their limits.

Only shows facts of the ledger and the backends; names no backend.
"""

from __future__ import annotations

import click

from xpu_runtime.cli.terminal import table, template
from xpu_runtime.cli.terminal.screen import Line, printable
from xpu_runtime.cli.terminal.table import (
    Column,
    json_option,
    lines,
    memory,
    print_json,
    print_lines,
    share,
    used_of,
    watch_option,
    watched,
    wide_option,
    width_of_window,
    wrapped,
)
from xpu_runtime.config.load import load
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.limits import pages, sharing, unaccounted, unaccounted_time
from xpu_runtime.observe import agent_status, containers, driver_questions
from xpu_runtime.observe.containers import SliceJson
from xpu_runtime.observe.names import Names
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Inventory

_ID = 12
#: The table's columns, by the fields of --format.
_HEADS = {
    "ID": "CONTAINER",
    "GPU": "GPU",
    "Memory": "MEMORY",
    "Used": "USED",
    "Cores": "CORES",
    "Got": "GOT",
    "EnforcedBy": "ENFORCED BY",
    "Mode": "MODE",
    "State": "STATE",
    "PID": "PID",
    "Created": "CREATED",
    "Name": "NAME",
}
_LEFT_OUT = ("PID", "CREATED", "MODE", "MEMORY", "ENFORCED BY", "GOT", "NAME", "HELD", "CORES")


class _Slices(Value):
    """The output: a JSON object and the fields of a row for each slice, and notes."""

    entries: list[SliceJson]
    rows: list[dict[str, str]]
    notes: list[str]


@click.command(short_help="List the slices that containers hold.")
@click.option("--no-trunc", is_flag=True, help="Print container ids in full.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the ids, in full.")
@template.option([*_HEADS, "Device"])
@wide_option
@watch_option
@json_option
def ps(no_trunc: bool, quiet: bool, template_: str | None, wide: bool, watch: bool, as_json: bool) -> None:
    """List the slices that containers hold, and reservations of pods.

    \b
      NAME     docker's name; in Kubernetes NAMESPACE/POD/CONTAINER; otherwise
               containerd's NAMESPACE/ID, with nerdctl its name for the id; a dash
               if the engine does not tell it in a second
      USED     memory of the container's processes, and its limit
      CORES    the cap. Without one: `equal turns` (the driver's time slices share
               the device among the containers that have work) or `side by side`
               (they run at the same time: mps)
      GOT      the share of the device's time that the container got in the 0.2
               seconds of this command, if its CORES are capped. It is below the
               cap while the container wants no more, or while others use the
               card. It flickers if one kernel takes 0.2 seconds or more; `xpu
               top` shows longer times.
      ENFORCED BY   the backend of each limit, and how strongly it holds: hard
               (the container cannot get round it), soft, or `unenforced` (booked,
               and held by nothing)

    `(2G unaccounted)` after USED is memory that the driver counts and the container's account does not,
    if it is more than 256M a process; `0% (95% unaccounted)` is the same for GOT, if it is more than 15
    %. Either way a program goes round the interposer libraries. For the second figure the command takes
    1.3 seconds longer. The state `reserved` is a Kubernetes pod's reservation, beyond the slices of its
    containers.

    On a terminal, columns without room are left out, and a line names them; HELD then shows how strongly
    memory and cores are held. --format takes the fields of the whole table, ID in full, and Device, the UUID;
    `--format json` prints the objects of --json, one on each line.

    \b
    Example:
      xpu ps
      xpu ps --format '{{.Name}} {{.Used}}'
      xpu ps --json | jq '.[].container_id'
    """
    if sum([quiet, template_ is not None, watch, as_json]) > 1:
        raise click.UsageError("Give one of -q, --format, --watch and --json.")
    if quiet:
        with PodLedger() as ledger:
            ids = dict.fromkeys(grant.container_id for grant in ledger.grants() if grant.slices)
        for each in ids:
            click.echo(printable(each))
        return
    names = Names()
    if watch:
        _read(names)  # a user without the right, or a node without a ledger, gets one line
        watched(lambda width: _page(width, names, no_trunc, wide))
        return
    told = _read(names)
    for note in told.notes:
        click.echo(f"xpu: {note}", err=True)
    if as_json:
        print_json(told.entries)
    elif template_ not in (None, template.TABLE):
        template.print_rows(template_, _HEADS, told.rows, told.entries)
    else:
        print_lines(_table(told, no_trunc, width_of_window(wide)))


def _page(columns: int, names: Names, no_trunc: bool, wide: bool) -> list[Line]:
    told = _read(names)
    notes = [line for note in told.notes for line in wrapped(note, columns, hang=2, style="yellow")]
    return [*_table(told, no_trunc, None if wide else columns), [], *notes]


def _table(told: _Slices, no_trunc: bool, width: int | None) -> list[Line]:
    cells = {field: [row[field] for row in told.rows] for field in _HEADS}
    if not no_trunc:
        cells["ID"] = [each[:_ID] for each in cells["ID"]]
    columns = {field: Column(head, cells[field]) for field, head in _HEADS.items()}
    held = Column("HELD", list(map(table.strengths, told.entries)))
    columns["EnforcedBy"] = columns["EnforcedBy"].replace(short=held)
    columns["State"] = columns["State"].replace(
        styles=[containers.STATES.get(each, "") for each in cells["State"]]
    )
    columns["Name"] = columns["Name"].replace(least=10, keeps_end=True)
    fields = list(columns)
    if width is not None:
        # For people the name is beside the id; for scripts the columns stay where they were.
        fields.remove("Name")
        fields[1:1] = ["Name"] if any(entry["name"] for entry in told.entries) else []
    return lines([columns[field] for field in fields], _LEFT_OUT, width)


def _read(names: Names) -> _Slices:
    with PodLedger() as ledger:
        grants, unused = ledger.grants(), ledger.reserved()
    notes: list[str] = []
    if grants and not containers.processes_are_known():
        notes.append("which of these still run is not known in this PID namespace")
    inventory = _inventory(notes) if grants else None
    used, beyond = _used(inventory, grants, notes) if inventory is not None else ({}, {})
    slices = [(grant, position, slice_) for grant in grants for position, slice_ in enumerate(grant.slices)]
    shares = driver_questions.shares(inventory, grants) if inventory is not None else sharing.got(grants)
    notes += unaccounted_time.warn(grants, shares)
    names.learn(grants)
    entries = [
        containers.entry(
            grant, position, used.get((grant.id, position)), beyond.get((grant.id, position)), shares, names
        )
        for grant, position, _ in slices
    ]
    for grant, position, slice_ in slices:
        if (got := shares.get((grant.id, position))) is not None and got.unmeasured:
            notes.append(
                f"container {grant.container_id}: its use of the time of GPU {slice_.device_index} "
                "cannot be measured now: estimates hold its cap, more strictly"
            )
    notes += _of_the_agent(entries)
    for grant in grants:
        notes += [f"container {grant.container_id}: {problem}" for problem in containers.problems(grant)]
    rows = [_row(entry, slice_.memory_bytes) for entry, (_, _, slice_) in zip(entries, slices)]
    reserved = list(map(containers.reserved, unused))
    entries += reserved
    rows += [_row(each, 0) for each in reserved]
    return _Slices(entries, rows, list(map(printable, notes)))


def _row(entry: SliceJson, booked: int) -> dict[str, str]:
    """`booked`: bytes that a container may have; 0 where no container has it."""
    used = used_of(entry["memory_used_bytes"], booked, entry["memory_unaccounted_bytes"])
    return {
        "ID": entry["container_id"] or "-",
        "GPU": "-" if entry["device_index"] is None else str(entry["device_index"]),
        "Memory": "whole device" if entry["memory_bytes"] is None else memory(entry["memory_bytes"]),
        "Used": used,
        "Cores": table.cores(entry),
        "Got": share(entry["cores_got_percent"], entry["cores_unaccounted_percent"]),
        "EnforcedBy": table.enforced(entry),
        "Mode": entry["mode"] or "-",
        "State": entry["state"],
        "PID": str(entry["pid"] or "-"),
        "Created": entry["created"] or "-",
        "Name": entry["name"] or "-",
        "Device": entry["device_uuid"],
    }


def _of_the_agent(entries: list[SliceJson]) -> list[str]:
    """Notes that the agent is needed and does not run, and that it holds a container more strictly."""
    running = agent_status.ask()
    if running is None:
        needed = any(pages.needs_agent(e["cores_sched"], e["cores_priority"]) for e in entries)
        return [containers.NO_AGENT] if needed else []
    return [
        f"container {each['container_id']} is held more strictly: {each['held_strictly']}"
        for device in running["devices"]
        for each in device["slices"]
        if each["held_strictly"]
    ]


def _inventory(notes: list[str]) -> Inventory | None:
    try:
        return driver_questions.inventory(load())
    except XpuError as error:
        notes.append(f"memory in use is not known: {error}")
        return None


def _used(
    inventory: Inventory, grants: list[Grant], notes: list[str]
) -> tuple[dict[tuple[int, int], int | None], unaccounted.Amounts]:
    """Bytes in use by grant and slice, None if not known; and bytes that accounts lack."""
    usage, beyond = driver_questions.usage_and_unaccounted(inventory, grants)
    used = {
        (grant.id, position): usage.in_use(grant, position)
        for grant in grants
        for position in range(len(grant.slices))
    }
    notes += [f"memory in use is not known: {problem}" for problem in usage.problems]
    notes += unaccounted.warn(grants, beyond)
    return used, beyond
