"""A node's offer to Kubernetes: IDs by resource, and how many of them are available. Pure functions.

The kubelet counts IDs and does not tell the pod that it asks for: the IDs of a container say nothing about
its slice's card (the allocation has it). So an ID names no card. One that did would often name another card
than the pod's, to all readers of IDs: exporters in PodResources, and from Kubernetes 1.36 on everyone in a
pod's allocatedResourcesStatus. The offer is a number: of the unused IDs, as many are healthy as there are
free units on the cards, and the others are not; docker, or pods through another resource, may have taken
those. A container's ID is healthy as long as the cards of that container are, by its pod's allocation. Reads
neither ledger nor driver.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.device_plugin.v1beta1 import MOST_BYTES, UNHEALTHY
from xpu_runtime.kubernetes.resources import CORES, MEMORY, SHARES, WHOLE, Resources, gib
from xpu_runtime.ledger.grants import Use
from xpu_runtime.placement import card_capacity
from xpu_runtime.request.units import show_exactly
from xpu_runtime.value import Value

#: Bytes of one entry of ListAndWatchResponse besides the ID: its own tag and length, those of the ID and of
#: the state, of one byte each, and the longer state.
_ENTRY_BYTES = 6 + len(UNHEALTHY)


class Card(Value):
    """A device of the node, a MIG device as well, as this module needs it."""

    uuid: str
    memory_bytes: int
    #: Bytes that may be granted of it.
    capacity: int
    #: Its fault; "": it is healthy.
    fault: str = ""
    #: Why no other pod gets any of it; "": they do.
    withheld: str = ""
    #: The share of all together.
    use: Use = Use()
    #: The share of others than pods.
    others: Use = Use()


class Offer(Value):
    """The IDs of a resource, in their order, and which of them may be had."""

    ids: tuple[str, ...] = ()
    healthy: frozenset[str] = frozenset()


class Waiting(Value):
    """Requests of pods bound to this node for a resource that the kubelet has not given them yet."""

    units: int = 0
    #: The part of these that is not in `Card.use`.
    not_allocated: int = 0


def units(resource: str, card: Card, resources: Resources) -> int:
    """How many units of `resource` a device has; none where its memory is not known (0)."""
    if not card.memory_bytes:
        return 0
    kind = resources.kind(resource)
    if kind == WHOLE:
        return 1
    if kind == MEMORY:
        return card.capacity // resources.memory_unit
    if kind in (SHARES, CORES):
        return 100
    raise _not_counted(kind)


def free_units(resource: str, card: Card, use: Use, resources: Resources) -> int:
    kind = resources.kind(resource)
    if kind == WHOLE:
        return int(not use.slices)
    if use.exclusive or not card.memory_bytes:
        return 0
    memory = card_capacity.left(card.capacity, use.memory_bytes, use.exclusive)
    cores = max(100 - use.cores, 0)
    if kind == SHARES:
        return card_capacity.shares_left(card.memory_bytes, memory, cores)
    if kind == MEMORY:
        return memory // resources.memory_unit
    if kind == CORES:
        return cores
    raise _not_counted(kind)


def _not_counted(kind: str) -> NotImplementedError:
    """For a new kind of resource nothing is offered: a wrong number would be worse."""
    return NotImplementedError(f"{kind}: its units cannot be counted yet")


@functools.cache
def _ids(resource: str, number: int) -> tuple[str, ...]:
    """The same strings each time, as there are thousands."""
    return tuple(f"{_prefix(resource)}{n}" for n in range(number))


def _prefix(resource: str) -> str:
    """The prefix of a resource's IDs, different for each resource: at a change a kubelet finds the pod of an
    ID by the ID alone (1.36, getPodAndContainerForDevice)."""
    return f"{resource.rpartition('/')[2]}-"


def ids_of(resource: str, cards: Sequence[Card], resources: Resources) -> tuple[str, ...]:
    """The IDs of all cards, in their order: one a unit."""
    return _ids(resource, _total(resource, cards, resources))


def _total(resource: str, cards: Sequence[Card], resources: Resources) -> int:
    return sum(units(resource, card, resources) for card in cards)


def offered(
    resource: str,
    cards: Sequence[Card],
    resources: Resources,
    allocated: Collection[str] | None,
    waiting: Waiting,
    sick: Collection[str] = (),
) -> Offer:
    """The IDs of `resource`, and which of them the kubelet may give out.

    `allocated`: pods' IDs; None if PodResources has not answered yet: then only the share of others than pods
    is subtracted, and the first so many IDs are healthy. The kubelet subtracts the given ones among these,
    and no others. So it may give out too many, which the ledger refuses. Offering none as healthy would be
    worse: running pods' IDs would count as broken. `sick`: of `allocated`, those of containers whose slice is
    on an unhealthy card.
    """
    names = ids_of(resource, cards, resources)
    open_cards = [card for card in cards if not card.fault and not card.withheld]
    if allocated is None:
        number = sum(free_units(resource, card, card.others, resources) for card in open_cards)
        return Offer(names, frozenset(names[:number]))
    free = sum(free_units(resource, card, card.use, resources) for card in open_cards)
    # A waiting pod needs its IDs, or the kubelet would fail it for good; a request without a reservation has
    # to be subtracted from the units that are free for others.
    number = free + waiting.units - min(waiting.not_allocated, free)
    # A pod keeps its IDs until it ends, those too that are not among the names any more, such as of an
    # earlier build: a kubelet that starts again fails a pod whose IDs are not in the list. As many others
    # are left out.
    known = frozenset(names)
    unused = [each for each in names if each not in allocated][: max(len(names) - len(allocated), 0)]
    listed = frozenset(unused).union(allocated)
    foreign = sorted(each for each in allocated if each not in known)
    healthy = frozenset(unused[:number]).union(each for each in allocated if each not in sick)
    return Offer((*(each for each in names if each in listed), *foreign), healthy)


def by_state(resource: str, offer: Offer, cards: Sequence[Card], resources: Resources) -> dict[str, int]:
    """The number of IDs that are available (or given), that belong to cards with a fault, that belong to
    drained or reserved ones, and that are taken elsewhere: by others than pods, or by pods through other
    resources."""
    rest = len(offer.ids) - len(offer.healthy)
    faulty = min(rest, _total(resource, [card for card in cards if card.fault], resources))
    closed = [card for card in cards if card.withheld and not card.fault]
    left = sum(free_units(resource, card, card.use, resources) for card in closed)
    withheld = min(rest - faulty, left)
    return {
        "healthy": len(offer.healthy),
        "unhealthy": faulty,
        "withheld": withheld,
        "elsewhere": rest - faulty - withheld,
    }


def check_size(cards: Sequence[Card], resources: Resources) -> None:
    """ConfigError where the list of a resource is too long for the kubelet: it would then have none of it."""
    for resource in resources.names:
        size = _size(resource, cards, resources)
        if size > MOST_BYTES and resources.kind(resource) != MEMORY:
            what = f"the list of {resource} for {len(cards)} devices has {size >> 20} MiB"
            raise ConfigError(
                f"{what}, and the kubelet accepts {MOST_BYTES >> 20} MiB",
                "have fewer MIG devices on this node",
            )
        if size > MOST_BYTES:
            raise ConfigError(
                f"kubernetes.memory_unit: {_unit_text(resources.memory_unit)}: the list of {resource} has "
                f"{size >> 20} MiB with it, and the kubelet accepts {MOST_BYTES >> 20} MiB",
                f"a unit that fits this node is {_unit_text(_unit_that_fits(resource, cards, resources))}",
            )


def _unit_text(unit: int) -> str:
    """As the configuration has it: 256MiB."""
    return gib(show_exactly(unit)).replace(" ", "")


def _size(resource: str, cards: Sequence[Card], resources: Resources) -> int:
    """Bytes of ListAndWatchResponse, with IDs of up to 127 bytes."""
    count = _total(resource, cards, resources)
    numbers = count + sum(max(count - int(10**digits), 0) for digits in range(1, len(str(count))))
    return count * (len(_prefix(resource)) + _ENTRY_BYTES) + numbers


def _unit_that_fits(resource: str, cards: Sequence[Card], resources: Resources) -> int:
    """The smallest power of two times the unit of the configuration; `resource` is memory."""
    while _size(resource, cards, resources) > MOST_BYTES:
        resources = resources.replace(memory_unit=2 * resources.memory_unit)
    return resources.memory_unit
