"""The soak of the agent runs, in short. It finds nothing here that takes an hour."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support import REPOSITORY


def test_the_agent_is_started_watched_and_ended(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "bench" / "soak.py", installed, "--minutes", "0.1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    before, after, verdict = done.stdout.splitlines()
    assert before.startswith("before the first start:") and verdict == "as at the start"
    held = r"([\d.]+) MB, (\d+) processes, (\d+) descriptors, .*"
    seen = re.fullmatch(rf" +1 min, +(\d+) starts: +{held}", after)
    assert seen and int(seen[1]) > 10 and all(float(each) > 0 for each in seen.groups())
