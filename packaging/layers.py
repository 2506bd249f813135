"""Checks that no arrow in the graphs of imports and includes goes upwards or in a circle; a part of `lint`.

For Python these are the imports between the modules of src and of sim/python, with those for types alone.
import-linter (pyproject.toml) has the order of the packages; this file has the modules of kubernetes/ that
commands may import. For C these are the includes between files, in the order of folders below. Every module
must open with its purpose. Calls between C files are not seen here; a test compares those of the account and
the interposers with the order of the files.
"""

from __future__ import annotations

import ast
import graphlib
import os
import re
import subprocess
import sys

import grimp

#: Folders of C, the lowest first: each may include from itself and from the named ones.
ORDER = {
    "native/headers/cuda": (),
    "native/headers/nvml": (),
    "native/abi": (),
    "native/clock": (),
    "native/account": ("native/abi", "native/clock"),
    "native/interposer/nvidia": (),
    "native/interposer/nvidia/client": ("native/account", "native/headers/nvml"),
    **{
        f"native/interposer/nvidia/cuda/{name}": (
            "native/abi",
            "native/account",
            "native/headers/cuda",
            "native/headers/nvml",
            "native/interposer/nvidia/client",
            *(f"native/interposer/nvidia/cuda/{each}" for each in lower),
        )
        for name, lower in (
            ("driver", ()),
            ("memory", ("driver",)),
            ("pacing", ("driver",)),
            ("calls", ("driver", "memory", "pacing")),
        )
    },
    "native/interposer/nvidia/nvml": (
        "native/account",
        "native/headers/nvml",
        "native/interposer/nvidia/client",
    ),
    "native/launcher": (),
    "native/probe": ("native/headers/cuda",),
    "sim": (),
    "sim/exports": (),
    "sim/client": ("sim",),
    "sim/driver": ("sim",),
    **{
        f"sim/cuda{room and '/'}{room}": (
            *("sim", "sim/client", "native/clock", "native/headers/cuda"),
            *(f"sim/cuda/{each}" for each in lower),
        )
        for room, lower in (
            ("core", ()),
            ("memory", ("core",)),
            ("code", ("core", "memory")),
            ("graphs", ("core", "memory", "code")),
            ("streams", ("core", "memory", "code", "graphs")),
            ("", ("core", "memory", "code", "graphs", "streams")),
        )
    },
    "sim/cudart": ("sim/cuda/core",),
    "sim/nvml": ("sim/client", "native/headers/nvml"),
    "sim/mps": ("sim",),
    "sim/mps/control": ("sim",),
    "sim/smi": ("native/headers/nvml",),
}

#: The modules of kubernetes/ that commands may import. No other package may import any (import-linter).
FACE = {
    *("access", "api", "configuration", "keys_in_use", "report", "resources"),
    "device_plugin.plugin",
    *(f"extender.{name}" for name in ("certificate", "keys", "leader_election", "service")),
    *(f"node_setup.{name}" for name in ("host", "keeper", "pod", "setup", "tree")),
}
_KUBERNETES = "xpu_runtime.kubernetes."

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
#: The compilers' include folders, besides a file's own (the Makefiles' -I).
_INCLUDE_PATH = ("native", "native/interposer/nvidia")
#: Lines that may stand before the opening comment.
_BEFORE_COMMENT = re.compile(r"(?:#(?:define|include)[^\n]*\n|\n)*/\*")
_HERE = "packaging/layers.py"

Graph = dict[str, set[str]]


def main() -> int:
    files = subprocess.run(
        ["git", "ls-files", "src", "native", "sim"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    sources = {
        path: _read(path) for path in files if path.endswith((".py", ".c", ".h")) and os.path.exists(path)
    }
    problems = [
        f"{path}: does not open with what it is for" for path in sources if not _opens_well(path, sources)
    ]
    imports = _imports()
    problems += _circles(imports, "imports")
    problems += [
        f"{module}: imports {target}, which is not in FACE of {_HERE}"
        for module, targets in imports.items()
        for target in targets
        if target.startswith(_KUBERNETES)
        and not module.startswith(_KUBERNETES)
        and target[len(_KUBERNETES) :] not in FACE
    ]
    includes, upwards = _includes({path: text for path, text in sources.items() if not path.endswith(".py")})
    problems += upwards + _circles(includes, "includes")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _opens_well(path: str, sources: dict[str, str]) -> bool:
    """Whether a file begins with a docstring or comment; the comment of a .c file may be in its header."""
    text = sources[path]
    if path.endswith(".py"):
        return not text or ast.get_docstring(ast.parse(text)) is not None
    header = os.path.splitext(path)[0] + ".h"
    return _BEFORE_COMMENT.match(text) is not None or (header != path and header in sources)


def _imports() -> Graph:
    graph = grimp.build_graph("xpu_runtime", "xpu_simulator", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def _includes(sources: dict[str, str]) -> tuple[Graph, list[str]]:
    """The includes between files of C, and the errors in single includes."""
    graph: Graph = {}
    problems = []
    for path, text in sources.items():
        folder = os.path.dirname(path)
        for name in _INCLUDE.findall(text):
            places = [os.path.normpath(os.path.join(root, name)) for root in (folder, *_INCLUDE_PATH)]
            target = next((place for place in places if os.path.exists(place)), None)
            if target is None:
                problems.append(f"{path}: includes {name}, which is not there")
                continue
            other = os.path.dirname(target)
            if folder in ORDER and other != folder and other not in ORDER[folder]:
                problems.append(f"{path}: includes {target}, which is not below it: see ORDER in {_HERE}")
            graph.setdefault(path, set()).add(target)
    folders = {os.path.dirname(path) for path in sources if "/tests" not in path}
    problems += [f"{folder}: has no place in ORDER of {_HERE}" for folder in sorted(folders - ORDER.keys())]
    return graph, problems


def _circles(graph: Graph, verb: str) -> list[str]:
    """A line for a circle, if there is one."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"a circle of {verb}: {' -> '.join(reversed(error.args[1]))}"]
    return []


if __name__ == "__main__":
    sys.exit(main())
