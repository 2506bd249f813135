"""Sets a machine up for a run, without a network: equip.py [--kit DIR] [--any-kit]

Everything goes to kit.PLACE and this repository's build folder; nothing else is installed. Tools that the
machine lacks come from the kit. The product is built here if there are make and a compiler; otherwise the
packed one is used. If no cgroups are mounted, they are mounted: runc starts nothing without.
kit.PLACE/machine.json describes the result for the steps that follow, and for the next run of the same kit
and tree. Exit status 0: ready; 1: something failed, and a line FAILED says what.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

import card
import kit

sys.path.insert(0, str(kit.REPOSITORY / "src"))

from xpu_runtime import finding
from xpu_runtime.doctor.areas import kernel
from xpu_runtime.linux import cgroups
from xpu_runtime.vendors.nvidia import search

ROOT, TOOLS, STATE = kit.PLACE / "root", kit.PLACE / "bin", kit.PLACE / "machine.json"
BUILD = kit.REPOSITORY / "build"
#: The root of a running simulation on this machine (host.py), to rehearse.
DRIVER_ROOT = os.environ.get("XPU_GPU_ROOT") or "/"
_NAME = "xpu-container-runtime"
#: The least version, and modules of the standard library that the product needs and a reduced Python may
#: lack.
_NEEDED = "import ctypes, hashlib, json, sqlite3, sys; sys.exit(sys.version_info < (3, 9))"
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_BUILD_S, _PATIENCE = 90, 30
#: A driver with an unusual layout may be below these.
_ELSEWHERE = ("/usr/local/nvidia", "/opt/nvidia", "/usr/lib64", "/usr/lib", "/usr/local/lib")
#: A folder that the product knows, and that no host has by chance.
_KNOWN = "/opt/nvidia/lib64"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kit", type=Path, default=kit.KIT, help="the folder that `make lease` made")
    parser.add_argument("--any-kit", action="store_true", help="accept a packed tree of other sources")
    return parser.parse_args()


def ran(*words: object, timeout: float = _PATIENCE) -> tuple[bool, str]:
    """Whether a command succeeded, and its output."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, done.stdout.decode(errors="replace").strip()


def which(name: str, *more: Path) -> str:
    """The path of a program, on PATH and in root's folders; empty: it is missing."""
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", *map(str, more)]
    return shutil.which(name, path=":".join(folders)) or ""


# ---- interpreters ----


def product_python() -> str:
    """The interpreter that runs the product; empty: none does."""
    # A virtual environment's interpreter has a base interpreter: with -IS both are the same.
    behind = [os.path.realpath(path) for path in (shutil.which("python3"), sys.executable) if path]
    candidates = list(dict.fromkeys(["/usr/bin/python3", *behind]))
    found = next((each for each in candidates if ran(each, "-IS", "-c", _NEEDED)[0]), "")
    none = f"{', '.join(candidates)} are unsuitable"
    card.check(bool(found), f"the product's interpreter: {found or none}")
    return found


def measuring_python() -> str:
    """The interpreter with torch; if none has it, the one on PATH."""
    kept = sorted(glob.glob("/opt/*/.venv/bin/python3") + glob.glob("/opt/*/bin/python3"))
    candidates = list(dict.fromkeys([*filter(None, [shutil.which("python3")]), sys.executable, *kept]))
    found = next((each for each in candidates if ran(each, "-c", _HAS_TORCH)[0]), "")
    without = f"{candidates[0]}; no torch in any of {', '.join(candidates)}"
    card.report("the measuring interpreter", found or without)
    return found or candidates[0]


# ---- missing tools ----


def add_tools(folder: Path, files: Sequence[str]) -> None:
    """Takes runc and busybox from the kit if the machine has none."""
    for each in (TOOLS, kit.LIBRARIES):
        each.mkdir(parents=True, exist_ok=True)
    for path in files:
        if path.startswith("lib/"):
            shutil.copy(folder / path, kit.LIBRARIES)
    for name, word in (("runc", "--version"), ("busybox", "true")):
        if not which(name) and f"bin/{name}" in files:
            shutil.copy(folder / "bin" / name, TOOLS / name)
            (TOOLS / name).chmod(0o755)
        program = which(name, TOOLS)
        works, text = ran(program, word) if program else (False, "neither on this machine nor in the kit")
        card.check(works, f"{name}: {program} {' '.join(text.split())[:120]}")


def add_programs(folder: Path, files: Sequence[str]) -> None:
    """Puts the packed programs where a compiler would have put them."""
    for path in files:
        if path.startswith("build/"):
            target = kit.REPOSITORY / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # They are newer than their sources, so that make does not build them again.
            shutil.copyfile(folder / path, target)
            target.chmod(0o755)


def mount_cgroups() -> None:
    """Mounts cgroups if no container could start without, by the rule of `xpu doctor`."""
    found = kernel.of_cgroups(cgroups.mounted(), os.path.isdir("/run/systemd/system"))
    if found.state != finding.PROBLEM:
        card.report("cgroups", found.text)
        return
    done, text = ran("sh", "-ec", found.todo)
    card.check(done, f"{found.text}; {found.todo} {text}")


def find_driver() -> None:
    """Makes the product find the driver. It takes no driver from an unknown folder, nor from one that others
    can write to, as a lent machine's may be. It takes the one in the loader's cache."""
    found = search.search(DRIVER_ROOT)
    if found.folder:
        card.report("the driver", found.folder)
        return
    folder, why = found.refused_folder, found.refused
    if not folder:
        folder, why = elsewhere(), "it is in no known folder"
    if folder:
        offer(folder, why, writable=bool(found.refused_folder))
    elif nodes := sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/proc/driver/nvidia/version")):
        card.check(False, f"{nodes[0]} exists without a driver's library: {found.missing}")
    else:
        card.report("the driver", kit.NO_DRIVER)


def offer(folder: str, why: str, *, writable: bool) -> None:
    """Makes the driver known by the loader's cache, or by a copy in a folder that the product knows.
    `writable`: others can put files there, so no program of the host may be led to it."""
    if not writable:
        _, text = ran(which("ldconfig") or "ldconfig", folder)
        if search.search("/").folder:
            card.check(True, f"ldconfig {folder}: {why}")
            return
        why += f", and ldconfig {folder} did not help: {text or 'it printed nothing'}"
    with contextlib.suppress(OSError):
        shutil.copytree(folder, _KNOWN, symlinks=True, dirs_exist_ok=True)
        os.chmod(_KNOWN, 0o755)  # the copied mode was the other folder's
    card.check(bool(search.search("/").folder), f"{folder} is copied to {_KNOWN}: {why}")


def elsewhere() -> str:
    """A folder with the driver's library that the product does not know; empty: there is none."""
    named = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each.startswith("/")]
    # Links are not followed: they may lead in a circle.
    trees = (os.walk(top) for top in _ELSEWHERE)
    below = [f"{folder}/{search.NVML}" for tree in trees for folder, _, files in tree if search.NVML in files]
    for path in [*(f"{each}/{search.NVML}" for each in named), *below]:
        with contextlib.suppress(OSError), open(path, "rb") as library:
            # ELF, 64 bits.
            if library.read(5) == b"\x7fELF\x02":
                return os.path.dirname(path)
    return ""


# ---- the product ----


def build(folder: Path, python: str, commit: str) -> str:
    """Runs `make install` in this tree. Returns nothing, or the reason of a failure."""
    missing = [name for name in ("make", "cc", "flock") if not which(name)]
    if missing:
        return f"no {', '.join(missing)}"
    if (folder / "wheels").is_dir():
        shutil.rmtree(BUILD / "wheels", ignore_errors=True)
        shutil.copytree(folder / "wheels", BUILD / "wheels")
    words = [
        "install",
        f"PREFIX={ROOT}",
        "DESTDIR=",
        f"PYTHON={python}",
        *([f"COMMIT={commit}"] if commit else []),
    ]
    done, text = ran("make", "-C", kit.REPOSITORY, *words, timeout=_BUILD_S)
    return "" if done else f"make {' '.join(words)}: {' '.join(text[-300:].split())}"


def unpack(folder: Path, python: str) -> str:
    """Unpacks the packed tree for this machine's interpreter. Returns nothing, or why it failed."""
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    try:
        with tarfile.open(folder / "tree.tar.gz") as archive:
            # The archive is ours. Newer versions of Python must be told so.
            trusted = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(ROOT, **trusted)
    except (OSError, tarfile.TarError) as error:
        return f"tree.tar.gz: {error}"
    # The packed launcher and xpu start this interpreter.
    kit.INTERPRETER.unlink(missing_ok=True)
    kit.INTERPRETER.symlink_to(python)
    done, text = ran(python, "-IS", ROOT / "lib" / _NAME / "precompile.py", timeout=_BUILD_S)
    return "" if done else f"precompile.py: {' '.join(text[-300:].split())}"


def install(folder: Path, manifest: dict[str, Any], python: str, any_kit: bool) -> bool:
    """Installs the product in ROOT, built here or packed. False: neither worked."""
    changed = kit.differences(manifest) if manifest else []
    other = f"{len(changed)} of the kit's sources differ here, such as {', '.join(changed[:3])}"
    failure = build(folder, python, "" if changed else manifest.get("commit", ""))
    if not failure:
        card.report("built here", other if changed else "from the kit's sources")
    elif not manifest:
        failure = f"not built here ({failure}), and there is no kit"
    elif changed and not any_kit:
        failure = f"not built here ({failure}), and {other}: run `make lease` again, or give --any-kit"
    else:
        card.report("not built here", failure)
        card.report("the packed tree", other if changed else "of the same sources")
        failure = unpack(folder, python)
        add_programs(folder, [each["path"] for each in manifest["files"]])
    works, text = (False, failure) if failure else ran(ROOT / "bin" / "xpu", "--version")
    return card.check(works, f"the product in {ROOT}: {text}")


def used_again(identity: str) -> bool:
    """Whether an earlier run has set this machine up for the same kit and tree."""
    try:
        known = json.loads(STATE.read_text())["identity"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return bool(known == identity and ran(ROOT / "bin" / "xpu", "--version")[0])


def remember(state: dict[str, Any]) -> None:
    """The file is whole or missing: a run may be killed here."""
    new = STATE.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.rename(STATE)


def main() -> None:
    """Sets up what it can, and reports the rest."""
    try:
        set_up(arguments())
    except OSError as error:
        place = f"{kit.PLACE} and {BUILD} must be writable: mount a tmpfs on a folder that is not"
        card.check(False, f"{error}: {place}")
    card.end()


def set_up(options: argparse.Namespace) -> None:
    manifest: dict[str, Any] = {}
    try:
        manifest = kit.read(options.kit)
        card.report("kit", f"{options.kit}, of commit {manifest['commit']}")
    except kit.KitError as error:
        card.check(False, str(error))
    whole = json.dumps([manifest, kit.sources(), sys.executable, DRIVER_ROOT], sort_keys=True)
    identity = hashlib.sha256(whole.encode()).hexdigest()
    mount_cgroups()
    find_driver()
    if used_again(identity):
        card.check(True, f"set up by an earlier run, in {kit.PLACE}")
        return
    STATE.unlink(missing_ok=True)
    add_tools(options.kit, [each["path"] for each in manifest.get("files", [])])
    product, measuring = product_python(), measuring_python()
    if product and install(options.kit, manifest, product, options.any_kit):
        # Commands without a measuring program's own folder find a runc this way that is on no system path.
        settings = kit.PLACE / "config.yaml"
        driver = f"driver: {{root: {DRIVER_ROOT}}}\n" if DRIVER_ROOT != "/" else ""
        settings.write_text(f"low_level_runtimes: [{which('runc', TOOLS) or 'runc'}]\n{driver}")
        state = {"identity": identity, "prefix": str(ROOT), "python": measuring, "tools": str(TOOLS)}
        remember({**state, "config": str(settings)})


if __name__ == "__main__":
    main()
