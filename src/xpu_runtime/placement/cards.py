"""Which of a node's cards serve one container, in plain numbers.

kube-scheduler may ask for ten thousand nodes at once: there is no object here for a card or a slice, only
lists of numbers, and a pod with one container that asks takes one loop over them. Knows no API, no name and
no UUID.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from xpu_runtime.placement.card_capacity import in_order
from xpu_runtime.placement.demand import Demand
from xpu_runtime.request.units import share_of

#: Groups of positions of cards: a container's cards all come from one group. Groups are tried in this order.
Groups = tuple[tuple[int, ...], ...]


class Shape:
    """A container's demand; `limits` as of Demand."""

    __slots__ = ("cores", "count", "is_whole", "limits", "memory", "percent")

    def __init__(self, demand: Demand) -> None:
        self.count = demand.count
        self.cores = demand.cores or 0
        self.memory = demand.memory_bytes
        self.is_whole = demand.is_whole
        self.percent = 100 if demand.is_whole else demand.memory_percent or 0
        self.limits = demand.limits

    def on(self, cards: Cards, position: int) -> int:
        """Bytes that it takes of a card: of a whole one all that could be granted."""
        if self.memory is not None:
            return self.memory
        if self.is_whole:
            return cards.capacities[position]
        return share_of(cards.totals[position], self.percent * 10_000)


class CardGroups(Protocol):
    """How cards of a node differ that are not all alike."""

    @property
    def of(self) -> Sequence[int]:
        """By position a number, the same for those that are alike."""

    def groups(self, shape: Shape) -> Groups:
        """Those that may serve a container."""


class VendorGroups:
    """Cards of several vendors, or that hold different limits: a container's are of one vendor, and hold the
    limits that it asks for."""

    __slots__ = ("_groups", "holds", "of", "vendors")

    def __init__(self, vendors: Sequence[str], holds: Sequence[tuple[bool, bool]]) -> None:
        """The vendor of each card, and whether limits of its memory, and of its cores, can be held."""
        self.vendors, self.holds = tuple(vendors), tuple(holds)
        every = list(dict.fromkeys(zip(self.vendors, self.holds)))
        self.of = tuple(every.index(each) for each in zip(self.vendors, self.holds))
        self._groups: dict[tuple[bool, bool], Groups] = {}

    def groups(self, shape: Shape) -> Groups:
        """The positions of each vendor's cards that hold its limits."""
        return self.groups_of(shape.limits)

    def groups_of(self, limits: tuple[bool, bool]) -> Groups:
        """The positions of each vendor's cards that hold such limits."""
        if limits not in self._groups:
            able = [
                position
                for position, holds in enumerate(self.holds)
                if all(can or not must for can, must in zip(holds, limits))
            ]
            self._groups[limits] = tuple(
                tuple(position for position in able if self.vendors[position] == vendor)
                for vendor in dict.fromkeys(self.vendors[position] for position in able)
            )
        return self._groups[limits]


class Cards:
    """A node's cards, without their use."""

    __slots__ = ("_all", "capacities", "kinds", "totals")

    def __init__(
        self, totals: Sequence[int], capacities: Sequence[int] = (), kinds: CardGroups | None = None
    ) -> None:
        """The bytes of each card, and those that may be granted (card_capacity.grantable; none: the same).
        `kinds`: only for cards that differ."""
        self.totals, self.kinds = totals, kinds
        self.capacities = capacities or totals
        self._all = (tuple(range(len(totals))),)

    def groups(self, shape: Shape) -> Groups:
        """The groups of cards; all cards for `shape` come from one of them."""
        return self._all if self.kinds is None else self.kinds.groups(shape)


def choose(
    cards: Cards, memory: Sequence[int], cores: Sequence[int], shape: Shape, binpack: bool
) -> tuple[int, ...] | None:
    """Positions of the cards for one container, ascending; None if too few have this much free.

    `memory` are the free bytes of each card (-1: it may not be used), `cores` its free percent. Of several
    groups the first one that has a place.
    """
    for group in cards.groups(shape):
        found = _of_group(cards, memory, cores, shape, binpack, group)
        if found is not None:
            return found
    return None


def _of_group(
    cards: Cards,
    memory: Sequence[int],
    cores: Sequence[int],
    shape: Shape,
    binpack: bool,
    group: Iterable[int],
) -> tuple[int, ...] | None:
    wanted, amount = shape.cores, shape.memory
    if shape.count == 1 and amount is not None:
        # As below, without a list: most pods that there are.
        best, found = -1, (0, 0)
        for position in group:
            if memory[position] >= amount and cores[position] >= wanted:
                free = memory[position], cores[position]
                if best < 0 or (free < found if binpack else free > found):
                    best, found = position, free
        return None if best < 0 else (best,)
    fitting = [
        position
        for position in group
        if memory[position] >= shape.on(cards, position) and cores[position] >= wanted
    ]
    if len(fitting) < shape.count:
        return None
    return tuple(sorted(in_order(fitting, memory, cores, binpack)[: shape.count]))
