"""A bug report is one whole new file of bounded size, without possible secrets."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.doctor import bundle, redact, redacted_spec
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
        ("-e PW='s3 cret' x", "-e PW=[left out] x"),
        ('A="b \\" s3cret"s3cret x', "A=[left out] x"),
        ("A_PW=a,s3cret; x", "A_PW=[left out] x"),
        ("e db_pwd=s3cret x", "e db_pwd=[left out] x"),
        ("get https://host/x?sig=s3cret", "get https://host/x?sig=[left out]"),
        ("curl -u me:s3cret https://host", "curl -u [left out] https://host"),
        ("mysql -ps3cret --db-pass s3cret", "mysql -p[left out] --db-pass [left out]"),
        ("netroot=iscsi:bob:s3cret@host", "netroot=[left out]"),
        ("iscsi:bob:s3cret@host", "iscsi:[left out]@host"),
        ("systemd.unified_cgroup_hierarchy=1", "systemd.unified_cgroup_hierarchy=1"),
        ("process 12 (mysql (x) -ps3cret), and", "process 12 ([left out]), and"),
        ("GPU 0: 4G of 15G, see https://host/x", "GPU 0: 4G of 15G, see https://host/x"),
        ("first s\npassword: s3cret\nlast", "first s\npassword: [left out]\nlast"),
    ],
)
def test_texts_that_look_like_secrets_are_removed(words: str, left: str) -> None:
    assert redact.text(words) == left
    assert redact.strings({words: [words, 1, None]}) == {left: [left, 1, None]}


def test_other_programs_documents_keep_only_known_values() -> None:
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
        "[left out]": "[left out]",
        "args": ["[left out]", {"BinaryName": "/x"}],
    }


def test_other_programs_documents_keep_no_name_that_somebody_has_chosen() -> None:
    plugin = "io.containerd.grpc.v1.cri"
    document = {
        "plugins": {plugin: {"registry": {"configs": {"u:s3cret@reg": {"tls": {}, "s3cret": 7}}}}},
        "exec-opts": ["native.cgroupdriver=systemd", "pw=s3cret", "s3cret"],
        "s3cret": 1,
        "s3cret2": {"runtimes": {"xpu": {"path": "/usr/bin/x"}}},
    }
    assert redact.document(document) == {
        "plugins": {
            plugin: {"registry": {"configs": {"[left out]": {"tls": {}, "[left out]": "[left out]"}}}}
        },
        "exec-opts": ["native.cgroupdriver=systemd", "[left out]", "[left out]"],
        "[left out]": "[left out]",
        "[left out] 3": {"runtimes": {"xpu": {"path": "/usr/bin/x"}}},
    }


def test_of_words_without_a_name_nothing_is_kept() -> None:
    env = ["s3cret", "czNjcmV0==", "czNj+cmV0=x", "", "http_proxy=s3cret", "XPU_MEM=4G"]
    options = ["ro", "rbind", "s3cret", "password=s3cret", "size=4k"]
    told = redacted_spec.of({"process": {"env": env}, "mounts": [{"options": options}]})
    assert told["process"]["env"] == [*["[left out]"] * 4, "http_proxy", "XPU_MEM"]
    assert told["mounts"][0]["options"] == ["ro", "rbind", "[left out]", "password", "size"]


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
    assert set(redacted_spec.of(spec)) == {
        *("ociVersion", "root", "process", "mounts", "hooks", "annotations", "linux"),
    }


def test_an_outline_is_bounded() -> None:
    env = [f"{'A' * 5000}=1"] * 10000
    told = redacted_spec.of({"process": {"env": env, "cwd": "/" + "x" * 100000}})
    assert len(str(told)) < 200_000


@pytest.mark.parametrize("path", ["", "/tmp/"])
def test_a_path_without_a_name_is_told(path: str) -> None:
    with pytest.raises(XpuError, match=f'"{path}" names no file'):
        bundle.write(path, [])


def test_a_report_that_cannot_be_written_is_named_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / ("x" * 300)
    with pytest.raises(OSError, match="File name too long") as caught:
        bundle.write(str(file), [])
    assert caught.value.filename == str(file)


@pytest.mark.parametrize(("room", "length"), [("nr_inodes=1", 1), ("size=8k", 1 << 16)])
def test_a_full_file_system_is_told_and_has_no_piece_of_it(tmp_path: Path, room: str, length: int) -> None:
    file = tmp_path / "report"
    subprocess.run(["mount", "-t", "tmpfs", "-o", room, "none", tmp_path], check=True)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            bundle.write(str(file), [("a", os.urandom(length).hex())])
        assert caught.value.filename == str(file)
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_file_that_is_there_or_comes_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "report"

    def parts() -> Any:
        file.write_text("mine")
        yield "a", "b"

    for kind in ("file", "link", "meanwhile"):
        if kind != "meanwhile":
            file.write_text("mine") if kind == "file" else file.symlink_to("nowhere")
        with pytest.raises(XpuError, match="is there already"):
            bundle.write(str(file), parts() if kind == "meanwhile" else [("a", "b")])
        assert os.listdir(tmp_path) == ["report"]
        assert kind == "link" or file.read_text() == "mine"
        file.unlink()


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
