"""cuMemGetInfo against the driver's report of this process: equal within 2 MiB for every allocation."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card
import nvml

limit, cuda = card.limit(), card.Cuda()
driver = nvml.in_slice(cuda.uuid())
worst = 0


def compare(when: str) -> None:
    global worst
    free, total = cuda.memory()
    reported = driver.own()
    if reported is None:
        listed = ", ".join(
            f"{pid} with {card.mib(used or 0)}" for pid, used in (driver.processes() or {}).items()
        )
        card.fail(f"the driver does not list this process, {os.getpid()}; it lists {listed or 'none'}")
    worst = max(worst, abs(total - free - reported))
    same = abs(total - free - reported) <= 2 * card.MIB
    card.check(same, f"{when}: {card.mib(total - free)} used, {card.mib(reported)} reported by the driver")


card.check(cuda.memory()[1] == limit, f"the card is as large as the slice, {card.mib(limit)}")
compare("a context")
# Managed memory is on the device only after a touch, so the driver does not report it.
for name, (take, give) in cuda.ways().items():
    if name == "cuMemAllocManaged":
        continue
    held = [take(size) for size in (1, 1000, card.MIB, 3 * card.MIB, limit // 8)]
    if min(held) < 0:
        card.check(False, f"{name}: {cuda.name(-min(held))}, with most of the slice free: is the card full?")
        continue
    compare(f"{len(held)} by {name}")
    for one in held:
        give(one)
    compare(f"freed by {name}'s way")
card.report("largest difference", card.mib(worst))
card.end()
