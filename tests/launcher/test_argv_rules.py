"""One set of rules for the command line: in C, in Python, and in the real runc."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xpu_runtime.oci.argv import Invocation, parse

RUNC = "/usr/sbin/runc"
CWD = "/somewhere"

GLOBALS = ["--root", "-root", "--log", "--log-format", "--criu", "--rootless", "--debug", "--systemd-cgroup"]
GLOBALS += ["--cgroup-manager", "--help", "-h", "--version", "-v", "--debug=true", "--debug=0", "--debug=no"]
OWN = ["--bundle", "-bundle", "-b", "--pid-file", "--console-socket", "--no-pivot", "--no-new-keyring"]
OWN += ["--preserve-fds", "--detach", "-d", "--keep", "--no-subreaper", "--image-path", "--empty-ns"]
OWN += ["--config", "-f", "--pidfd-socket", "-h", "--help=false", "---bundle", "-=x", "--nope", "-x=1"]
PLAIN = ["one", "two", "create", "run", "restore", "state", "delete", "", "-", "--", "-b=/foo/=bar", "x=y"]
WORDS = st.one_of(
    st.sampled_from(GLOBALS + OWN + PLAIN),
    st.sampled_from(OWN + ["--log", "--root"]).map(lambda option: f"{option}=val=ue"),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
)
LINES = st.one_of(
    st.lists(WORDS, max_size=10),
    st.tuples(
        st.lists(st.sampled_from(GLOBALS + ["value"]), max_size=3),
        st.sampled_from(["create", "run", "restore"]),
        st.lists(WORDS, max_size=8),
    ).map(lambda parts: [*parts[0], parts[1], *parts[2]]),
)


@pytest.fixture(scope="module")
def in_c(argv_dump: Path) -> Iterator[Callable[[list[str]], list[str | None]]]:
    """What the launcher reads from a line: creates, subcommand, id, bundle, config, log, log format."""
    process = subprocess.Popen([argv_dump], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def field() -> str | None:
        text = bytearray()
        while (byte := stdout.read(1)) != b"\0":
            assert byte, "argv_dump died"
            text += byte
        return text[1:].decode() if text[:1] == b"+" else None

    def ask(words: list[str]) -> list[str | None]:
        stdin.write(f"{len(words)}\n".encode() + b"".join(word.encode() + b"\0" for word in words))
        stdin.flush()
        return [field() for _ in range(7)]

    yield ask
    stdin.close()
    assert process.wait(timeout=10) == 0
    stdout.close()


@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=LINES)
def test_the_launcher_and_the_shim_read_every_line_alike(
    in_c: Callable[[list[str]], list[str | None]], words: list[str]
) -> None:
    creates, subcommand, container_id, bundle, config, log, log_format = in_c(words)
    read = parse(words, CWD)
    assert (creates is not None) == read.creates
    assert subcommand == read.subcommand
    assert container_id == read.container_id
    assert os.path.join(CWD, bundle or "").rstrip("/") == read.bundle.rstrip("/")
    beside = read.bundle if config in (None, "config.json") else CWD
    assert os.path.join(beside, config if config is not None else "config.json") == read.spec_path
    assert (os.path.join(CWD, log) if log else None) == read.log
    assert (log_format if log_format is not None else "text") == read.log_format


@pytest.fixture(scope="module")
def folder_of_bundles(tmp_path_factory: pytest.TempPathFactory, base_spec: dict[str, Any]) -> Path:
    """Bundles that runc refuses for a reason that tells which of them it read."""
    folder = tmp_path_factory.mktemp("bundles")
    for bundle in (folder, folder / "one", folder / "two", folder / "=three"):
        bundle.mkdir(exist_ok=True)
        spec = {**base_spec, "root": {"path": "missing"}}
        spec["process"] = {**spec["process"], "terminal": False}
        (bundle / "config.json").write_text(json.dumps(spec))
    return folder


def what_runc_read(words: list[str], cwd: Path) -> str | None:
    """The bundle that runc would have made a container from, "" if it did not like the id; or None."""
    done = subprocess.run([RUNC, *words], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 or "USAGE" in done.stdout or "runc version" in done.stdout
    rootfs = re.search(r"invalid rootfs: stat (.*)/missing: no such file", done.stderr)
    if rootfs:
        return rootfs[1]
    return "" if "invalid container ID format" in done.stderr else None


VALUES = st.sampled_from(["one", "two", "=three", "bad/id", "good", "", "-", "--", "--bundle", "-b=one"])
OF_CREATE = st.sampled_from(
    ["-b", "--bundle", "--bundle=one", "-b=two", "--bundle==three", "--pid-file", "--pid-file=--bundle"]
    + ["--console-socket", "--no-pivot", "--no-pivot=false", "--preserve-fds=0", "-d", "--detach", "-d=1"]
)


@settings(max_examples=400, deadline=None)
@given(
    before=st.lists(
        st.sampled_from(["--debug", "-debug=1", "--criu=x", "--rootless", "true", "--log-format", "text"]),
        max_size=2,
    ),
    subcommand=st.sampled_from(["create", "run"]),
    after=st.lists(st.one_of(VALUES, OF_CREATE), max_size=6),
)
def test_what_runc_accepts_is_read_as_runc_reads_it(
    folder_of_bundles: Path, before: list[str], subcommand: str, after: list[str]
) -> None:
    words = [*before, subcommand, *after]
    read = parse(words, str(folder_of_bundles))
    bundle = what_runc_read(words, folder_of_bundles)
    if bundle is None:
        return
    assert read.creates and read.container_id is not None
    if bundle == "":
        assert re.search(r"[^\w+.-]", read.container_id)
    else:
        assert not re.search(r"[^\w+.-]", read.container_id)
        assert os.path.realpath(read.bundle) == bundle


@pytest.mark.parametrize(
    "words",
    [
        ["create", "--bundle", "one", "good"],
        ["create", "--bundle=one", "good"],
        ["create", "-bundle", "one", "good"],
        ["create", "-b", "one", "good"],
        ["create", "-b=one", "good"],
        ["create", "-b", "two", "-b", "one", "good"],
        ["create", "good", "--bundle", "one"],
        ["create", "--pid-file", "--bundle", "-b=one", "good"],
        ["create", "--bundle", "one", "--", "good"],
        ["--", "create", "-b", "one", "good"],
        ["--root", "create", "create", "-b", "one", "good"],
        ["--log-format=json", "-rootless", "auto", "create", "-b", "one", "good"],
        ["run", "--detach", "--bundle", "one", "good"],
        ["run", "good", "-b=one", "--keep"],
        ["restore", "--image-path", "create", "-b", "one", "good"],
    ],
    ids=" ".join,
)
def test_forms_that_runc_accepts_name_the_same_bundle(folder_of_bundles: Path, words: list[str]) -> None:
    read = parse(words, str(folder_of_bundles))
    assert (read.creates, read.container_id) == (True, "good")
    assert read.bundle == str(folder_of_bundles / "one")
    if words[0] != "restore":  # needs criu before it reads the spec
        assert what_runc_read(words, folder_of_bundles) == read.bundle


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["create"],
        ["create", "one", "two"],
        ["create", "--nope", "one"],
        ["create", "--pid-file"],
        ["create", "--no-pivot=perhaps", "one"],
        ["create", "--help", "one"],
        ["create", ""],
        ["--help", "create", "one"],
        ["-v", "create", "one"],
        ["--nope", "create", "one"],
        ["--root", "create", "one"],
        ["run", "-d", "one", "--bundle", "two"],
    ],
    ids=" ".join,
)
def test_lines_that_make_no_container_are_left_to_the_runtime(
    folder_of_bundles: Path, words: list[str]
) -> None:
    assert not parse(words, CWD).creates
    assert what_runc_read(words, folder_of_bundles) is None


@pytest.mark.parametrize("words", [["delete", "create"], ["--root", "create", "state", "x"]])
def test_the_word_create_is_not_the_subcommand_create(words: list[str]) -> None:
    read = parse(words, CWD)
    assert (read.creates, read.subcommand) == (False, words[-2])


def test_paths_are_relative_to_the_working_directory() -> None:
    words = ["--root", "r", "--log", "l", "--log-format", "json", "create", "-b=/foo/=bar", "x"]
    assert parse(words, CWD) == Invocation(
        subcommand="create",
        container_id="x",
        bundle="/foo/=bar",
        spec_path="/foo/=bar/config.json",
        root="/somewhere/r",
        log="/somewhere/l",
        log_format="json",
        systemd_cgroup=False,
        debug=False,
        creates=True,
    )


@pytest.mark.parametrize(
    ("words", "systemd"),
    [
        (["--systemd-cgroup", "create", "x"], True),
        (["--systemd-cgroup=F", "create", "x"], False),
        (["--cgroup-manager", "systemd", "create", "x"], True),
        (["--cgroup-manager=cgroupfs", "create", "x"], False),
    ],
)
def test_a_systemd_cgroup_is_told_in_runc_s_words_and_in_crun_s(words: list[str], systemd: bool) -> None:
    assert parse(words, CWD).systemd_cgroup is systemd


def test_the_spec_file_can_be_named_apart_from_the_bundle() -> None:
    assert parse(["run", "-b", "/b", "--config", "spec", "x"], CWD).spec_path == "/somewhere/spec"
    assert parse(["run", "-b", "/b", "-f", "config.json", "x"], CWD).spec_path == "/b/config.json"
