"""Results that are kept in the run folder for later calls.

All of it is only a cache: where a file is missing, damaged or of another version of this program, each call
computes the result again. Independent of the files' meaning.
"""

from __future__ import annotations

import os

from xpu_runtime import jsonlite, paths, version
from xpu_runtime.linux import files, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Files of the run folder: the compiled configuration, and the facts about low-level runtimes.
COMPILED = "config.json"
LAUNCHER = "launcher.conf"
RUNTIMES = "runtimes.json"

#: A part of every stamp. The build is another part: compiled files contain the defaults, which differ between
#: builds.
FORMAT = 3


def config_stamp(path: str, found: os.stat_result) -> list[Any]:
    """The identity of a compiled configuration: this build, the file, its state, and this boot."""
    # With the change time, which cannot be set: `cp -p` and the like restore the others.
    state = [found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_dev, found.st_ino]
    return [FORMAT, version.BUILD, path, *state, proc.boot_id()]


def file_stamp(found: os.stat_result) -> str:
    """A file's identity in the files that the launcher reads."""
    return f"{found.st_mtime_ns}:{found.st_size}:{found.st_ino}"


def keep(name: str, text: str) -> None:
    """Writes a file of the run folder for later calls; no error if the run folder cannot be written."""
    folder = paths.run_dir()
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, 0o755)  # noqa: S103 - whatever the engine's umask is
        files.write_atomic(os.path.join(folder, name), text.encode(), mode=0o644)
    except OSError:
        pass


def read(name: str) -> dict[str, Any]:
    """A JSON object of the run folder; empty if it is missing or damaged, as it is only a cache."""
    try:
        document = jsonlite.loads(files.read(paths.in_run_dir(name), 1 << 20).decode())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
