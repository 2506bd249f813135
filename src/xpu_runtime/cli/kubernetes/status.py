"""`xpu kubernetes status`: nodes and cards of a cluster, their free part, and the largest request that fits.

kubernetes/report.py makes the figures.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypedDict

import click

from xpu_runtime.cli.terminal import table
from xpu_runtime.cli.terminal.screen import Line
from xpu_runtime.cli.terminal.table import Column
from xpu_runtime.kubernetes import access, keys_in_use, report
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.report import Card, Node
from xpu_runtime.kubernetes.resources import gib
from xpu_runtime.request.units import show, show_exactly

#: Pods that have ended hold nothing.
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"
#: Nodes, or pods of a node, that a line names.
_MOST_NAMED = 4
_LEFT_OUT = ("DRIVER", "PLACED BY", "OTHERS", "MODEL", "PODS")


class CardJson(TypedDict):
    """A device of a node."""

    #: A MIG device's is `0:1`.
    index: str
    uuid: str
    model: str
    #: Bytes that may be granted.
    memory_bytes: int
    #: Bytes that a new pod can have.
    free_memory_bytes: int
    #: Percent of its time that a new pod can have.
    free_cores: int
    #: The number of pods that have something of it, or count as if they did.
    pods: int
    #: Bytes that containers outside of pods have.
    others_memory_bytes: int
    #: Percent of its time that containers outside of pods have.
    others_cores: int
    #: Whether a container can have all of it.
    whole: bool
    #: Why no new pod gets anything of it, the node's reason or the card's; null: pods do.
    why: str | None


class NodeJson(TypedDict):
    """A node with the device plugin."""

    name: str
    #: Version of the driver; null: not known.
    driver: str | None
    #: The program that chooses cards: `extender` or `node`; null: not known.
    placement: str | None
    #: Why nothing is known of its cards; null: it is.
    problem: str | None
    #: Why no new pod gets anything of its cards; null: pods do.
    why: str | None
    #: Pods that it has nothing reserved for, as NAMESPACE/NAME.
    waiting: list[str]
    cards: list[CardJson]


class ClusterJson(TypedDict):
    """The nodes of a cluster that have the device plugin."""

    nodes: list[NodeJson]


class KeyJson(TypedDict):
    """A key that signs assignments."""

    id: str
    #: Names of the nodes that have it.
    nodes: list[str]
    #: Names of the extender's nodes that lack it.
    missing: list[str]
    #: Pods whose assignments it signs, as NAMESPACE/NAME.
    pods: list[str]


class KeysJson(TypedDict):
    """The keys in use (`--keys`)."""

    keys: list[KeyJson]


@click.command(short_help="Show what is free in the cluster, card by card.")
@click.argument("names", metavar="[NODE]...", nargs=-1)
@click.option("--kubeconfig", type=click.Path(), help="Use this file, not KUBECONFIG or ~/.kube/config.")
@click.option("--context", help="A context of that file; by default its current one.")
@click.option("--keys", "of_keys", is_flag=True, help="Show the keys of assignments instead.")
@table.json_option
@table.wide_option
def status(
    names: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    of_keys: bool,
    as_json: bool,
    wide: bool,
) -> None:
    """Show the nodes' cards: what is free, and the largest request that fits there now.

    It reads nodes and pods from the API, with the rights of your kubeconfig (to list both).

    \b
      PLACED BY    the program that chooses a node's cards: the extender, or the node
               (kubernetes.placement there)
      OTHERS       granted to containers outside of pods, such as docker's
      CORES FREE   a dash if no memory is free: no pod can get them
      FITS         the most that one container can ask of the card: memory, and
               percent of its time; `whole` if the card is unused; or why no pod
               gets any of it: its fault, `cordoned`, `not ready`, or `plugin
               gone`

    A pod counts with its node's reservation for it. A pod without a reservation, because the node refused it,
    counts with its request until it is deleted; the lines below the table name it. Places that the extender
    holds for pods of a group count as free until they are bound; its metrics count them.

    --keys shows each key of assignments by its id: how many nodes have it, how many pods were placed with it,
    and which nodes lack it. A new key may sign when no node lacks it. An old one may go when no pod has it.

    \b
    Example:
      xpu kubernetes status
      xpu kubernetes status --keys
      xpu kubernetes status --json | jq '.nodes[].cards[] | select(.whole)'
    """
    api = Api(access.find(kubeconfig, context))
    nodes, _ = api.list("/api/v1/nodes", lambda node: node)
    pods, _ = api.list("/api/v1/pods", report.pod_of, fieldSelector=_LIVE)
    if of_keys:
        _show_keys(keys_in_use.keys(nodes, pods), as_json, wide)
        return
    found = report.named(report.nodes(nodes, pods), names)
    if as_json:
        told: ClusterJson = {"nodes": [_plain(node) for node in found]}
        table.print_json(told)
        return
    rows = [(node, card) for node in found for card in node.cards]
    if rows:
        table.print_lines(_table(rows, table.width_of_window(wide)))
    for node in found:
        if node.problem or not node.cards:
            click.echo(f"xpu: node {node.name}: {node.problem or 'no GPUs'}", err=True)
        if node.waiting:
            click.echo(_waiting(node), err=True)
    if units := _units(found):
        click.echo(f"xpu: nodes count memory in different units ({units}): see docs/kubernetes.md", err=True)
    if not found:
        click.echo("xpu: no node has xpu's device plugin: see docs/kubernetes.md", err=True)


def _units(nodes: list[Node]) -> str:
    """`1 GiB on a, b; 256 MiB on c` where nodes differ in memory_unit: the extender uses those of its own
    alone."""
    found: dict[int, list[str]] = {}
    for node in nodes:
        if node.cards:
            found.setdefault(node.cards[0].unit, []).append(node.name)
    shown = [f"{gib(show_exactly(unit))} on {_listed(found[unit])}" for unit in sorted(found)]
    return "; ".join(shown) if len(found) > 1 else ""


def _listed(names: Sequence[str]) -> str:
    left = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")


def _waiting(node: Node) -> str:
    why = "not yet, or refused: see their events"
    what = f"xpu: node {node.name} has nothing reserved for {_listed(node.waiting)} ({why})"
    return f"{what}; such a request counts as taken until its pod is deleted"


def _show_keys(keys: list[keys_in_use.Key], as_json: bool, wide: bool) -> None:
    if as_json:
        told: KeysJson = {
            "keys": [
                {
                    "id": each.id,
                    "nodes": list(each.nodes),
                    "missing": list(each.missing),
                    "pods": list(each.pods),
                }
                for each in keys
            ]
        }
        table.print_json(told)
        return
    if not keys:
        click.echo("xpu: no node reports a key: is kubernetes.placement extender on the nodes?", err=True)
        return
    columns = [
        Column("KEY", [each.id for each in keys], least=12),
        Column("NODES", [str(len(each.nodes)) for each in keys], is_number=True),
        Column("PODS", [str(len(each.pods)) for each in keys], is_number=True),
        Column("MISSING ON", [", ".join(each.missing) or "-" for each in keys], least=12),
    ]
    table.print_lines(table.lines(columns, (), table.width_of_window(wide)))


def _table(rows: list[tuple[Node, Card]], width: int | None) -> list[Line]:
    """Names of machines are long, and distinguish the rows: their common ending is left out first, then the
    columns of _LEFT_OUT, and only then the middle of a name."""
    columns = _columns(rows)
    names = columns[0].cells
    if width is None or table.width_of(columns) <= width:
        return table.lines(columns, _LEFT_OUT, width)
    end = _common_end(set(names))
    names = [name[: len(name) - len(end)] for name in names]
    always = [each for each in columns[1:] if each.head not in _LEFT_OUT]
    room = width - sum(each.narrowest + len(table.GAP) for each in always)
    columns[0] = columns[0].replace(cells=names, least=max(8, min(max(map(len, names)), room)))
    found = table.lines(columns, _LEFT_OUT, width)
    return found + (table.wrapped(f"All nodes' names end in {end}", width, style="dim") if end else [])


def _common_end(names: Collection[str]) -> str:
    """`.example.com` where all names end in it; "" where they have nothing in common, or are addresses."""
    parts = [name.split(".")[1:] for name in names]
    end: list[str] = []
    for labels in zip(*map(reversed, parts)):
        if len(set(labels)) > 1:
            break
        end.insert(0, labels[0])
    return f".{'.'.join(end)}" if end and not end[-1].isdigit() else ""


def _columns(rows: list[tuple[Node, Card]]) -> list[Column]:
    cards = [card for _, card in rows]
    return [
        Column("NODE", [node.name for node, _ in rows], least=8, keeps_end=True),
        Column("CARD", [card.index for card in cards]),
        Column("MODEL", [card.model for card in cards], least=8),
        Column("DRIVER", [node.driver for node, _ in rows]),
        Column("PLACED BY", [node.placement for node, _ in rows]),
        Column("PODS", [str(card.pods) for card in cards], is_number=True),
        Column("OTHERS", [_others(card) for card in cards]),
        Column("MEMORY FREE", [_free_memory(card) for card in cards]),
        Column(
            "CORES FREE",
            ["-" if card.why or not card.free_memory else f"{card.free_cores}%" for card in cards],
            is_number=True,
        ),
        Column("FITS", [card.why or fits(card) for card in cards], least=12),
    ]


def _free_memory(card: Card) -> str:
    """Ungranted memory is not free if no pod can get it."""
    if card.why:
        return f"-/{gib(show(card.memory))}"
    free, total = show(card.free_memory), show(card.memory)
    return f"{free[:-1] if free[-1] == total[-1] else gib(free)}/{gib(total)}"


def fits(card: Card) -> str:
    """The most that one container can ask of the card, in whole units of its node; `-`: nothing."""
    if card.is_unused:
        return "whole"
    memory = card.free_memory // card.unit * card.unit
    if not memory:
        return "-"
    shown = gib(show_exactly(memory))
    return f"{shown}, {card.free_cores}%" if card.free_cores else f"{shown} without a cap"


def _others(card: Card) -> str:
    if not card.others_memory and not card.others_cores:
        return "-"
    return f"{gib(show(card.others_memory))}, {card.others_cores}%"


def _plain(node: Node) -> NodeJson:
    return {
        "name": node.name,
        "driver": node.driver or None,
        "placement": node.placement or None,
        "problem": node.problem or None,
        "why": node.why or None,
        "waiting": list(node.waiting),
        "cards": [
            {
                "index": card.index,
                "uuid": card.uuid,
                "model": card.model,
                "memory_bytes": card.memory,
                "free_memory_bytes": 0 if card.why else card.free_memory,
                "free_cores": 0 if card.why else card.free_cores,
                "pods": card.pods,
                "others_memory_bytes": card.others_memory,
                "others_cores": card.others_cores,
                "whole": card.is_unused,
                "why": card.why or None,
            }
            for card in node.cards
        ],
    }
