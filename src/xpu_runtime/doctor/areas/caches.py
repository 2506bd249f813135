"""Cached results: whether they still match their sources.

Most are checked at each use and made anew. Findings are caches that are used although they are wrong, and
those that make every start slower.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

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
#: Caches in the run folder: the largest size in bytes, and whether it is a JSON object.
_KEPT = {
    "inventory.json": (16 << 20, True),
    cache.COMPILED: (1 << 20, True),
    cache.RUNTIMES: (1 << 20, True),
    cache.LAUNCHER: (64 << 10, False),
}
_CODE = os.path.join(paths.LIB, "python")


def look(machine: Machine) -> Iterator[Finding]:
    wrong = [*_kept()]
    wrong += [*([] if wrong else [*_inventory(machine), *_configuration()]), *_bundle()]
    yield from wrong
    if not wrong:
        yield finding.ok(_CHECK, f"in {paths.run_dir()} and {_CODE}: as they should be")


def _kept() -> Iterator[Finding]:
    """Files in the run folder that are no cache of ours; a start does without, and may be unable to replace
    them."""
    for name, (most, is_json) in _KEPT.items():
        path = paths.in_run_dir(name)
        try:
            content = files.read(path, most)
            why = "is damaged" if is_json and not _is_object(content) else ""
        except FileNotFoundError:
            continue
        except OSError as error:
            why = f"cannot be read ({error.strerror})"
        if why:
            todo = f"remove it (rm -r {path}), then {_RENEW}"
            yield finding.warning(_CHECK, f"{path} {why}, so it is not used and starts are slower", todo)


def _is_object(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        return False


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
    """The compiled configuration, if there is a file: the launcher reads only the compiled form."""
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
        text = f"users other than root can write to {kept}, so the launcher does not use it"
        yield finding.warning(_CHECK, text, f"rm {kept}; {_RENEW}")
        return
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    stamp = cache.file_stamp(state)
    runtime = values.get("runtime", "")
    if values.get("format") != str(cache.FORMAT):
        text = f"{kept} was written by another version: until it is renewed each call is slower"
        yield finding.warning(_CHECK, text, _RENEW)
    elif values.get("config") != path:
        text = f"{kept} is of {values.get('config')}, not of {path}: until it is renewed each call is slower"
        yield finding.warning(_CHECK, text, f"rm {kept} {paths.in_run_dir(cache.COMPILED)}; {_RENEW}")
    elif values.get("stamp") != stamp:
        text = f"{kept} is of an earlier {path}: until it is renewed each call is slower"
        yield finding.warning(_CHECK, text, _RENEW)
    elif not os.access(runtime, os.X_OK):
        text = f"{kept} names {runtime}, which is not there: until it is renewed each call is slower"
        yield finding.warning(_CHECK, text, f"rm {kept}; {_RENEW}")


def _bundle() -> Iterator[Finding]:
    path = os.path.join(_CODE, "start.bundle")
    python = interpreter.of_hook()
    wanted = interpreter.magic(python) if python else None
    if wanted is None or paths.BY_PIP:
        return  # installation.py reports that; pip makes no bundle
    again = f"{python} {paths.LIB}/precompile.py"
    anew = f"remove it (rm -r {path}), then {again}"
    slower = "each start imports its modules one by one, which takes longer"
    try:
        begins_with = files.read(path, _MOST_BYTES)[: len(wanted)]
    except OSError as error:
        text = f"{path} cannot be read ({error.strerror}): {slower}"
        yield finding.warning(_CHECK, text, again if isinstance(error, FileNotFoundError) else anew)
        return
    if begins_with != wanted:
        text = f"{path} was made by another Python than {python}: {slower}"
        yield finding.warning(_CHECK, text, again)
    elif wanted == importlib.util.MAGIC_NUMBER:  # only its own Python can read it
        old = _old_modules()
        if old is None:
            text = f"{path} is damaged, or of another version than is installed: {slower}"
            yield finding.warning(_CHECK, text, again)
        elif old:
            text = f"{path} has older code of {listed(old)} than the installation: starts run the old code"
            yield finding.problem(_CHECK, text, again)


def _old_modules() -> list[str] | None:
    """The modules that a start takes from the bundle although they have changed; None: it takes none."""
    sys.path.insert(0, _CODE)  # this process is the check's own
    xpu_bundle = importlib.import_module("xpu_bundle")
    xpu_bundle.install()
    bundle: Any = sys.meta_path[0]
    if type(bundle) is not xpu_bundle.Bundle:
        return None
    index = set(bundle._index)
    if any(bundle.find_spec(module) is None for module in index):
        return None  # cut off, or damaged further on
    old = []
    for folder, _, names in os.walk(os.path.join(_CODE, "xpu_runtime")):
        package = os.path.relpath(folder, _CODE).replace(os.sep, ".")
        for file in names:
            module = package if file == "__init__.py" else f"{package}.{file[:-3]}"
            if file.endswith(".py") and module in index:
                index.discard(module)
                source = files.read(os.path.join(folder, file), _MOST_BYTES)
                now = compile(source, file, "exec", dont_inherit=True, optimize=2)
                if bundle.get_code(module) != now:
                    old.append(module)
    return sorted([*old, *index])  # the names that are left have no file any more
