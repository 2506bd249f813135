"""What is installed: which version, by which Python it starts, and whether there is another one beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from xpu_runtime import finding, paths
from xpu_runtime.doctor import engine, interpreter, release
from xpu_runtime.doctor.machine import Machine
from xpu_runtime.finding import Finding
from xpu_runtime.limits import pages

ORDER = 0
_CHECK = "installation"
_PREFIXES = ("/usr/local", "/usr")
_AGAIN = "install again"
_PYTHON = re.compile(rb"(/[!-~]*python[0-9.]*)\0")
_MOST_BYTES = 16 << 20


def look(machine: Machine) -> Iterator[Finding]:
    if not machine.is_root:
        text = "not run as root: the ledger, other users' processes and the engines cannot be looked at"
        yield finding.unknown(_CHECK, text, "run it as root")
    wrong = [*_programs(), *others(engine.LAUNCHER, _PREFIXES)]
    yield from wrong
    if not wrong:
        known = release.version()
        commit = f" (commit {known['commit']})" if known["commit"] else ""
        place = os.path.dirname(os.path.dirname(paths.HOOK))
        yield finding.ok(_CHECK, f"{known['version']}{commit} in {place}, pages of ABI {pages.ABI}")


def _programs() -> Iterator[Finding]:
    for path in (engine.LAUNCHER, paths.HOOK):
        if not os.access(path, os.X_OK):
            yield finding.problem(_CHECK, f"{path} is missing or not executable", _AGAIN)
    if not os.path.isfile(os.path.join(paths.LIB, "shim.py")):
        text = f"{paths.LIB}/shim.py is missing: no container with an XPU starts"
        yield finding.problem(_CHECK, text, _AGAIN)
    for who, python in (
        ("the launcher", launchers_python(engine.LAUNCHER)),
        ("the hook", interpreter.of_hook()),
    ):
        if python is None:
            continue
        why = interpreter.why_not(python)
        if why:
            text = f"{who} starts {python}, {why}: no container with an XPU starts"
            yield finding.problem(_CHECK, text, "install Python 3.9 or newer there, or install this again")


def launchers_python(launcher: str) -> str | None:
    """The interpreter whose path is in the launcher; None where there is none, or no launcher."""
    try:
        with open(launcher, "rb") as file:
            found = _PYTHON.findall(file.read(_MOST_BYTES))
    except OSError:
        return None
    return os.fsdecode(found[0]) if found else None


def others(launcher: str, prefixes: tuple[str, ...]) -> Iterator[Finding]:
    """Installations below other prefixes than that of `launcher`, which engines could start instead."""
    for prefix in prefixes:
        other = os.path.join(prefix, "bin", os.path.basename(launcher))
        if not os.path.exists(other) or (os.path.exists(launcher) and os.path.samefile(other, launcher)):
            continue
        text = f"{other} is a second installation beside {launcher}; both use one ledger"
        yield finding.warning(
            _CHECK, text, "remove one (`make uninstall`, apt or dnf), then xpu runtime configure ENGINE"
        )
