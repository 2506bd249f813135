"""The extender's benchmark runs on a few nodes. Its figures mean nothing here."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from support import REPOSITORY


def test_pods_are_filtered_and_bound_and_each_figure_is_printed() -> None:
    done = subprocess.run(
        [
            *(sys.executable, REPOSITORY / "bench" / "kubernetes_extender.py"),
            *("--nodes", "20", "--pods", "100", "--rounds", "30", "--gang", "20"),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": "src:tests"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    names = re.findall(r"^(\S.*?) +(?:p50|mean) +[\d.]+ ms", done.stdout, re.MULTILINE)
    assert names == [
        "first filter",
        "filter",
        "prioritize",
        "bind",
        "bind, without the API's own",
        "of a processor, for a pod",
        "of bind, asking the API",
        "bind, 50 at once",
        "filter of a group's pod",
        "bind of a group's pod",
    ]
    assert done.stdout.count("memory of the extender: ") == 2
