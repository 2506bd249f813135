"""The launcher's reading of a command line, and the shim's copy of it, against the real runc and crun."""

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

from xpu_runtime.errors import SpecError
from xpu_runtime.oci import argv
from xpu_runtime.oci.argv import Invocation

RUNC = "/usr/sbin/runc"
CRUN = "/usr/bin/crun"
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


Parse = Callable[[list[str], str], Invocation]


@pytest.fixture(scope="module")
def parse(argv_dump: Path) -> Iterator[Parse]:
    """The shim's knowledge of a line that the launcher has read."""
    process = subprocess.Popen([argv_dump], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(words: list[str], cwd: str) -> Invocation:
        stdin.write(f"{len(words)}\n".encode() + b"".join(word.encode() + b"\0" for word in words))
        stdin.flush()
        return argv.read([stdout.readline().decode().rstrip("\n"), *words], cwd)

    yield ask
    stdin.close()
    assert process.wait(timeout=10) == 0
    stdout.close()


_SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=2000, suppress_health_check=_SUPPRESSED)
@given(words=LINES)
def test_the_shim_finds_the_places_in_any_line_and_an_id_in_one_that_creates(
    parse: Parse, words: list[str]
) -> None:
    read = parse(words, CWD)
    assert read.arguments == words
    assert bool(read.container_id) or not read.creates
    for name, (index, offset) in read.places.items():
        assert offset == 0 or words[index][:offset].lstrip("-") in (f"{name}=", "b=", "f="), name


@settings(max_examples=2000, suppress_health_check=_SUPPRESSED)
@given(words=LINES)
def test_another_bundle_takes_the_place_of_the_line_s_and_nothing_else_changes(
    parse: Parse, words: list[str]
) -> None:
    read = parse(words, CWD)
    if read.creates:
        again = parse(argv.with_bundle(read, "/other"), CWD)
        assert (again.creates, again.bundle) == (True, "/other")
        assert (again.container_id, again.log, again.systemd_cgroup) == (
            read.container_id,
            read.log,
            read.systemd_cgroup,
        )


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("create id", "create --bundle /o id"),
        ("--root /r create -b x id", "--root /r create -b /o id"),
        ("create id --bundle=x --bundle y", "create id --bundle=x --bundle /o"),
        ("run --detach -- id", "run --bundle /o --detach -- id"),
        ("create -pid-file -- --bundle x id", "create -pid-file -- --bundle /o id"),
        ("create --console-socket s -b=x id", "create --console-socket /cwd/x/s -b=/o id"),
        ("create --pidfd-socket=s --bundle= id", "create --pidfd-socket=/cwd/s --bundle=/o id"),
        ("create --console-socket=/s id", "create --bundle /o --console-socket=/s id"),
        ("create -f config.json id", "create --bundle /o -f config.json id"),
    ],
)
def test_another_bundle_is_put_in_the_very_word(parse: Parse, given: str, wanted: str) -> None:
    assert argv.with_bundle(parse(given.split(), "/cwd"), "/o") == wanted.split()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["create", "id"],
        ["xpu-argv-0,creates,id=1+0", "create", "id"],
        ["xpu-argv-1x"],
        ["xpu-argv-1,creates,id=99+0", "create", "id"],
        ["xpu-argv-1,creates,id=x", "create", "id"],
        ["xpu-argv-1,creates,bundle=1", "create", "id"],
    ],
)
def test_words_that_the_launcher_has_not_read_are_refused(words: list[str]) -> None:
    with pytest.raises(SpecError, match="not started by the launcher that belongs to it"):
        argv.read(words, CWD)


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


@settings(max_examples=400)
@given(
    before=st.lists(
        st.sampled_from(["--debug", "-debug=1", "--criu=x", "--rootless", "true", "--log-format", "text"]),
        max_size=2,
    ),
    subcommand=st.sampled_from(["create", "run"]),
    after=st.lists(st.one_of(VALUES, OF_CREATE), max_size=6),
)
def test_what_runc_accepts_is_read_as_runc_reads_it(
    parse: Parse, folder_of_bundles: Path, before: list[str], subcommand: str, after: list[str]
) -> None:
    words = [*before, subcommand, *after]
    read = parse(words, str(folder_of_bundles))
    bundle = what_runc_read(words, folder_of_bundles)
    if bundle is None:
        return
    assert read.creates
    if bundle == "":
        assert re.search(r"[^\w+.-]", read.container_id)
    else:
        assert not re.search(r"[^\w+.-]", read.container_id)
        assert os.path.realpath(read.bundle) == bundle


@pytest.fixture(scope="module")
def folder_for_crun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles that crun refuses each for a reason of its own."""
    folder = tmp_path_factory.mktemp("crun")
    two = '{"ociVersion": "1.0.2", "process": {"args": ["x"], "cwd": "/"}, "root": {"path": "missing"}}'
    for bundle, spec in (("one", '{"ociVersion": "one"}'), ("two", two), ("", "not JSON")):
        (folder / bundle).mkdir(exist_ok=True)
        (folder / bundle / "config.json").write_text(spec)
    return folder


def what_crun_read(words: list[str], cwd: Path) -> Path | None:
    """The bundle that crun would have made a container from; None if it did not like the line."""
    done = subprocess.run(
        [CRUN, "--root", cwd / "root", *words], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 or "Usage" in done.stdout
    told = {"unknown version": "one", "no 'mounts' block": "two", "loading config.json": ""}
    return next((cwd / bundle for reason, bundle in told.items() if reason in done.stderr), None)


@settings(max_examples=200)
@given(
    before=st.lists(
        st.sampled_from(["--debug", "--cgroup-manager=disabled", "--log-format=text"]), max_size=2
    ),
    subcommand=st.sampled_from(["create", "run"]),
    after=st.lists(
        st.one_of(
            st.sampled_from(["one", "two", "good", "-", "--", "--bundle", "-b", "--bundle=one"]),
            st.sampled_from(["--no-pivot", "--pid-file", "--console-socket=x", "-b=one", "--detach"]),
        ),
        max_size=6,
    ),
)
def test_what_crun_accepts_is_read_as_crun_reads_it(
    parse: Parse, folder_for_crun: Path, before: list[str], subcommand: str, after: list[str]
) -> None:
    words = [*before, subcommand, *after]
    bundle = what_crun_read(words, folder_for_crun)
    if bundle is not None:
        read = parse(words, str(folder_for_crun))
        assert read.creates
        assert os.path.realpath(read.bundle) == str(bundle)


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
def test_forms_that_runc_accepts_name_the_same_bundle(
    parse: Parse, folder_of_bundles: Path, words: list[str]
) -> None:
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
    parse: Parse, folder_of_bundles: Path, words: list[str]
) -> None:
    assert not parse(words, CWD).creates
    assert what_runc_read(words, folder_of_bundles) is None


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("state x", "x"),
        ("start x", "x"),
        ("kill x 9", "x"),
        ("kill --all x KILL", "x"),
        ("kill x TERM --all=true", "x"),
        ("delete -f x", "x"),
        ("delete x --force", "x"),
        ("exec --process /p --console-socket /s --detach --pid-file /f x", "x"),
        ("exec -t -u 0:0 -e A=x -c CAP_CHOWN x sh -c y", "x"),
        ("exec --tty=false --cwd=/ -- x -t", "x"),
        ("update --resources - x", "x"),
        ("update x --memory 1 --pids-limit=2", "x"),
        ("events --stats x", "x"),
        ("events --interval 1s x", "x"),
        ("ps -f json x -ef", "x"),
        ("checkpoint --image-path /i --leave-running --work-path=/w x", "x"),
        ("pause x", "x"),
        ("resume x", "x"),
        # A word that we do not know may take the next one along.
        ("exec --new-option y x true", ""),
        ("state", ""),
        ("list --format json", ""),
        ("features", ""),
    ],
)
def test_a_later_command_is_read_as_far_as_its_container(parse: Parse, words: str, wanted: str) -> None:
    read = parse(["--root", "/r", *words.split()], CWD)
    assert (read.creates, read.container_id) == (False, wanted)


def test_paths_are_relative_to_the_working_directory(parse: Parse) -> None:
    words = ["--root", "r", "--log", "l", "--log-format", "json", "create", "-b=/foo/=bar", "x"]
    assert parse(words, CWD) == Invocation(
        arguments=words,
        places={
            "subcommand": (6, 0),
            "root": (1, 0),
            "id": (8, 0),
            "bundle": (7, 3),
            "log": (3, 0),
            "log-format": (5, 0),
        },
        root="/somewhere/r",
        container_id="x",
        bundle="/foo/=bar",
        spec_path="/foo/=bar/config.json",
        log="/somewhere/l",
        log_format="json",
        systemd_cgroup=False,
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
def test_a_systemd_cgroup_is_told_in_runc_s_words_and_in_crun_s(
    parse: Parse, words: list[str], systemd: bool
) -> None:
    assert parse(words, CWD).systemd_cgroup is systemd


def test_the_spec_file_can_be_named_apart_from_the_bundle(parse: Parse) -> None:
    assert parse(["run", "-b", "/b", "--config", "spec", "x"], CWD).spec_path == "/somewhere/spec"
    assert parse(["run", "-b", "/b", "-f", "config.json", "x"], CWD).spec_path == "/b/config.json"
