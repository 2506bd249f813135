"""The program bench/gpu/lease by itself, and its kit for a machine (packaging/lease.py)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import kit as kits
import pytest

import lease

from .lent_machine import make_kit
from .scripts import SCRIPTS

LEASE = str(SCRIPTS / "lease")

# ---- the program ----


def test_an_unknown_step_is_refused_and_the_known_ones_are_named() -> None:
    words = [sys.executable, "-B", LEASE, "1", "--only", "container", "--only", "anwsers"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and not done.stdout
    assert "no step of this run has 'anwsers'" in done.stderr and "used memory, answers, cases" in done.stderr


def test_the_card_is_held_open_and_a_hanging_one_delays_nothing(tmp_path: Path) -> None:
    script = """
import os, runpy, sys, time
keep_awake = runpy.run_path(sys.argv[1])["keep_awake"]
os.mkfifo(sys.argv[3])
keep_awake(sys.argv[3])
keep_awake(sys.argv[2])
fds = "/proc/self/fd/"
while not any(os.path.realpath(fds + each) == sys.argv[2] for each in os.listdir(fds)):
    time.sleep(0.01)
print("held")
"""
    node = tmp_path / "node"
    node.touch()
    words = [sys.executable, "-c", script, LEASE, str(node), str(tmp_path / "hangs")]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60).stdout == "held\n"


# ---- the kit itself ----


def test_the_same_files_make_the_same_kit(kit: Path) -> None:
    before = {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()}
    assert make_kit() == kit
    assert {path: path.read_bytes() for path in kit.rglob("*") if path.is_file()} == before


def test_a_kit_lists_its_files_and_is_refused_if_they_differ(kit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kit"
    shutil.copytree(kit, folder)
    manifest = kits.read(folder)
    assert {"bin/runc", "bin/busybox", "tree.tar.gz", "build/bench/share-load"} <= {
        each["path"] for each in manifest["files"]
    }
    assert kits.differences(manifest) == []
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < kits.MOST
    with (folder / "bin/busybox").open("ab") as file:
        file.write(b"more")
    with pytest.raises(kits.KitError, match="bin/busybox is missing or differs"):
        kits.read(folder)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "{}",
        '{"format": 1}',
        '{"format": 1, "files": [1], "sources": {}, "commit": ""}',
        '{"format": 1, "files": null, "sources": {}, "commit": ""}',
        '{"format": 1, "files": [], "sources": [], "commit": ""}',
    ],
)
def test_an_invalid_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / kits.MANIFEST).write_text(text)
    with pytest.raises(kits.KitError, match="run `make lease`"):
        kits.read(tmp_path)


def test_a_kit_that_is_too_large_names_its_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kits, "MOST", 1000)
    for name, size in (("small", 10), ("large", 2_000_000)):
        (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(lease.PackError, match=r"2\.0 MB of at most 0; the largest: large 2\.0 MB, small"):
        lease.write_manifest(tmp_path, "", {"small": ("", ""), "large": ("", "")})
