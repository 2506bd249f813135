"""The free part of one card, and the order of cards under a policy: the plain numbers below all placement.

Bytes and percent, no object for a card: kube-scheduler may ask of ten thousand nodes at once. A card that may
not be used has -1 bytes. A whole card is an unused one; with `oversubscribe.memory`, one whose whole capacity
is free.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def grantable(total: int, oversubscribe: float) -> int:
    """Bytes that may be granted of a card with `total`."""
    return total if oversubscribe == 1.0 else int(total * oversubscribe)


def left(capacity: int, taken: int, is_whole: bool) -> int:
    """Its free bytes; `is_whole`: one container has all of it, regardless of the sum."""
    return 0 if is_whole else max(capacity - taken, 0)


def shares_left(total: int, memory: int, cores: int) -> int:
    """Hundredths of a card, of its memory and of its cores alike, that are left where these are."""
    return max(min(memory * 100 // total, cores), 0)


def in_order(
    positions: Iterable[int], memory: Sequence[int], cores: Sequence[int], binpack: bool
) -> list[int]:
    """The cards at these positions, in the policy's order. binpack: the fullest first, to keep whole cards
    free; otherwise the emptiest. Equally full ones are ordered by fewer (or more) cores left, and then by
    position."""
    sign = 1 if binpack else -1
    return sorted(positions, key=lambda position: (sign * memory[position], sign * cores[position]))
