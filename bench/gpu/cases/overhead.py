"""The cost of our libraries in calls and in a start on this driver: medians of interleaved runs."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card

HERE = os.path.dirname(os.path.realpath(__file__))
RUNS = 9
#: time_calls.c's words for calls, and their meanings.
CALLS = {
    "pair": "cuMemAlloc and cuMemFree of 1 MiB",
    "info": "cuMemGetInfo",
    "total": "cuDeviceTotalMem",
    "interposed-name": "cuGetProcAddress of a function that our library has",
    "nvml-info": "nvmlDeviceGetMemoryInfo",
}
STEPS = ("dlopen of libcuda", "cuInit", "first context")


def build() -> str:
    native, out = os.path.join(HERE, "../..", "native"), os.path.join(card.temporary(), "time-calls")
    words = ["cc", "-std=gnu11", "-O2", "-Wno-strict-prototypes", "-o", out]
    if not shutil.which("cc"):
        card.skip("no cc on PATH to compile time_calls.c")
    words += [os.path.join(native, "time_calls.c"), "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if done.returncode:
        card.missing(f"cc cannot build time_calls.c: {done.stderr.strip()[-300:]}")
    return out


def run(program: str, libraries: str, *words: str) -> list[str]:
    path = f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}" if libraries else None
    environ = {**os.environ, **({"LD_LIBRARY_PATH": path} if path else {})}
    done = subprocess.run([program, *words], env=environ, stdout=subprocess.PIPE, text=True, timeout=300)
    if done.returncode == card.SKIPPED:
        card.missing("time-calls finds no GPU")
    if done.returncode:
        card.check(False, f"time-calls ended with {done.returncode}")
        card.end()
    return done.stdout.split()


def main() -> None:
    aside = card.folder()
    program = build()
    # No search path of a container leads to the real libraries. A folder of links does, for the comparison.
    # It is a usr/lib, because some drivers look for their files relative to their own place.
    real = os.path.join(os.path.dirname(aside), "real")
    if not os.path.isdir(real):
        real = card.temporary()
        for name in ("libcuda", "libnvidia-ml"):
            os.symlink(f"{aside}/{name}.real", f"{real}/{name}.so.1")
    seen: dict[str, dict[str, list[float]]] = {"": {}, real: {}}
    for number in range(RUNS + 1):
        for libraries in ("", real) if number % 2 else (real, ""):
            words = run(program, libraries, "calls", *CALLS)
            *steps, _, _ = run(program, libraries, "start")
            calls = [CALLS[word] for word in words[::2]]
            pairs = [*zip(calls, words[1::2], strict=True), *zip(STEPS, steps, strict=True)]
            for name, value in pairs if number else ():
                seen[libraries].setdefault(name, []).append(float(value))
    for name in seen[""]:
        with_interposers, without = (statistics.median(seen[which][name]) for which in ("", real))
        card.report(
            name,
            f"{without:.0f} ns without our library, {with_interposers:.0f} ns with it, "
            f"{with_interposers - without:+.0f} ns",
        )
    card.end()


main()
