"""Functions by name on a driver's own library: cuGetProcAddress against the exported symbols, past and
through the interposer. It needs only the library, no card.

lookups.py [FOLDER]: without an argument in a slice; with one in a sandbox over the driver's libraries there.
"""

from __future__ import annotations

import base64
import collections
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card

#: The CUDA_VERSION of cuda.h that a program was built with, and its flags: none, legacy stream, per-thread
#: stream.
VERSIONS = (11000, 11030, 11070, 12000, 12020, 12080, 13000)
FLAGS = (0, 1, 2)
REPOSITORY = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../.."))
#: The decisions about each function, and the expected exports of each driver branch.
DECIDED, LISTED = "native/interposer/nvidia/cuda/driver/functions.txt", "sim/exports/libcuda.txt"
#: A debugger's interface.
_DEBUGGER = "cudbg"
_VARIANT = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


def in_sandbox(folder: str) -> int:
    """Runs this script in a sandbox over the libraries of `folder`."""
    sys.path[:0] = [os.path.join(REPOSITORY, "packaging"), os.path.join(REPOSITORY, "src")]
    import sandbox
    from xpu_runtime.limits import pages

    with tempfile.TemporaryDirectory(prefix="xpu-gpu-") as place:
        pages.create(place, "lookups", (pages.Entry(f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}", 1 << 30),))
        words = [sys.executable, os.path.realpath(__file__)]
        command = sandbox.command(
            words, pages=place, real=os.path.abspath(folder), interposers=sandbox.build()
        )
        return subprocess.run(command, env=sandbox.environ()).returncode


def exported(library: str) -> list[str]:
    """The functions of CUDA's interface that a library exports."""
    if not shutil.which("nm"):
        card.skip("no nm (binutils)")
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    words = [line.split() for line in done.stdout.split("\n") if line]
    return sorted(fields[-1].split("@")[0] for fields in words if fields[-1].startswith("cu"))


def decided() -> set[str]:
    """The functions, without their variants, that DECIDED has a decision about."""
    with open(os.path.join(REPOSITORY, DECIDED)) as table:
        lines = [line for line in table if not line.startswith(("#", "["))]
    return {name for line in lines for name in line.split()}


def listed() -> dict[str, set[str]]:
    """Driver branch → the names of LISTED, each branch with those of the ones before it."""
    branches: dict[str, set[str]] = {}
    names: set[str] = set()
    with open(os.path.join(REPOSITORY, LISTED)) as lines:
        for line in map(str.strip, lines):
            if line.startswith("["):
                names = branches[line.strip("[]")] = set(names)
            elif line.startswith("-"):
                names.discard(line[1:])
            elif line and not line.startswith("#"):
                names.add(line.split()[0])
    return branches


def compare(names: list[str]) -> None:
    """Reports the driver's names that we do not know."""
    try:
        known, branches = decided(), listed()
    except OSError as error:  # only these scripts were copied
        card.report("exported, compared", f"not possible: {error.strerror}: {error.filename}")
        return
    theirs = set(names)
    unknown = {_VARIANT.sub("", name) for name in theirs if not name.startswith(_DEBUGGER)} - known
    card.report("exported, without a decision", ", ".join(sorted(unknown)) or "none")
    branch = min(branches, key=lambda each: len(branches[each] ^ theirs))
    more, fewer = sorted(theirs - branches[branch]), sorted(branches[branch] - theirs)
    card.report(f"exported, not by {branch} in {LISTED}", ", ".join(more) or "none")
    card.report(f"exported by {branch} there, not here", ", ".join(fewer) or "none")


def packed(names: list[str]) -> str:
    return base64.b64encode(zlib.compress("\n".join(names).encode(), 9)).decode()


def unpacked(text: str) -> list[str]:
    """Undoes `packed`."""
    return zlib.decompress(base64.b64decode(text)).decode().split("\n")


def address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(library[name], ctypes.c_void_p).value or 0


def ask(library: ctypes.CDLL, function: str, name: str, version: int, flags: int) -> int:
    """The address that it returns; 0: none."""
    given, status = ctypes.c_void_p(), ctypes.c_int()
    words = [name.encode(), ctypes.byref(given), version, ctypes.c_uint64(flags)]
    if function.endswith("_v2"):
        words.append(ctypes.byref(status))
    return (given.value or 0) if library[function](*words) == 0 else 0


def main() -> None:
    path = f"{card.folder()}/libcuda.real"
    interposer = ctypes.CDLL("libcuda.so.1")
    real = ctypes.CDLL(path)
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "libcuda" in line}
    (interposed_at,) = (name for name in loaded if name != path)
    names, interposed = exported(path), set(exported(interposed_at))
    symbols = collections.defaultdict(list)
    for name in names:
        symbols[address(real, name)].append(name)
    bases = sorted({_VARIANT.sub("", name) for name in names})
    functions = [name for name in ("cuGetProcAddress", "cuGetProcAddress_v2") if name in names]
    card.report(
        "exported functions", f"{len(names)}, of {len(bases)} names; in the interposer {len(interposed)}"
    )

    answers, variants, ours, strange, wrong = 0, set(), set(), set(), set()
    for function in functions:
        for name in bases:
            for version in VERSIONS:
                for flags in FLAGS:
                    there = ask(real, function, name, version, flags)
                    here = ask(interposer, function, name, version, flags)
                    if not there:
                        if here:
                            wrong.add(name)
                        continue
                    answers += 1
                    variants.add(there)
                    found = symbols.get(there, [])
                    if not found:
                        strange.add(name)
                    mine = [symbol for symbol in found if symbol in interposed]
                    ours.update(mine)
                    if here != (address(interposer, mine[0]) if mine else there):
                        wrong.add(name)
    card.report("answers", f"{answers} of {', '.join(functions)}, {len(variants)} different addresses")
    card.report("of them the interposer's own", f"{len(ours)} functions")
    card.check(not strange, f"each address is that of an exported symbol{_some(strange)}")
    card.check(not wrong, f"the interposer answers with its own function or the same address{_some(wrong)}")
    unasked = sorted(name for name in interposed & set(names) if name not in ours)
    card.report("interposed, reached only by dlsym", ", ".join(unasked) or "none")
    card.report("interposed, not in this driver", ", ".join(sorted(interposed - set(names))) or "none")
    compare(names)
    # the last result: a record's row has no room for all of it
    card.report("exported, packed", packed(names))
    card.end()


def _some(names: set[str]) -> str:
    return f" (not so: {', '.join(sorted(names)[:10])})" if names else ""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(in_sandbox(sys.argv[1]))
    main()
