"""`xpu events`: the history of slices and devices.

ledger/events.py has the kinds of events and their writers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TypedDict

import click

from xpu_runtime.cli import completion
from xpu_runtime.cli.terminal.screen import printable
from xpu_runtime.cli.terminal.table import memory, percent
from xpu_runtime.ledger.events import Event, Part
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.ledger.vocabulary import KINDS
from xpu_runtime.observe.containers import SHORTEST_START, timestamp
from xpu_runtime.observe.names import Names

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Between two looks of --follow.
_FOLLOW_S = 0.5
#: Events that are read at a time: 10,000 with the longest reasons are 80 MB.
_PIECE = 500
#: The width of the kind in a line.
_WIDTH = max(map(len, KINDS))


def _age(context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds."""
    if value is None:
        return None
    found = re.fullmatch("([0-9]{1,9})([smhd])", value)
    if not found:
        raise click.BadParameter(f"{value[:60]!r}: give a number and a unit: 90s, 30m, 1h or 2d")
    return int(found[1]) * _UNITS[found[2]]


_HELP = """List the history of this node's slices and devices.

The run folder keeps the last 10,000 events; it is empty after a reboot. A container's name is its name at the
time of its grant or refusal; --container also takes its present name.

\b
{kinds}

\b
Example:
  xpu events --since 1h
  xpu events --follow --json | jq 'select(.event == "refused").reason'
""".format(kinds="\n".join(f"{kind:<{_WIDTH}}  {meaning}" for kind, meaning in KINDS.items()))


@click.command(short_help="Show the history of slices and devices.", help=_HELP)
@click.option("--since", callback=_age, metavar="AGE", help="Only events of the last 90s, 30m, 1h or 2d.")
@click.option(
    "--container",
    metavar="ID",
    shell_complete=completion.containers,
    help="Only events of containers with this id, start of an id (3 characters), or name.",
)
@click.option(
    "--device",
    metavar="DEVICE",
    shell_complete=completion.devices,
    help="Only events of the device with this index or start of its UUID; refusals have no device.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object on each line, for scripts.")
@click.option(
    "-f", "--follow", is_flag=True, help="Keep printing new events; with --since 0s print nothing older."
)
def events(
    since: float | None, container: str | None, device: str | None, as_json: bool, follow: bool
) -> None:
    names, is_empty = Names(), True
    try:
        for found, grants in _pieces(0.0 if since is None else time.time() - since, follow):
            # Its events have a container's name at that time; a user may mean the present one.
            ids = {event.container_id for event in found if container or event.name is None}
            names.learn(grants, ids - {""})
            for event in found:
                if _is_wanted(event, container, device, names):
                    is_empty = False
                    name = names.of_event(event)
                    click.echo(json.dumps(_plain(event, name)) if as_json else _line(event, name))
            click.get_text_stream("stdout").flush()
    except KeyboardInterrupt:
        if not follow:
            raise
    if is_empty and not follow and (container or device):
        click.echo(_none_of(container, device), err=True)


def _pieces(oldest: float, follow: bool) -> Iterator[tuple[list[Event], list[Grant]]]:
    """Events that are no older, some at a time, with the grants of then; with `follow` for ever."""
    last, when = 0, 0.0
    while True:
        with Ledger() as ledger:
            found = ledger.history(last, when, oldest, _PIECE)
            grants = ledger.grants() if found else []
        if found:
            yield found, grants
            last, when = found[-1].id, found[-1].time
        if len(found) == _PIECE:
            continue
        if not follow:
            return
        time.sleep(_FOLLOW_S)


def _is_wanted(event: Event, container: str | None, device: str | None, names: Names) -> bool:
    if container is not None:
        is_start = len(container) >= SHORTEST_START and event.container_id.startswith(container)
        known = event.container_id, event.name, None if event.name == "" else names.of_id(event.container_id)
        if not is_start and container not in known:
            return False
    return device is None or any(
        part.index == device or part.uuid.startswith(device) for part in event.devices
    )


def _none_of(container: str | None, device: str | None) -> str:
    what = " and ".join(
        f"{kind} {printable(name)}" for kind, name in (("container", container), ("device", device)) if name
    )
    return f"xpu: there is no event of {what}"


def _line(event: Event, name: str | None) -> str:
    told = event.text.removeprefix(f"{event.kind}: ")  # a refusal says so itself
    what = "; ".join(filter(None, [*map(_of, event.devices), told]))
    words = [timestamp(event.time), event.kind.ljust(_WIDTH), event.container_id[:12].ljust(12)]
    return printable("  ".join([*words, *([f"({name})"] if name else []), what]).rstrip())


def _of(part: Part) -> str:
    name = f"GPU {part.index}" if part.index else part.uuid
    amounts = [memory(part.memory_bytes)] if part.memory_bytes is not None else []
    amounts += [f"{percent(part.cores)} of the cores"] if part.cores is not None else []
    return f"{name}: {', '.join(amounts)}" if amounts else name


class EventPartJson(TypedDict):
    """A device that an event is about."""

    uuid: str
    #: A GPU's index is a number, a MIG device's is text (`"0:1"`); null: it was not known.
    index: int | str | None
    #: Bytes that the container has from then on, or had until then; null: all of the device, or not said.
    memory_bytes: int | None
    #: Percent of the device's time; null: no cap, or not said.
    cores: int | None


class EventJson(TypedDict):
    """An event."""

    #: Grows from event to event; begins with 1 in a new ledger.
    id: int
    #: RFC 3339, UTC, whole seconds.
    time: str
    #: The kind.
    event: str
    #: Null: the event is of no container.
    container_id: str | None
    #: The container's name as the engine had it then; null: it is not known.
    name: str | None
    devices: list[EventPartJson]
    #: Why, in words; null: there is nothing to say.
    reason: str | None


def _plain(event: Event, name: str | None) -> EventJson:
    return {
        "id": event.id,
        "time": timestamp(event.time),
        "event": event.kind,
        "container_id": event.container_id or None,
        "name": name,
        "devices": [
            {
                "uuid": part.uuid,
                "index": plain_index(part.index) if part.index else None,
                "memory_bytes": part.memory_bytes,
                "cores": part.cores,
            }
            for part in event.devices
        ],
        "reason": event.text or None,
    }
