"""The cost of a start with several installations: installations.py NAME=PREFIX NAME=PREFIX... [RUNS]

It compares, for example, the tree of `make install` with an unpacked package, each on a node of its own. It
prints medians of interleaved runs of create + start + delete, for a container whose slice the driver holds.
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
