"""Writes the bundle of the modules that a container's start imports: bundle.py FOLDER (the package's).

Most of them are found by importing the entry points. What these import in a function, where only some starts
come by, is listed; tests/integration/test_start.py fails where one is missing. A module that is here and not
imported costs its bytes.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import subprocess
import sys

_ENTRY_POINTS = (
    "xpu_runtime.shim",
    "xpu_runtime.hook",
    "xpu_runtime.start.hook_mode",
    "xpu_runtime.start.spec_mode",
    "xpu_runtime.start.spec_mode_hook",
)
_IN_FUNCTIONS = (
    "xpu_runtime.delivery.contribution",
    "xpu_runtime.limits.interposers",
    "xpu_runtime.limits.pages",
    "xpu_runtime.linux.device_bpf",
    "xpu_runtime.linux.elf",
    "xpu_runtime.linux.library",
    "xpu_runtime.linux.loader",
    "xpu_runtime.linux.rootfs",
)


def main(folder: str) -> None:
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
            # Without docstrings and asserts; tracebacks keep their lines.
            code = compile(file.read(), path, "exec", dont_inherit=True, optimize=2)
        modules[name] = (is_package, path, marshal.dumps(code))
    with open(os.path.join(folder, "start.bundle"), "wb") as bundle:
        bundle.write(marshal.dumps((importlib.util.MAGIC_NUMBER, modules)))


if __name__ == "__main__":
    main(sys.argv[1])
