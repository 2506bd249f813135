"""A node's verdict for a demand, and a cache of verdicts, a byte for each node and demand.

A filter of ten thousand nodes is mostly asked again and again for the same demands, while few of the nodes
change.
"""

from __future__ import annotations

from collections import OrderedDict

from xpu_runtime.kubernetes.extender import accounting
from xpu_runtime.kubernetes.extender.objects import Node
from xpu_runtime.placement.pod import PodShape, StepBudget, place

#: A verdict: 1 to 11, it fits, with a score of 0 to 10; or one of these.
UNKNOWN, FULL, NEVER = 0, 12, 13
#: The verdict of a node that fits is its score plus this.
FITS = 1
#: Demands that verdicts are remembered of.
_MOST_DEMANDS = 256


class Verdicts:
    """Cached verdicts of nodes, by their numbers."""

    def __init__(self) -> None:
        self._by_demand: OrderedDict[object, bytearray] = OrderedDict()
        self._numbers = 0
        self._free: list[int] = []

    def new_number(self) -> int:
        if self._free:
            return self._free.pop()
        for verdicts in self._by_demand.values():
            verdicts.append(UNKNOWN)
        self._numbers += 1
        return self._numbers - 1

    def give_back(self, number: int) -> None:
        """The node is gone; it must be forgotten."""
        self._free.append(number)

    def forget(self, number: int) -> None:
        for verdicts in self._by_demand.values():
            verdicts[number] = UNKNOWN

    def of(self, shape: PodShape) -> bytearray:
        """The verdicts for that demand, by a node's number; callers that compute one write it there."""
        verdicts = self._by_demand.get(shape.key)
        if verdicts is None:
            if len(self._by_demand) >= _MOST_DEMANDS:
                self._by_demand.popitem(last=False)
            verdicts = self._by_demand[shape.key] = bytearray(self._numbers)
        else:
            self._by_demand.move_to_end(shape.key)
        return verdicts


def judge(node: Node, shape: PodShape, binpack: bool, steps: StepBudget) -> int:
    """The verdict of a counted node for that demand."""
    has = node.devices
    if has.why_not:
        return NEVER
    places = place(has.cards, node.memory, node.cores, shape, binpack, steps)
    if places is None:
        # Whether it would fit without the pods that are there: kube-scheduler may end some for it.
        fits = place(has.cards, has.memory, has.cores, shape, binpack, steps)
        return NEVER if fits is None and steps.left >= 0 else FULL
    score = accounting.fullness(has.cards, node.memory, shape, places)
    return FITS + round(score if binpack else accounting.HIGHEST - score)
