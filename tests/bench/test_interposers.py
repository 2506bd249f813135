"""The benchmark of the interposers runs, and marks numbers over their bounds. No number is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def python(script: str) -> str:
    """Runs a script that can import bench/interposers.py."""
    first = f"import sys; sys.path[:0] = [{str(REPOSITORY / 'bench')!r}]\nimport interposers\n"
    done = subprocess.run([sys.executable, "-c", first + script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_number_is_measured() -> None:
    subprocess.run(
        ["make", "-s", "-C", REPOSITORY / "bench/native", f"OUT={REPOSITORY}/build/bench"], check=True
    )
    script = 'real = f"{interposers.BUILD}/bench/constant"\n'
    script += 'measurements = interposers.measure(real, interposers.CONSTANT_UUID, ["2", "100", ""])\n'
    script += 'launches = ["2", "1", "a cap of 90 %"]\n'
    script += "measurements += interposers.measure(real, interposers.CONSTANT_UUID, launches, cores=90)\n"
    measurements = json.loads(python(script + "import json; print(json.dumps(measurements))"))
    names = [measurement[0] for measurement in measurements]
    assert len(names) == len(set(names)) == 21
    for name, without, with_interposers, _ in measurements:
        # The time that a process waited for a processor is counted around each measured call.
        least = 0 if "line" in name or "processes" in name else 1e-3
        assert without >= least and with_interposers >= least, name
    bounds = {name: bound for name, _, _, bound in measurements if bound is not None}
    assert bounds["cuMemAlloc + cuMemFree"] == 1000
    assert bounds["a launch, a cap of 90 %, in each of 64 threads"] == 100
    assert bounds["a process's start, all three"] == 2e6


def test_a_figure_over_its_bound_is_marked() -> None:
    script = "print(interposers.table('t', [interposers.Measurement('slow', 10, 2000, 1000)"
    script += ", interposers.Measurement('quick', 10, 12, 5), interposers.Measurement('free', 10, 99999)]))"
    lines = python(script).splitlines()
    assert [line.endswith("OVER") for line in lines] == [False, True, False, False]
    assert "1.99 us" in lines[1] and "200.00x" in lines[1]
