"""The Debian packages as such: lintian, builds by an ordinary user, dependencies, and equal bytes of two
builds."""

from __future__ import annotations

import filecmp
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import building

#: Ubuntu's packages that ours depend on, and the packages that provide them; the file says where the facts
#: come from.
_UBUNTU = json.loads(Path(__file__).with_name("ubuntu.json").read_text())["releases"]


def test_lintian_finds_no_error_and_no_warning(debs: list[Path], tmp_path: Path) -> None:
    # lintian leaves files in the folder for temporary ones.
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    # Each override is explained where it is: packaging/deb/*.lintian-overrides.
    command = ["lintian", "--allow-root", "--fail-on=error,warning", "--info", *map(str, debs)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that an ordinary user may enter; pytest's own is private."""
    with tempfile.TemporaryDirectory(prefix="xpu-deb-") as name:
        yield Path(name)


def test_an_ordinary_user_without_a_network_builds_the_same_bytes(debs: list[Path], elsewhere: Path) -> None:
    theirs = building.build_elsewhere("deb", elsewhere)
    assert [deb.name for deb in theirs] == [deb.name for deb in debs]
    for deb, other in zip(debs, theirs, strict=True):
        assert filecmp.cmp(deb, other, shallow=False), f"two builds of {deb.name} differ"


@pytest.mark.parametrize("release", _UBUNTU)
def test_ubuntu_has_what_the_packages_depend_on(debs: list[Path], release: str) -> None:
    # Ubuntu's mirror may be out of reach, so the names and versions come from a file.
    known = {**_UBUNTU[release], **{path.name.split("_")[0]: path.name.split("_")[1] for path in debs}}
    for deb in debs:
        for field in ("Depends", "Pre-Depends", "Recommends"):
            for wanted in filter(None, _field(deb, field).split(", ")):
                assert any(_has(known, each) for each in wanted.split(" | ")), f"{field}: {wanted}"


def _field(deb: Path, field: str) -> str:
    command = ["dpkg-deb", "--field", str(deb), field]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _has(known: dict[str, str], wanted: str) -> bool:
    """Whether these packages meet a dependency such as `python3 (>= 3.9)`."""
    parts = re.fullmatch(r"([a-z0-9.+-]+)(?: \(([<>=]+) ([^)]+)\))?", wanted)
    assert parts is not None, wanted
    name, relation, version = parts.groups()
    if name not in known or relation is None:
        return name in known
    return subprocess.run(["dpkg", "--compare-versions", known[name], relation, version]).returncode == 0
