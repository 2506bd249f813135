"""Why a pod does not fit on nodes, in words for `kubectl describe pod`, and the nearest request that fits.

kube-scheduler counts the nodes that give the same reason and joins the reasons to one message, of which an
event shows the first kilobyte. So a few nodes each get their own figures; of many all get one sentence, with
the figures of the best of them. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.devices import NodeDevices
from xpu_runtime.kubernetes.extender.objects import NodeSummary
from xpu_runtime.kubernetes.resources import Resources, gib
from xpu_runtime.ledger.refusal import spans
from xpu_runtime.placement import card_capacity
from xpu_runtime.placement.cards import Cards
from xpu_runtime.placement.demand import Demand, PodDemand
from xpu_runtime.placement.nearest import kept, nth
from xpu_runtime.placement.nearest import nearest as nearest_of
from xpu_runtime.request.units import show, show_exactly

#: So many nodes get figures of their own.
_MOST_NODES = 8
#: Groups of devices with equal figures, and containers, that are named.
_MOST_SHOWN = 8
#: Nodes on which a nearest request is looked for.
_LOOKED_AT = 32
_LIMITS = "a memory limit", "a cap on cores"
#: The reason that keeps a pod off nodes on which it would fit otherwise.
_HELD = "; it would fit without the places that are held for pods of groups not bound yet"


class Reasons:
    def __init__(
        self, cluster: Cluster, resources: Resources, pod: Mapping[str, Any], demand: PodDemand
    ) -> None:
        self._cluster = cluster
        self._resources = resources
        self._pod = pod
        self._demand = demand
        everything = demand.every
        #: The demand of the only container that asks; None: several ask.
        self._only = everything[0][1] if len(everything) == 1 else None
        self._asked = asked_by(everything)
        limits = [each.limits for _, each in everything]
        self._is_spread = any(each.count > 1 for _, each in everything)
        #: Whether a container asks for a limit on memory, and for one on cores.
        self._limits = any(memory for memory, _ in limits), any(cores for _, cores in limits)

    def of(self, full: Sequence[str], never: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """By its name why each node that is full now, and each where it never fits, does not serve."""
        impossible = self._cluster.why_not(never)
        _, shape = self._cluster.shape(self._demand)
        held = self._cluster.held_for_groups(full, shape, _LOOKED_AT)
        small = [name for name in never if name not in impossible] if impossible else never
        if len(full) + len(small) <= _MOST_NODES:
            found = {
                each.name: self._of_node(each, True, _HELD if each.name in held else "")
                for each in self._cluster.summaries(full)
            }
            impossible.update(
                {each.name: self._of_node(each, False) for each in self._cluster.summaries(small)}
            )
        else:
            found = dict.fromkeys(full, self._of_many(full, True, _HELD if held else ""))
            impossible.update(dict.fromkeys(small, self._of_many(small, False)))
        return found, impossible

    def _of_node(self, node: NodeSummary, is_free: bool, held: str = "") -> str:
        if node.why_not:
            return node.why_not  # since it was judged
        fits = self._fits(self._nearest([node]))
        of_one = ", of one vendor" if self._is_spread and _has_vendors(node.devices) else ""
        return f"node {node.name}: {self._devices(node, is_free)}, {self._asked} asked{of_one}{held}{fits}"

    def _of_many(self, names: Sequence[str], is_free: bool, held: str = "") -> str:
        if not names:
            return ""
        best = self._cluster.summaries(self._cluster.roomiest(names, _LOOKED_AT))
        nearest = self._nearest(best)
        shown = nearest[0] if nearest else best[0]
        where = f"node {shown.name} has {self._devices(shown, is_free)}"
        what = "without a place now" if is_free else "with GPUs that are too few or too small"
        return f"{what} ({where}), {self._asked} asked{held}{self._fits(nearest)}"

    def _fits(self, nearest: tuple[NodeSummary, Demand] | None) -> str:
        if nearest is None:
            return ""
        words = self._resources.as_limits(nearest[1], _limits(self._pod))
        return f"; the nearest request that fits now: {words}"

    def _devices(self, node: NodeSummary, is_free: bool) -> str:
        """`GPU 0 3 GiB free, GPU 1 2 GiB free`: the free part now; or the most that pods can have: `GPU 0 has
        15 GiB`."""
        has = node.devices
        memory, cores = (node.memory, node.cores) if is_free else (has.memory, has.cores)
        groups: dict[str, list[str]] = {}
        for position, index in enumerate(has.indexes):
            text = has.why.get(position) or self._lacks(has, position)
            text = text or self._figure(has.cards, position, memory[position], cores[position], is_free)
            if has.kinds is not None and _has_vendors(has):
                text += f" ({has.kinds.vendors[position]})"
            groups.setdefault(text, []).append(index)
        shown = [_devices(indexes, text) for text, indexes in list(groups.items())[:_MOST_SHOWN]]
        left = sum(len(indexes) for indexes in list(groups.values())[_MOST_SHOWN:])
        return ", ".join(shown + ([f"{left} more"] if left else []))

    def _lacks(self, has: NodeDevices, position: int) -> str:
        """Which of the limits that are asked for the device cannot hold; "": none."""
        if has.kinds is None:
            return ""
        asked = zip(_LIMITS, self._limits, has.kinds.holds[position])
        lacks = [words for words, is_asked, can in asked if is_asked and not can]
        return f"cannot hold {' and '.join(lacks)}" if lacks else ""

    def _figure(self, cards: Cards, position: int, memory: int, cores: int, is_free: bool) -> str:
        only, total, most = self._only, cards.totals[position], cards.capacities[position]
        if only is not None and only.is_whole:
            others = f"is {'partly' if memory else 'all'} used by containers outside of pods"
            return "unused" if memory == most else "in use" if is_free else others
        if only is not None and only.memory_bytes is None:
            amount = f"{card_capacity.shares_left(total, memory, cores)} shares"
        else:
            amount = gib(show(max(memory, 0), "G"))
            with_cores = only is None or only.cores is not None
            amount += f" and {max(cores, 0)}% of its cores" if with_cores else ""
        # Others have something of the rest, or pods may not have it.
        at_most = "" if memory == most else " for pods"
        return f"{amount} free" if is_free else f"has {amount}{at_most}"

    def _nearest(self, nodes: Iterable[NodeSummary]) -> tuple[NodeSummary, Demand] | None:
        """The request nearest to this one that fits on one of the nodes now, and that node."""
        if self._only is None:
            return None
        found = []
        for number, node in enumerate(nodes):
            best = nearest(self._only, node, self._resources.memory_unit)
            if best is not None:
                found.append((best[0], -number, node, best[1]))
        if not found:
            return None
        _, _, node, demand = max(found, key=lambda each: each[:2])
        return node, demand


def _has_vendors(has: NodeDevices) -> bool:
    return has.kinds is not None and len(set(has.kinds.vendors)) > 1


def nearest(demand: Demand, node: NodeSummary, unit: int) -> tuple[tuple[int, float], Demand] | None:
    """The request nearest to `demand` that fits on the node, and its nearness (more is nearer): as many
    devices with less of each, or fewer devices."""
    kinds, has = node.devices.kinds, node.devices
    # 100 % of the cores is no cap, and the nearest request may have less.
    limits = not demand.is_whole, bool(demand.cores)
    groups: Iterable[Sequence[int]] = (range(len(has.uuids)),) if kinds is None else kinds.groups_of(limits)
    found = []
    for group in groups:
        best = _nearest_of(node, [position for position in group if node.memory[position] > 0], demand, unit)
        found += [] if best is None else [best]
    return max(found, key=lambda each: each[0], default=None)


def _nearest_of(
    node: NodeSummary, positions: list[int], demand: Demand, unit: int
) -> tuple[tuple[int, float], Demand] | None:
    """The same for devices of one kind."""
    cards, memory, cores = node.devices.cards, node.memory, node.cores
    if demand.is_whole:
        count = min(sum(memory[each] == cards.capacities[each] for each in positions), demand.count)
        return ((count, 1.0), demand.replace(count=count)) if count else None
    if demand.memory_bytes is not None:
        free = [(memory[each], cores[each]) for each in positions]
        best = nearest_of(free, demand.memory_bytes, demand.cores or 0, demand.count, unit, 1)
        if best is None:
            return None
        count, amount, percent = best
        near = kept(amount, demand.memory_bytes) * kept(percent, demand.cores or 0)
        return (count, near), Demand(count, amount, percent or None)
    wanted = demand.memory_percent or 0
    shares = [card_capacity.shares_left(cards.totals[each], memory[each], cores[each]) for each in positions]
    for count in range(demand.count, 0, -1):
        percent = min(nth(shares, count), wanted)
        if percent:
            return (count, kept(percent, wanted)), Demand(count, None, percent, percent)
    return None


def asked_by(demands: Sequence[tuple[str, Demand]]) -> str:
    """`4 GiB and 30% of its cores`, as events have it (verbs.py has what kube-scheduler takes); of several
    containers each with its name."""
    if len(demands) == 1:
        return _asked(demands[0][1])
    shown = [f"{_asked(demand)} for {name}" for name, demand in demands[:_MOST_SHOWN]]
    left = len(demands) - _MOST_SHOWN
    return ", ".join(shown + ([f"{left} more"] if left > 0 else []))


def _asked(demand: Demand) -> str:
    if demand.is_whole:
        return f"{demand.count} whole GPU{'s' if demand.count > 1 else ''}"
    if demand.memory_bytes is None:
        each = f"{demand.memory_percent} shares"
    else:
        each = gib(show_exactly(demand.memory_bytes, "G"))
        each += f" and {demand.cores}% of its cores" if demand.cores else ""
    return f"{each} on each of {demand.count} GPUs" if demand.count > 1 else each


def _devices(indexes: list[str], text: str) -> str:
    """`GPU 0 3 GiB free`, `GPUs 1-4 each 2 GiB free`, `GPUs 1-4 each have 15 GiB`."""
    kind = "MIG device" if ":" in indexes[0] else "GPU"
    if len(indexes) == 1:
        return f"{kind} {indexes[0]} {text}"
    verb, _, rest = text.partition(" ")
    words = {"has": f"each have {rest}", "is": f"are {rest}"}.get(verb, text)
    return f"{kind}s {spans(indexes)} {'each ' if text[0].isdigit() else ''}{words}"


def _limits(pod: Mapping[str, Any]) -> dict[str, Any]:
    """All names that the pod's containers use in their limits."""
    spec = pod.get("spec") or {}
    found: dict[str, Any] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        found.update((container.get("resources") or {}).get("limits") or {})
    return found
