"""What the interposers add to calls and to a start on this driver: medians of interleaved runs."""

from __future__ import annotations

import os
import statistics
import subprocess

import card

HERE = os.path.dirname(os.path.realpath(__file__))
RUNS = 9
CALLS = ("pair", "info", "total", "interposed-name", "nvml-info")
STEPS = ("dlopen", "cuInit", "first context")


def build() -> str:
    native, out = os.path.join(HERE, "..", "native"), os.path.join(card.temporary(), "time-calls")
    words = ["cc", "-std=gnu11", "-O2", "-Wno-strict-prototypes", "-o", out]
    try:
        subprocess.run([*words, os.path.join(native, "time_calls.c"), "-ldl"], check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        card.skip(f"time_calls.c cannot be compiled here: {error}")
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
    # No search path of a container leads to the real libraries; a folder of links does, for the comparison.
    # It lies in a usr/lib, as some drivers look for their files from where they are.
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
            pairs = [*zip(words[::2], words[1::2], strict=True), *zip(STEPS, steps, strict=True)]
            for name, value in pairs if number else ():
                seen[libraries].setdefault(name, []).append(float(value))
    for name in seen[""]:
        with_interposers, without = (statistics.median(seen[which][name]) for which in ("", real))
        card.report(
            name,
            f"{without:.0f} ns without, {with_interposers:.0f} ns with, {with_interposers - without:+.0f} ns",
        )
    card.end()


main()
