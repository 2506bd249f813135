"""The distribution gets another Python while the package is installed, and the compiled files follow."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .root import Root, prepare
from .test_packages import LIB, PACKAGES, image_in, install
from .ways import Runc

pytestmark = pytest.mark.timeout(900)

_LOADER = f"""
import sys
sys.path.insert(0, "{LIB}/python")
import xpu_bundle
xpu_bundle.install()
import xpu_runtime.shim
print(type(xpu_runtime.shim.__loader__).__name__)
"""


def test_compiled_files_follow_the_distributions_python(root: Callable[..., Root], debs: list[Path]) -> None:
    machine = root("forky", packages=PACKAGES["forky"], network=False)
    theirs = machine.path("/usr/bin/python3").readlink().name
    # Debian 13's, the version before forky's: it finds the same libraries here.
    trixie = prepare("trixie", PACKAGES["trixie"])
    earlier = (trixie / "usr/bin/python3").readlink().name
    assert earlier != theirs
    for path in (f"usr/bin/{earlier}", f"usr/lib/{earlier}"):
        subprocess.run(["cp", "-a", trixie / path, machine.path(f"/{path}").parent], check=True)
    move(machine, earlier)
    image_in(machine)
    installed = install(machine, debs)
    assert installed.returncode == 0, installed.stdout
    assert compiled_for(machine) == {tag(machine, earlier)} and is_bundle_of(machine, earlier)

    move(machine, theirs)
    assert machine.run("xpu", "sim", "up", "--topology", "1xT4").returncode == 0
    way = Runc(machine)
    assert not is_bundle_of(machine, theirs)
    ran = way.run(["XPU_MEM=4G"], "nvidia-smi")
    assert "/   4096MiB" in ran.stdout, "a container starts before anything is compiled anew"

    # dpkg runs this by itself after it has unpacked /usr/bin/python3.
    machine.run("dpkg-trigger", "--by-package=python3-minimal", "/usr/bin/python3")
    ran = machine.run("dpkg", "--triggers-only", "--pending")
    assert ran.returncode == 0 and "Processing triggers for xpu-container-runtime" in ran.stdout, ran.stdout
    assert compiled_for(machine) == {tag(machine, theirs)} and is_bundle_of(machine, theirs)
    ran = way.run(["XPU_MEM=4G"], "nvidia-smi")
    assert "/   4096MiB" in ran.stdout


def move(machine: Root, name: str) -> None:
    """Makes /usr/bin/python3 that version, as python3-minimal does."""
    assert machine.run("ln", "-sfn", name, "/usr/bin/python3").returncode == 0


def tag(machine: Root, name: str) -> str:
    return machine.run(name, "-IS", "-c", "import sys; print(sys.implementation.cache_tag)").stdout.strip()


def compiled_for(machine: Root) -> set[str]:
    """The versions for which we have bytecode."""
    paths = machine.run("find", LIB, "-name", "*.pyc").stdout.split()
    assert len(paths) > 100
    return {path.split(".")[-2] for path in paths}


def is_bundle_of(machine: Root, name: str) -> bool:
    return machine.run(name, "-ISB", "-c", _LOADER).stdout == "Bundle\n"
