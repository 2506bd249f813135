"""The benchmark of the wrapper libraries runs, and says what is over its bound. No figure is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def python(script: str) -> str:
    """Runs it where bench/wrappers.py can be imported."""
    first = f"import sys; sys.path[:0] = [{str(REPOSITORY / 'bench')!r}]\nimport wrappers\n"
    done = subprocess.run([sys.executable, "-c", first + script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_figure_is_measured() -> None:
    subprocess.run(
        ["make", "-s", "-C", REPOSITORY / "bench/native", f"OUT={REPOSITORY}/build/bench"], check=True
    )
    script = 'real = f"{wrappers.BUILD}/bench/constant"\n'
    script += 'figures = wrappers.measure(real, wrappers.CONSTANT_UUID, ["2", "100"])\n'
    figures = json.loads(python(script + "import json; print(json.dumps(figures))"))
    names = [figure[0] for figure in figures]
    assert len(names) == len(set(names)) == 17
    for name, without, with_wrappers, _ in figures:
        # What a process stood in line for a processor is counted around what is timed.
        least = 0 if "line" in name or "processes" in name else 1e-3
        assert without >= least and with_wrappers >= least, name
    bounds = {name: bound for name, _, _, bound in figures if bound is not None}
    assert bounds["cuMemAlloc + cuMemFree"] == 1000
    assert bounds["a process's start, all three"] == 2e6


def test_what_is_over_its_bound_is_marked() -> None:
    script = "print(wrappers.table('t', [wrappers.Figure('slow', 10, 2000, 1000)"
    script += ", wrappers.Figure('quick', 10, 12, 5), wrappers.Figure('free', 10, 99999)]))"
    lines = python(script).splitlines()
    assert [line.endswith("OVER") for line in lines] == [False, True, False, False]
    assert "1.99 us" in lines[1] and "200.00x" in lines[1]
