"""The rpms: built by anybody, the same bytes each time, and nothing in them that stands in for a driver."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import REPOSITORY

from . import building

RUNTIME, SIMULATOR = "xpu-container-runtime", "xpu-simulator"
#: Names that RHEL 9 and 10 have: docs/install.md says so.
IN_RHEL = {
    "(runc or crun)", "python3 >= 3.9",
    "/bin/sh", "/usr/bin/python3", "coreutils", "findutils", "grep", "sed",
}  # fmt: skip
#: RHEL 9's is 2.34; Debian 11's, which roots of these tests have, 2.31.
GLIBC = (2, 27)


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By package name; the source's is "source"."""
    return by_name(building.build("rpm", tmp_path_factory.mktemp("rpm")))


def by_name(files: list[Path]) -> dict[str, Path]:
    return {("source" if file.match("*.src.rpm") else query(file, "%{NAME}")): file for file in files}


def query(file: Path, what: str) -> str:
    command = ["rpm", "-qp", "--queryformat", what, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder below one that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="xpu-rpm-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_another_user_without_a_network_builds_the_same_bytes(
    rpms: dict[str, Path], open_folder: Path
) -> None:
    again = by_name(building.build_elsewhere("rpm", open_folder))
    assert set(again) == set(rpms) == {RUNTIME, SIMULATOR, "source"}
    for name, file in rpms.items():
        assert file.name == again[name].name
        digests = [hashlib.sha256(each.read_bytes()).hexdigest() for each in (file, again[name])]
        assert digests[0] == digests[1], name


def test_rpmlint_has_nothing_to_say(rpms: dict[str, Path]) -> None:
    done = subprocess.run(
        ["rpmlint", "--config", REPOSITORY / "packaging/rpm/rpmlint.toml", *rpms.values()],
        capture_output=True,
        text=True,
    )
    assert "3 packages and 0 specfiles checked; 0 errors, 0 warnings" in done.stdout, done.stdout
    assert done.returncode == 0


def test_it_needs_only_what_rhel_has_and_passes_for_no_driver(rpms: dict[str, Path]) -> None:
    needs = {name: required(file) for name, file in rpms.items()}
    assert needs[RUNTIME] == IN_RHEL | {f"config({RUNTIME}) = {version(rpms)}"}
    of_glibc = {each for each in needs[SIMULATOR] if re.match(r"(libc|libdl|ld-linux).*\.so\.|rtld\(", each)}
    assert needs[SIMULATOR] - of_glibc == {"/bin/sh", f"{RUNTIME}(x86-64) = {version(rpms)}"}
    versions = {
        tuple(map(int, each.split("."))) for each in re.findall(r"GLIBC_([\d.]+)", " ".join(of_glibc))
    }
    assert max(versions) <= GLIBC
    # Engines and compilers would take a library that only containers have for the driver's.
    for name in (RUNTIME, SIMULATOR):
        provided = query(rpms[name], "[%{PROVIDES}\n]").split()
        assert set(provided) <= {name, f"{name}(x86-64)", f"config({name})"}


def version(rpms: dict[str, Path]) -> str:
    return query(rpms[RUNTIME], "%{VERSION}-%{RELEASE}")


def required(file: Path) -> set[str]:
    """What a package requires, but for what it says of rpm itself."""
    lines = query(file, "[%{REQUIRENAME} %{REQUIREFLAGS:depflags} %{REQUIREVERSION}\n]").splitlines()
    return {" ".join(line.split()) for line in lines if not line.startswith("rpmlib(")}


def test_roots_own_files_and_nothing_compiled_for_the_builders_python(rpms: dict[str, Path]) -> None:
    for name in (RUNTIME, SIMULATOR):
        lines = query(rpms[name], "[%{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES}\n]")
        for line in lines.splitlines():
            mode, owner, path = line.split(" ", 2)
            assert owner == "root:root"
            programs = path.startswith("/usr/bin/") or "/native/" in path
            allowed = {"drwxr-xr-x", "-rwxr-xr-x"} if programs else {"drwxr-xr-x", "-rw-r--r--"}
            assert mode in allowed, line
            assert not path.endswith((".pyc", "start.bundle")), path
    flags = query(rpms[RUNTIME], "[%{FILEFLAGS:fflags} %{FILENAMES}\n]").splitlines()
    assert [line.split() for line in flags if "c" in line.partition(" ")[0]] == [
        ["cn", "/etc/xpu/config.yaml"]
    ]
