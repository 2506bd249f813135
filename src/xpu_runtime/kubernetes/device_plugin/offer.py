"""What a node offers to Kubernetes: IDs by resource, and how many of them may be had. Pure functions.

The kubelet counts IDs and knows no cards: which of them it gives to whom says nothing on where a container's
slice is (that is the reservation's to say). So what is told is a number: of the IDs that nobody has, as many
are healthy as there are units free on the cards, and the others are not, whoever has taken those: docker, or
pods through another resource. IDs of a card that is not healthy are all unhealthy, IDs of one that is drained
or reserved where no pod has them. Reads neither ledger nor driver.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Sequence

from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.device_plugin.v1beta1 import MOST_BYTES, UNHEALTHY
from xpu_runtime.kubernetes.resources import CORES, MEMORY, SHARES, WHOLE, Resources, gib
from xpu_runtime.ledger.grants import Use
from xpu_runtime.request.units import show_exactly
from xpu_runtime.value import Value

#: Between a device's UUID and a number; as others have it, whose tools look for what is before it.
_SEPARATOR = "::"
#: What one entry of ListAndWatchResponse has besides the ID: four tags and lengths, and the longer state.
_ENTRY_BYTES = 6 + len(UNHEALTHY)


class Card(Value):
    """A device of the node, a MIG device as well, as this module needs it."""

    uuid: str
    memory_bytes: int
    #: What is wrong with it; "": it is healthy.
    fault: str = ""
    #: Why no other pod gets any of it; "": they do.
    withheld: str = ""
    #: What everybody has of it.
    use: Use = Use()
    #: What those have who are no pods.
    others: Use = Use()


class Offer(Value):
    """The IDs of a resource, in their order, and which of them may be had."""

    ids: tuple[str, ...] = ()
    healthy: frozenset[str] = frozenset()


class Waiting(Value):
    """What pods that are bound to this node ask of a resource, and the kubelet has not given them yet."""

    units: int = 0
    #: Of these, what is not in `Card.use`.
    not_reserved: int = 0


def units(resource: str, memory_bytes: int, resources: Resources) -> int:
    """How many units of `resource` a device with so much memory has; none where that is not known (0)."""
    if not memory_bytes:
        return 0
    kind = resources.kind(resource)
    if kind == WHOLE:
        return 1
    if kind == MEMORY:
        return memory_bytes // resources.memory_unit
    if kind in (SHARES, CORES):
        return 100
    raise _not_counted(kind)


def free_units(resource: str, card: Card, use: Use, resources: Resources) -> int:
    """How many units of `resource` are left of a card of which `use` is taken."""
    kind = resources.kind(resource)
    if kind == WHOLE:
        return int(not use.slices)
    if use.exclusive or not card.memory_bytes:
        return 0
    memory, cores = max(card.memory_bytes - use.memory_bytes, 0), max(100 - use.cores, 0)
    if kind == SHARES:
        return min(memory * 100 // card.memory_bytes, cores)
    if kind == MEMORY:
        return memory // resources.memory_unit
    if kind == CORES:
        return cores
    raise _not_counted(kind)


def _not_counted(kind: str) -> NotImplementedError:
    """Of a kind that is new: nothing is offered at all, rather than a number that means something else."""
    return NotImplementedError(f"{kind}: its units cannot be counted yet")


@functools.cache
def _ids(uuid: str, number: int) -> tuple[str, ...]:
    """The IDs of a device with so many units; the same strings each time, as there are thousands."""
    return tuple(f"{uuid}{_SEPARATOR}{n}" for n in range(number))


def ids_of(resource: str, card: Card, resources: Resources) -> tuple[str, ...]:
    """The IDs of a card, in their order."""
    number = units(resource, card.memory_bytes, resources)
    return (card.uuid,)[:number] if resource == WHOLE else _ids(card.uuid, number)


def card_of(device_id: str) -> str:
    """The UUID of the device that an ID is of."""
    return device_id.partition(_SEPARATOR)[0]


def offered(
    resource: str,
    cards: Sequence[Card],
    resources: Resources,
    allocated: Collection[str] | None,
    waiting: Waiting,
) -> Offer:
    """The IDs of `resource`, and which of them the kubelet may give to somebody.

    `allocated`: those that pods have; None where that is not known: then only what others than pods have is
    taken off, and what the kubelet has given it takes off itself.
    """
    ids = {card.uuid: ids_of(resource, card, resources) for card in cards}
    open_cards = [card for card in cards if not card.fault and not card.withheld]
    if allocated is None:
        left = {
            each.uuid: _without_others(resource, each, len(ids[each.uuid]), resources) for each in open_cards
        }
        spare = 0
        allocated = ()
    else:
        left = {each.uuid: free_units(resource, each, each.use, resources) for each in open_cards}
        # What waits needs its IDs, or the kubelet would fail its pod for good; what is not reserved yet has
        # to be taken from what is free for others.
        spare = waiting.units - min(waiting.not_reserved, sum(left.values()))
    unused = {card.uuid: [each for each in ids[card.uuid] if each not in allocated] for card in open_cards}
    healthy = {each for card in cards if not card.fault for each in ids[card.uuid] if each in allocated}
    # First the IDs of the cards that have room, then, for the rest of the number, any.
    for uuid, some in unused.items():
        here = min(left[uuid], len(some))
        healthy.update(some[:here])
        spare += left[uuid] - here
    rest = [each for some in unused.values() for each in some if each not in healthy]
    healthy.update(rest[:spare])
    return Offer(tuple(each for card in cards for each in ids[card.uuid]), frozenset(healthy))


def by_state(offer: Offer, cards: Sequence[Card]) -> dict[str, int]:
    """How many IDs may be had (or have been given), are of a card with a fault, are of one that is
    drained or reserved, and are taken elsewhere: by who is no pod, or by pods through other resources."""
    faulty = {card.uuid for card in cards if card.fault}
    withheld = {card.uuid for card in cards if card.withheld and not card.fault}
    rest = Counter(card_of(each) for each in offer.ids if each not in offer.healthy)
    found = {
        "unhealthy": sum(number for uuid, number in rest.items() if uuid in faulty),
        "withheld": sum(number for uuid, number in rest.items() if uuid in withheld),
    }
    return {"healthy": len(offer.healthy), **found, "elsewhere": sum(rest.values()) - sum(found.values())}


def _without_others(resource: str, card: Card, total: int, resources: Resources) -> int:
    taken = total - free_units(resource, card, card.others, resources)
    return max(total - taken, 0)


def preferred(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    allocated: Collection[str],
    first: Sequence[tuple[str, int]] = (),
) -> tuple[str, ...]:
    """`size` IDs of `available`, `must_include` among them, of as few cards as can be.

    `first`: cards, and how many of each, that are thought to be the right ones. Otherwise a card that has
    enough and of which the least is left; where none has enough, those of which the most is left.
    """
    chosen = list(dict.fromkeys(must_include))[:size]
    known = set(chosen)
    by_card: dict[str, list[str]] = {}
    for each in available:
        if each not in known:
            by_card.setdefault(card_of(each), []).append(each)
    for uuid, count in first:
        some = by_card.get(uuid, [])[: min(count, size - len(chosen))]
        chosen += some
        by_card[uuid] = by_card.get(uuid, [])[len(some) :]
    begun = Counter(card_of(each) for each in [*chosen, *allocated])
    while len(chosen) < size and any(by_card.values()):
        need = size - len(chosen)
        enough = [uuid for uuid, some in by_card.items() if len(some) >= need]
        if enough:
            best = min(enough, key=lambda uuid: (len(by_card[uuid]), not begun[uuid]))
        else:
            best = max(by_card, key=lambda uuid: len(by_card[uuid]))
        chosen += by_card.pop(best)[:need]
    return tuple(chosen)


def check_size(cards: Sequence[Card], resources: Resources) -> None:
    """ConfigError where the list of a resource is too long for the kubelet: it would then have none of it."""
    for resource in resources.names:
        size = _size(resource, cards, resources)
        if size > MOST_BYTES and resources.kind(resource) != MEMORY:
            what = f"the list of {resource} for {len(cards)} devices has {size >> 20} MiB"
            raise ConfigError(
                f"{what}, and the kubelet takes {MOST_BYTES >> 20} MiB", "have fewer MIG devices on this node"
            )
        if size > MOST_BYTES:
            raise ConfigError(
                f"kubernetes.memory_unit: {_unit_text(resources.memory_unit)}: the list of {resource} has "
                f"{size >> 20} MiB with it, and the kubelet takes {MOST_BYTES >> 20} MiB",
                f"a unit that fits this node is {_unit_text(_unit_that_fits(resource, cards, resources))}",
            )


def _unit_text(unit: int) -> str:
    """As the configuration has it: 256MiB."""
    return gib(show_exactly(unit)).replace(" ", "")


def _size(resource: str, cards: Sequence[Card], resources: Resources) -> int:
    """Bytes of ListAndWatchResponse, with IDs of up to 127 bytes."""
    total = 0
    for card in cards:
        count = units(resource, card.memory_bytes, resources)
        each = len(card.uuid) + len(_SEPARATOR) + _ENTRY_BYTES
        total += (
            count * each + sum(max(count - 10**digits, 0) for digits in range(1, len(str(count)))) + count
        )
    return total


def _unit_that_fits(resource: str, cards: Sequence[Card], resources: Resources) -> int:
    """The smallest power of two times the unit of the configuration; `resource` is memory."""
    while _size(resource, cards, resources) > MOST_BYTES:
        resources = resources.replace(memory_unit=2 * resources.memory_unit)
    return resources.memory_unit
