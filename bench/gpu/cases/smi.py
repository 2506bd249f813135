"""nvidia-smi in the slice: it shows a card of the slice's size, and no process of another container."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card

SMI = shutil.which("nvidia-smi") or card.missing("no nvidia-smi on PATH, which the runtime brings")


def ask(*words: str) -> list[str]:
    done = subprocess.run([SMI, *words], capture_output=True, text=True, timeout=120)
    if done.returncode:
        card.missing(f"nvidia-smi ends with {done.returncode}: {(done.stdout or done.stderr).strip()[:200]}")
    return done.stdout.split("\n")


limit = card.limit()
total, used, free = (
    int(text) * card.MIB
    for text in ask("--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits")[
        0
    ].split(",")
)
card.report("card as nvidia-smi shows it", f"{card.mib(total)}, {card.mib(used)} used")
card.check(total == limit // card.MIB * card.MIB, f"the card is as large as the slice, {card.mib(limit)}")
card.check(used + free <= total, "what is used and free is no more than the whole")

cuda = card.Cuda()
pointer = cuda.plain(64 * card.MIB)
card.check(pointer > 0, "64 MiB can be had")
after = int(ask("--query-gpu=memory.used", "--format=csv,noheader,nounits")[0]) * card.MIB
card.report("used with 64 MiB and a context", card.mib(after))
card.check(after >= used + 63 * card.MIB, "what this process took is shown as used")
listed = [
    line for line in ask("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits") if line
]
card.report("processes shown", len(listed))
card.check(len(listed) <= 1, "no process but this one is shown")
card.end()
