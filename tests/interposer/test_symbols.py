"""The interposers load in old images, and export only functions that they replace, on both architectures."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from support import REPOSITORY

from .sandboxes import LIBRARIES

#: The loader's name on each architecture.
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
#: Versions in CentOS 7.
OLDEST_GLIBC = (2, 17)
#: Libraries beside the real one. libdl and libpthread are parts of libc since glibc 2.34.
MAY_NEED = {"libc.so.6", "libdl.so.2", "libpthread.so.0"}


@pytest.fixture(scope="session")
def releases(installed: Path) -> dict[str, Path]:
    """The folder of a release for each architecture: this machine's is installed, the other's is built."""
    found = {}
    for machine in LOADERS:
        found[machine] = installed / "lib/xpu-container-runtime/native/interposer/nvidia"
        if machine != platform.machine():
            found[machine] = REPOSITORY / "build" / f"interposer-release-{machine}"
            settings = [f"OUT={found[machine]}", f"CC={machine}-linux-gnu-gcc"]
            command = ["make", "-s", "-C", str(REPOSITORY / "native/interposer/nvidia"), *settings]
            subprocess.run(command, check=True, timeout=300)
    return found


@pytest.fixture(params=LOADERS)
def built(request: pytest.FixtureRequest, releases: dict[str, Path]) -> tuple[str, Path]:
    """An architecture's name, and its release."""
    return request.param, releases[request.param]


def readelf(option: str, library: Path) -> str:
    return subprocess.run(
        ["readelf", "-W", option, library], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_symbol_is_newer_than_the_oldest_images_libc(built: tuple[str, Path], library: str) -> None:
    versions = set(re.findall(r"GLIBC_([\d.]+)", readelf("--version-info", built[1] / library)))
    assert versions
    too_new = {each for each in versions if tuple(map(int, each.split("."))) > OLDEST_GLIBC}
    assert not too_new, readelf("--dyn-syms", built[1] / library)


@pytest.mark.parametrize("library", LIBRARIES)
def test_only_libc_and_the_real_library_are_needed(built: tuple[str, Path], library: str) -> None:
    machine, folder = built
    dynamic = readelf("--dynamic", folder / library)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    # The real library is first: its definitions come before those of any other.
    assert needed[0] == f"/usr/lib/xpu/{library.removesuffix('.so.1')}.real"
    assert set(needed[1:]) <= MAY_NEED | {LOADERS[machine]}
    assert {"libdl.so.2", "libc.so.6"} <= set(needed)
    assert f"[{library}]" in re.findall(r"\(SONAME\).*(\[.*\])", dynamic)
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_segment_is_both_writable_and_executable(built: tuple[str, Path], library: str) -> None:
    headers = readelf("--program-headers", built[1] / library)
    (stack,) = re.findall(r"GNU_STACK.*", headers)
    assert " RW " in stack and "E" not in stack.split()[-2]
    assert "GNU_RELRO" in headers
    assert not re.search(r"LOAD.* RWE ", headers)
    dynamic = readelf("--dynamic", built[1] / library)
    assert "TEXTREL" not in dynamic
    assert "BIND_NOW" in dynamic or "NOW" in dynamic
    assert "NODELETE" in dynamic


@pytest.mark.parametrize(("library", "prefix"), [("libcuda.so.1", "cu"), ("libnvidia-ml.so.1", "nvml")])
def test_only_functions_of_the_real_library_are_exported(
    built: tuple[str, Path], library: str, prefix: str
) -> None:
    lines = [line.split() for line in readelf("--dyn-syms", built[1] / library).splitlines()]
    exported = [
        (words[3], words[7])
        for words in lines
        if len(words) > 7 and words[4] != "LOCAL" and words[6].isdigit()
    ]
    assert len(exported) > 20
    for kind, name in exported:
        assert kind == "FUNC" and re.fullmatch(f"{prefix}[A-Z]\\w*", name), name


@pytest.mark.parametrize("library", LIBRARIES)
def test_both_machines_export_the_same(releases: dict[str, Path], library: str) -> None:
    """A function that is missing on one architecture would bypass the account there."""
    first, second = (
        set(re.findall(r"FUNC +GLOBAL DEFAULT +\d+ (\w+)", readelf("--dyn-syms", folder / library)))
        for folder in releases.values()
    )
    assert first == second and first
