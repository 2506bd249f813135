"""The launcher's cost for runc's own commands: `--version`, `state` and `delete` of no container.

Usage: passthrough.py LAUNCHER [RUNS]. It prints medians of interleaved runs, and ratios to runc alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable

from timing import interleave, table

RUNC = os.path.realpath(shutil.which("runc") or "/usr/sbin/runc")


def call(program: str, words: list[str], environment: dict[str, str]) -> Callable[[], None]:
    null = os.open(os.devnull, os.O_RDWR)
    streams = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]

    def once() -> None:
        pid = os.posix_spawn(program, [program, *words], environment, file_actions=streams)
        os.waitpid(pid, 0)

    return once


def main(launcher: str, runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.yaml")
        compiled = {**os.environ, "XPU_CONFIG": config, "XPU_RUN_DIR": folder}
        with open(config, "w") as file:
            file.write("# defaults\n")
        stat = os.stat(config)
        with open(os.path.join(folder, "launcher.conf"), "w") as file:
            stamp = f"{stat.st_mtime_ns}:{stat.st_size}:{stat.st_ino}"
            file.write(f"format=1\nconfig={config}\nstamp={stamp}\nruntime={RUNC}\n")
        without = {**compiled, "XPU_CONFIG": os.path.join(folder, "none.yaml")}
        for words in (["--version"], ["state", "nope"], ["delete", "nope"]):
            in_root = words if words == ["--version"] else ["--root", folder, *words]
            cases = {
                "runc": call(RUNC, in_root, compiled),
                "behind the launcher": call(launcher, in_root, compiled),
                "behind it, without a configuration file": call(launcher, in_root, without),
            }
            print(table(" ".join(words), interleave(cases, runs), "runc"), end="\n\n")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 100)
