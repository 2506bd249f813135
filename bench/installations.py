"""What a start costs with one installation and another: installations.py NAME=PREFIX NAME=PREFIX... [RUNS]

Such as the tree of `make install` beside an unpacked package, each with a node of its own; medians of
interleaved runs of create + start + delete of a container whose slice the driver holds.
"""

from __future__ import annotations

import contextlib
import sys

import container_start
import timing


def main(words: list[str]) -> None:
    runs = int(words.pop()) if words[-1].isdecimal() else 30
    print(timing.busy())
    with contextlib.ExitStack() as stack:
        cases = {}
        for number, word in enumerate(words):
            name, _, prefix = word.partition("=")
            bench = container_start.Bench(prefix, "1xT4")
            stack.callback(bench.end)
            if number == 0:
                cases["runc alone"] = bench.cycle(container_start.RUNC, bench.bundle("plain"))
            bundle = bench.bundle("slice", "XPU_MEM=1G", "XPU_CORES=30")
            cases[f"a slice, {name}"] = bench.cycle(bench.runtime, bundle)
        print(timing.table("create + start + delete", timing.interleave(cases, runs), "runc alone"))


if __name__ == "__main__":
    main(sys.argv[1:])
