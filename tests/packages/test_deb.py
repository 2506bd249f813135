"""The Debian packages as such: lintian, who can build them, what they depend on; two builds are the same."""

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

#: Packages of Ubuntu that ours names, and others by which the same is had; where they are from says the file.
_UBUNTU = json.loads(Path(__file__).with_name("ubuntu.json").read_text())["releases"]


def test_lintian_finds_no_error_and_no_warning(debs: list[Path], tmp_path: Path) -> None:
    # It leaves files in the folder for temporary ones.
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    # What is overridden is explained where it is: packaging/deb/*.lintian-overrides.
    command = ["lintian", "--allow-root", "--fail-on=error,warning", "--info", *map(str, debs)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that an ordinary user may enter, as pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix="xpu-deb-") as name:
        yield Path(name)


def test_an_ordinary_user_without_a_network_builds_the_same_bytes(debs: list[Path], elsewhere: Path) -> None:
    theirs = building.build_elsewhere("deb", elsewhere)
    assert [deb.name for deb in theirs] == [deb.name for deb in debs]
    for deb, other in zip(debs, theirs, strict=True):
        assert filecmp.cmp(deb, other, shallow=False), f"two builds of {deb.name} differ"


@pytest.mark.parametrize("release", _UBUNTU)
def test_ubuntu_has_what_the_packages_depend_on(debs: list[Path], release: str) -> None:
    # Its mirror may be out of reach: names and versions are compared with what is written down.
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
