"""What is computed once and kept: whether it still is what it was made from.

Most of it is checked at each use and made anew. Told here is what is used although it is wrong, and what
makes every start slower.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
from collections.abc import Iterator

from xpu_runtime import finding, paths
from xpu_runtime.config import cache
from xpu_runtime.doctor import interpreter
from xpu_runtime.doctor.machine import Machine, listed
from xpu_runtime.finding import Finding
from xpu_runtime.linux import files
from xpu_runtime.vendors import discovery

ORDER = 110
_CHECK = "caches"
_RENEW = "xpu devices (it makes them anew)"
_MOST_BYTES = 16 << 20
_CODE = os.path.join(paths.LIB, "python")


def look(machine: Machine) -> Iterator[Finding]:
    wrong = [*_inventory(machine), *_configuration(), *_bundle()]
    yield from wrong
    if not wrong:
        yield finding.ok(_CHECK, f"in {paths.run_dir()} and {_CODE}: as they should be")


def _inventory(machine: Machine) -> Iterator[Finding]:
    kept, now = discovery.cached(machine.driver_root), machine.inventory
    if kept is None or now is None or not now.devices:
        return
    where = paths.in_run_dir("inventory.json")
    if kept.devices != now.devices:
        text = f"{where} has other devices than the driver tells now (a changed MIG layout, a lost device)"
        yield finding.problem(_CHECK, text, _RENEW)
    elif kept.drivers != now.drivers:
        text = f"{where} has other driver files than are there now: containers start with the old ones"
        yield finding.problem(_CHECK, text, _RENEW)


def _configuration() -> Iterator[Finding]:
    """The compiled configuration, where there is a file: the launcher reads only what is compiled."""
    path = paths.config_file()
    try:
        state = os.stat(path)
    except OSError:
        return
    kept = paths.in_run_dir(cache.LAUNCHER)
    try:
        there = os.stat(kept)
        lines = files.read(kept, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return  # nothing has started yet
    if there.st_uid or there.st_mode & 0o022:
        text = f"{kept} can be written by others than root, so that the launcher does not use it"
        yield finding.warning(_CHECK, text, f"rm {kept}; {_RENEW}")
        return
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    stamp = f"{state.st_mtime_ns}:{state.st_size}:{state.st_ino}"
    runtime = values.get("runtime", "")
    if (values.get("config"), values.get("stamp")) != (path, stamp):
        text = f"{kept} is of another {path} than is there now: until it is renewed each call is slower"
        yield finding.warning(_CHECK, text, _RENEW)
    elif not os.access(runtime, os.X_OK):
        text = f"{kept} names {runtime}, which is not there: until it is renewed each call is slower"
        yield finding.warning(_CHECK, text, f"rm {kept}; {_RENEW}")


def _bundle() -> Iterator[Finding]:
    path = os.path.join(_CODE, "start.bundle")
    python = interpreter.of_hook()
    if python is None:
        return
    again = f"{python} {paths.LIB}/precompile.py"
    slower = "each start imports its modules one by one, which takes longer"
    try:
        magic, modules = marshal.loads(files.read(path, _MOST_BYTES))  # noqa: S302 - installed by root
    except FileNotFoundError:
        yield finding.warning(_CHECK, f"{path} is missing: {slower}", again)
        return
    except (ValueError, EOFError, TypeError):
        magic, modules = b"", {}
    if magic != interpreter.magic(python):
        text = f"{path} is damaged, or was made by another Python than {python}: {slower}"
        yield finding.warning(_CHECK, text, again)
    elif magic == importlib.util.MAGIC_NUMBER:  # only its own Python can read it
        old = [
            name for name, (_, file, code) in modules.items() if not is_of(code, os.path.join(_CODE, file))
        ]
        if old:
            text = f"{path} has older code than is installed of {listed(sorted(old))}: starts run the old one"
            yield finding.problem(_CHECK, text, again)


def is_of(code: bytes, path: str) -> bool:
    """Whether marshalled code is what the source at `path` compiles to (hooks/precompile.py)."""
    try:
        source = files.read(path, _MOST_BYTES)
    except OSError:
        return False
    now = compile(source, path, "exec", dont_inherit=True, optimize=2)
    return bool(marshal.loads(code) == now)  # noqa: S302 - installed by root
