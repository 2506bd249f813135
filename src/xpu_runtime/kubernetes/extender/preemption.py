"""Which pods would have to end on a node, so that one of a higher priority has a place on its devices.

kube-scheduler finds victims by a node's sums, which tell nothing of a device: it would end pods on two
devices that leave room on neither, or none where the sums fit. Here they are found by devices, in its way:
without all pods of a lower priority, then with as many of them again as leave a place, the highest priority
first. What it has chosen itself stays chosen, as it may be needed for what is not known here (CPU, memory,
ports).

Versions 1.20 and 1.21 of kube-scheduler never ask (kubernetes#102971), those before 1.36 only for nodes on
which they have found victims (kubernetes#135486). Knows no API.
"""

from __future__ import annotations

from collections.abc import Collection

from xpu_runtime.kubernetes.extender import accounting, placement
from xpu_runtime.kubernetes.extender.devices import Held
from xpu_runtime.kubernetes.extender.objects import Crew
from xpu_runtime.kubernetes.extender.placement import PodShape


def victims(crew: Crew, shape: PodShape, priority: int, chosen: Collection[str]) -> list[str] | None:
    """The UIDs of the pods that must end, those `chosen` by kube-scheduler among them; None where that is not
    enough."""
    lower = [
        each for each in crew.members if each[0] in chosen or (each[1] is not None and each[1] < priority)
    ]
    staying = [each[2] for each in crew.members if each not in lower]
    if not _fits(crew, shape, staying):
        return None
    ending = [uid for uid in chosen if uid not in {each[0] for each in lower}]
    for uid, _, held in sorted(lower, key=lambda each: (-(each[1] or 0), each[0])):
        if uid not in chosen and _fits(crew, shape, [*staying, held]):
            staying.append(held)
        else:
            ending.append(uid)
    return ending


def _fits(crew: Crew, shape: PodShape, staying: list[Held]) -> bool:
    has = crew.devices
    memory, cores = list(has.memory), list(has.cores)
    for held in staying:
        accounting.take(has, memory, cores, held)
    effort = placement.Effort()
    return placement.place(has.totals, memory, cores, shape, crew.binpack, effort, has.kinds) is not None
