"""The installation: its version, its Python, and whether there is another one beside it."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator

from xpu_runtime import finding, paths
from xpu_runtime.doctor import interpreter
from xpu_runtime.doctor.machine import Machine, listed, plural
from xpu_runtime.finding import Finding
from xpu_runtime.limits import pages
from xpu_runtime.observe import engine
from xpu_runtime.version import COMMIT, VERSION

ORDER = 0
_CHECK = "installation"
_PROGRAMS = (engine.LAUNCHER, paths.HOOK)
_PREFIXES = ("/usr/local", "/usr")
_AGAIN = "install again"
_LATER = "look again when the node has less to do; install again if it stays so"
_MOST_BYTES = 16 << 20
_CODE = os.path.join(paths.LIB, "python")
_FILES = (
    "native/interposer/nvidia/libcuda.so.1",
    "native/interposer/nvidia/libnvidia-ml.so.1",
    "config/config.yaml",
    "config/config.schema.json",
    *(() if paths.BY_PIP else ("precompile.py", "worker.py", "python/xpu_bundle.py")),
)
#: Packages for people's commands and for clusters, which no start imports.
_NOT_OF_START = ("cli", "doctor", "engines", "kubernetes", "node_setup")
#: Prints a line for each module that cannot be imported from its own file.
_IMPORT = """
import importlib, sys
sys.path[:0] = sys.argv[1:3]
for name in sys.argv[3:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(ascii(f"{name} ({type(error).__name__}: {error})"))
"""
_IMPORT_S = 10.0


def look(machine: Machine) -> Iterator[Finding]:
    if not machine.is_root:
        text = "not run as root: the ledger, other users' processes and the engines cannot be looked at"
        yield finding.unknown(_CHECK, text, "run it as root")
    wrong = [*_parts(), *_modules(), *writable(), *others(engine.LAUNCHER, _PREFIXES)]
    yield from wrong
    if not wrong:
        commit = f" (commit {COMMIT})" if COMMIT else ""
        place = os.path.dirname(os.path.dirname(paths.HOOK))
        yield finding.ok(_CHECK, f"{VERSION}{commit} in {place}, pages of ABI {pages.ABI}")


def _parts() -> Iterator[Finding]:
    for path in _PROGRAMS:
        if not os.access(path, os.X_OK):
            yield finding.problem(_CHECK, f"{path} is missing or not executable", _AGAIN)
    for name in ("shim.py",) if paths.BY_PIP else ("shim.py", "hook.py"):
        if not os.path.isfile(os.path.join(paths.LIB, name)):
            text = f"{paths.LIB}/{name} is missing: no container with an XPU starts"
            yield finding.problem(_CHECK, text, _AGAIN)
    for name in _FILES:
        path = os.path.join(paths.LIB, name)
        if not os.path.isfile(path) or not os.path.getsize(path):
            yield finding.problem(_CHECK, f"{path} is missing, or empty", _AGAIN)
    for who, python in (
        ("the launcher", interpreter.of_program(engine.LAUNCHER)),
        ("the hook", interpreter.of_hook()),
    ):
        if python is None:
            continue
        why = interpreter.why_not(python)
        if why == interpreter.SILENT:
            yield finding.unknown(_CHECK, f"{who} starts {python}, {why}", _LATER)
        elif why:
            text = f"{who} starts {python}, {why}: no container with an XPU starts"
            yield finding.problem(_CHECK, text, "install Python 3.9 or newer there, or install this again")


def _modules() -> Iterator[Finding]:
    """The modules of a start that cannot be imported: a start may reach them late, with a grant in its
    hands."""
    python = interpreter.of_hook()
    if python is None or interpreter.why_not(python):
        return  # another finding reports that
    words = [python, "-I", "-S", "-B", "-c", _IMPORT, paths.THIRD_PARTY_DIR, _packages(), *_names()]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_IMPORT_S)
    except subprocess.TimeoutExpired:
        text = f"{python} does not import the modules in {_packages()} within {_IMPORT_S:.0f} s"
        yield finding.unknown(_CHECK, text, _LATER)
        return
    broken = [line[1:-1] for line in done.stdout.splitlines()]
    if done.returncode:
        broken.append((done.stderr.strip().splitlines() or [f"{python} ended with {done.returncode}"])[-1])
    if broken:
        text = f"{plural(len(broken), 'module')} in {_packages()} cannot be imported: {listed(broken)}"
        yield finding.problem(_CHECK, text, _AGAIN)


def _packages() -> str:
    return paths.THIRD_PARTY_DIR if paths.BY_PIP else _CODE


def _names() -> list[str]:
    """Those that are there, and those that must be: of precompile.py's lists."""
    found = set()
    top = os.path.join(_packages(), "xpu_runtime")
    for folder, folders, names in os.walk(top):
        if folder == top:
            folders[:] = [name for name in folders if name not in _NOT_OF_START]
        package = os.path.relpath(folder, _packages()).replace(os.sep, ".")
        found |= {
            f"{package}.{name[:-3]}" for name in names if name.endswith(".py") and name != "__init__.py"
        }
    try:
        with open(os.path.join(paths.LIB, "precompile.py"), "rb") as file:
            lists = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        lists = ""
    return sorted(found | set(re.findall(r'"(xpu_runtime\.[\w.]*\w)"', lists)))


def writable() -> Iterator[Finding]:
    """The installed files and folders by which others than root could have root run any code."""
    if paths.BY_PIP:
        return  # for development: they are whose the environment is
    found = [path for path in _installed() if _is_writable(path)]
    if found:
        text = f"{plural(len(found), 'installed file')} can be changed by users other than root, who "
        text += f"can then run code as root: {listed(found)}"
        places = f"{paths.LIB} {engine.LAUNCHER} {paths.HOOK}"
        yield finding.problem(_CHECK, text, f"chown -R root:root {places}; chmod -R go-w {places}; {_AGAIN}")


def _installed() -> Iterator[str]:
    programs = os.path.dirname(paths.HOOK)
    yield from (os.path.join(programs, name) for name in ("xpu", *map(os.path.basename, _PROGRAMS)))
    yield paths.LIB
    for folder, folders, names in os.walk(paths.LIB):
        yield from (os.path.join(folder, name) for name in (*folders, *names))


def _is_writable(path: str) -> bool:
    try:
        there = os.lstat(path)
    except OSError:
        return False  # it is missing, or came and went
    # A link's own mode means nothing.
    is_link = stat.S_ISLNK(there.st_mode)
    return there.st_uid != 0 or (not is_link and bool(there.st_mode & 0o022))


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
