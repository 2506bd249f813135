"""Compiles files for this machine's Python, on this machine: precompile.py [LIB]

It is installed as <lib>/precompile.py. It compiles everything beside it, and writes the bundle of the modules
that a container's start imports (see xpu_bundle.py). A package runs it when it is configured and when the
distribution's Python changes; packages hold no compiled files. LIB is the folder's later path, if that is
another one. A container that starts meanwhile finds the old bundle or the new one, complete; with another
Python's bundle, or none, starts are only slower.

Importing the entry points finds most modules of the bundle. The list below has the others: functions import
them in some starts only. tests/integration/start/test_start.py fails if one is missing. A module in the list
that no start needs only makes the file larger.
"""

from __future__ import annotations

import compileall
import marshal
import os
import subprocess
import sys

_ENTRY_POINTS = (
    "xpu_runtime.shim",
    "xpu_runtime.hook",
    "xpu_runtime.start.in_container",
    "xpu_runtime.start.spec_mode",
)
_IN_FUNCTIONS = (
    "xpu_runtime.delivery.contribution",
    "xpu_runtime.placement.marks",
    "xpu_runtime.ledger.quotas",
    "xpu_runtime.limits.interposers",
    "xpu_runtime.limits.pages",
    "xpu_runtime.linux.device_bpf",
    "xpu_runtime.linux.elf",
    "xpu_runtime.linux.library",
    "xpu_runtime.linux.loader",
    "xpu_runtime.linux.rootfs",
    "xpu_runtime.request.quotas",
)


_LIB = os.path.dirname(os.path.realpath(__file__))


def main(will_lie_in: str) -> None:
    for name in ("python", "vendor"):
        folder = os.path.join(_LIB, name)
        _remove_stale(folder)
        # Compile all again: a package's files can have the times and sizes of those that they replace.
        compileall.compile_dir(folder, stripdir=_LIB, prependdir=will_lie_in, quiet=2, force=True)
    _write_bundle(os.path.join(_LIB, "python"))


def _remove_stale(folder: str) -> None:
    """Removes compiled files of other versions and of modules that are gone, and empty folders."""
    for path, _, _ in os.walk(folder, topdown=False):
        if os.path.basename(path) == "__pycache__":
            for name in os.listdir(path):
                source = os.path.join(os.path.dirname(path), f"{name.partition('.')[0]}.py")
                if f".{sys.implementation.cache_tag}." not in name or not os.path.exists(source):
                    os.unlink(os.path.join(path, name))
        if not os.listdir(path):
            os.rmdir(path)


def _write_bundle(folder: str) -> None:
    backends = os.listdir(os.path.join(folder, "xpu_runtime", "limits", "backends"))
    names = [f"xpu_runtime.limits.backends.{name[:-3]}" for name in sorted(backends) if name.endswith(".py")]
    wanted = [*_ENTRY_POINTS, *_IN_FUNCTIONS, *(name for name in names if not name.endswith(".__init__"))]
    imports = f"import sys; sys.path.insert(0, {folder!r}); import {', '.join(wanted)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", imports], stdout=subprocess.PIPE, text=True, check=True
    )
    modules = {}
    for name in done.stdout.split():
        if name.partition(".")[0] != "xpu_runtime":
            continue
        path = name.replace(".", "/")
        is_package = os.path.isdir(os.path.join(folder, path))
        path += "/__init__.py" if is_package else ".py"
        with open(os.path.join(folder, path), encoding="utf-8") as file:
            # Without docstrings and asserts; tracebacks keep their line numbers.
            code = compile(file.read(), path, "exec", dont_inherit=True, optimize=2)
        modules[name] = (is_package, path, marshal.dumps(code))
    sys.path.insert(0, folder)
    import xpu_bundle

    bundle = os.path.join(folder, "start.bundle")
    with open(bundle + ".new", "wb") as file:
        file.write(xpu_bundle.whole(modules))
    os.rename(bundle + ".new", bundle)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else _LIB)
