"""Other interpreters than the build's: no part of a container's start depends on one.

A start uses only the C halves of the standard library's modules, and its own modules from one file for one
version. If one of these is missing, has changed or is damaged, a start takes longer.
"""

from __future__ import annotations

import marshal
import subprocess
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from ..conftest import Bundles, Node

#: Before the first line of shim and hook: the import of `{names}` by `{importers}` ends with `{instead}`.
_OTHER_INTERPRETER = """
import builtins
import sys

def other(name, globals=None, locals=None, fromlist=(), level=0, real=builtins.__import__):
    if name in {names} and (globals or {{}}).get("__name__", "").startswith({importers!r}):
        {instead}
    return real(name, globals, locals, fromlist, level)

class Changed:
    __spec__ = __path__ = None

    def __getattr__(self, name):
        def function(*arguments, one_more):
            pass
        return function

builtins.__import__ = other
"""
_MISSING = "raise ImportError(f'No module named {name!r}')"
_CHANGED = "return Changed()"
_INCOMPLETE = "raise AttributeError('what functools has besides')"
_OURS, _ALL = "xpu_runtime", ""


def gets_its_slice(node: Node, bundle: Path) -> None:
    done = node.run(bundle)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1024MiB" in done.stdout.replace(" ", "")
    assert node.grants() == []


def put_first(copy: Path, text: str) -> None:
    """Has shim and hook begin with `text`."""
    for path in (
        copy / "lib" / "xpu-container-runtime" / "shim.py",
        copy / "lib" / "xpu-container-runtime" / "hook.py",
    ):
        first, _, rest = path.read_text().partition("\n")
        path.write_text(f"{text}\n{first}\n{rest}")


@pytest.mark.parametrize(
    ("names", "importers", "instead"),
    [
        # `json` has a half in Python as well.
        ("_json", _ALL, _MISSING),
        ("_json", _OURS, _CHANGED),
        ("_ctypes", _OURS, _MISSING),
        ("_ctypes", _OURS, _CHANGED),
        ("_sqlite3", _OURS, _MISSING),
        ("_sqlite3", _OURS, _INCOMPLETE),
        ("_json _ctypes _sqlite3 _signal _socket", _OURS, _MISSING),
    ],
)
def test_without_a_c_half_that_we_know_a_start_takes_the_public_module(
    node: Node, copy: Path, bundles: Bundles, names: str, importers: str, instead: str
) -> None:
    put_first(
        copy, _OTHER_INTERPRETER.format(names=tuple(names.split()), importers=importers, instead=instead)
    )
    node.sim("1xT4")
    for mode in ("hook", "spec"):
        node.configure(f"mode: {mode}")
        gets_its_slice(node, bundles("XPU_MEM=1G", args=["nvidia-smi"]))


@pytest.mark.parametrize("name", ["_sqlite3", "_ctypes"])
def test_an_interpreter_without_its_whole_library_refuses_and_says_what_to_install(
    node: Node, copy: Path, bundles: Bundles, name: str
) -> None:
    node.sim("1xT4")
    gets_its_slice(node, bundles("XPU_MEM=1G", args=["nvidia-smi"]))  # with it; and the devices are known
    put_first(copy, _OTHER_INTERPRETER.format(names=(name,), importers=_ALL, instead=_MISSING))
    for mode in ("hook", "spec"):
        node.configure(f"mode: {mode}")
        done = node.run(bundles("XPU_MEM=1G"))
        assert done.returncode != 0
        assert f"lacks a part of its standard library (No module named '{name}')" in done.stderr
        assert "install all of it: libpython3-stdlib on Debian" in done.stderr
        assert "internal error" not in done.stderr


def broken(whole: bytes) -> dict[str, bytes | None]:
    """Useless or damaged bundles, by the kind of damage."""
    middle = len(whole) // 2
    return {
        "missing": None,
        "empty": b"",
        "of another version of Python": bytes([whole[0] ^ 1]) + whole[1:],
        "of another version of ours": marshal.dumps((MAGIC_NUMBER, {})),
        "marshalled, and of another shape": marshal.dumps((MAGIC_NUMBER, 7)),
        "cut short": whole[:middle],
        "cut short in its index": whole[:100],
        "with a byte of the index changed": whole[:60] + bytes([whole[60] ^ 0x20]) + whole[61:],
        "with codes overwritten": whole[:middle] + b"\xff" * (len(whole) - middle),
    }


def test_a_bundle_of_modules_that_is_damaged_costs_time_and_nothing_else(
    node: Node, copy: Path, bundles: Bundles
) -> None:
    node.sim("1xT4")
    file = copy / "lib" / "xpu-container-runtime" / "python" / "start.bundle"
    for content in broken(file.read_bytes()).values():
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        gets_its_slice(node, bundles("XPU_MEM=1G", args=["nvidia-smi"]))
    for something_else in ("mkfifo {0}", "mkdir {0}", "truncate -s 3G {0}"):
        subprocess.run(f"rm -rf {file}; {something_else.format(file)}", shell=True, check=True)
        gets_its_slice(node, bundles("XPU_MEM=1G", args=["nvidia-smi"]))
