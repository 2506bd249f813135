"""A bug report is one whole new file of bounded size, and what may be a secret is not in it."""

from __future__ import annotations

import errno
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.doctor import bundle, outline, redact
from xpu_runtime.errors import XpuError


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("see https://me:s3cret@host/x", "see https://[left out]@host/x"),
        ("see https://me:s3/cr@et@host/x y@z", "see https://[left out]@host/x y@z"),
        ("http_proxy: password = s3cret s3cret", "http_proxy: password = [left out]"),
        ('"identityToken": "s3cret"', '"identityToken": [left out]'),
        ("Authorization: Bearer s3cret", "Authorization: [left out]"),
        ("refused: DB_PASS='s3 cret' is set", "refused: DB_PASS=[left out] is set"),
        ("process 12 (mysql (x) -ps3cret), and", "process 12 ([left out]), and"),
        ("GPU 0: 4G of 15G, see https://host/x", "GPU 0: 4G of 15G, see https://host/x"),
        ("first s\npassword: s3cret\nlast", "first s\npassword: [left out]\nlast"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_a_text(words: str, left: str) -> None:
    assert redact.text(words) == left
    assert redact.strings({words: [words, 1, None]}) == {left: [left, 1, None]}


def test_of_other_programs_documents_only_what_is_known_is_kept() -> None:
    document = {
        "path": "/usr/bin/runc",
        "proxies": {"http-proxy": "http://u:s3cret@p", "no-proxy": "x"},
        "debug": True,
        "version": 2,
        "auth": {"path": "s3cret", "number": 7},
        "path-token": 12345,
        "args": ["s3cret", {"BinaryName": "/x"}],
    }
    assert redact.document(document) == {
        "path": "/usr/bin/runc",
        "proxies": {"http-proxy": "[left out]", "no-proxy": "[left out]"},
        "debug": True,
        "version": 2,
        "auth": "[left out]",
        "path-token": "[left out]",
        "args": ["[left out]", {"BinaryName": "/x"}],
    }


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        {"process": 1, "mounts": {}, "hooks": [], "linux": None, "annotations": 3, "root": "x"},
        {"process": {"env": {"A": 1}, "args": "x"}, "mounts": [1, None], "hooks": {"poststop": [0]}},
    ],
)
def test_a_spec_that_makes_no_sense_has_an_outline_too(spec: Any) -> None:
    assert set(outline.of(spec)) == {
        *("ociVersion", "root", "process", "mounts", "hooks", "annotations", "linux"),
    }


def test_an_outline_is_bounded() -> None:
    env = [f"{'A' * 5000}=1"] * 10000
    told = outline.of({"process": {"env": env, "cwd": "/" + "x" * 100000}})
    assert len(str(told)) < 200_000


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "report"
    for kind in ("file", "link"):
        file.write_text("mine") if kind == "file" else file.symlink_to("nowhere")
        with pytest.raises(XpuError, match="is there already"):
            bundle.write(str(file), [("a", "b")])
        assert os.listdir(tmp_path) == ["report"]
        file.unlink()


def test_a_file_that_comes_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "report"

    def parts() -> Any:
        file.write_text("mine")
        yield "a", "b"

    with pytest.raises(XpuError, match="is there already"):
        bundle.write(str(file), parts())
    assert file.read_text() == "mine"
    assert os.listdir(tmp_path) == ["report"]


def test_a_file_system_without_hard_links_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    bundle.write(str(tmp_path / "report"), [("a", "b")])
    assert os.listdir(tmp_path) == ["report"]
    with tarfile.open(tmp_path / "report") as archive:
        assert len(archive.getmembers()) == 1


def test_a_report_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    def parts() -> Any:
        yield "a", "b"
        raise LookupError

    with pytest.raises(LookupError):
        bundle.write(str(tmp_path / "report"), parts())
    assert os.listdir(tmp_path) == []


def test_a_report_is_of_bounded_size(tmp_path: Path) -> None:
    file = tmp_path / "report"
    bundle.write(str(file), ((str(number), os.urandom(1 << 20).hex()) for number in range(20)))
    assert file.stat().st_size < 10 << 20
    with tarfile.open(file) as archive:
        sizes = [entry.size for entry in archive]
    assert len(sizes) == 20
    assert sum(sizes) < (8 << 20) + 2000
