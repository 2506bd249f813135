"""To the limit and past it by each way of the driver API: out of memory, and the program goes on."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card
import nvml

limit, cuda = card.limit(), card.Cuda()
driver = nvml.in_slice(cuda.uuid())
chunk = max(limit // 64, 2 * card.MIB)
_, total = cuda.memory()
card.check(total == limit, f"the card is as large as the slice, {card.mib(limit)}")

for name, (take, give) in cuda.ways().items():
    before, _ = cuda.memory()
    held: list[int] = []
    # Nothing is touched, and a fault could get one chunk beyond the limit at most.
    while len(held) * chunk <= limit and (got := take(chunk)) > 0:
        held.append(got)
    status = -got
    card.report(f"{name} gets", card.mib(len(held) * chunk))
    card.check(
        status == card.OUT_OF_MEMORY,
        f"{name} past the limit: {cuda.name(status) if status > 0 else 'granted'}",
    )
    card.check(before - len(held) * chunk < chunk + 2 * card.MIB, f"{name}: what fits is given")
    reported = driver.own()
    if reported is not None:
        card.check(reported <= limit + 2 * card.MIB, f"{name}: {card.mib(reported)} reported by the driver")
    for one in held:
        give(one)
    one = take(chunk)
    if card.check(one > 0, f"{name}: the program goes on"):
        give(one)
    after, _ = cuda.memory()
    # Pools keep freed memory until memory is short.
    kept = name == "cuMemAllocAsync"
    card.check(kept or abs(after - before) <= 2 * card.MIB, f"{name}: what is freed comes back")
card.end()
