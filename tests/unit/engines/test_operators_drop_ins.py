"""Realistic files of podman's and cri-o's operators, each in every place that its engine reads: ours goes in
beside it or into it, counts as the engine reads them, and leaves every byte.

`files` has the shapes of real ones, each under a line `=== its name`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import tomli

from support.drop_in_trees import Tree, parsed, shapes, snapshot, trees
from xpu_runtime import engines, textfile
from xpu_runtime.engines import Engine, engine
from xpu_runtime.errors import ConfigError

PROGRAM = "/usr/bin/xpu-container-runtime"
SHAPES = {"podman": shapes("containers.conf.more.txt"), "crio": shapes("crio.conf.more.txt")}
EACH = [
    pytest.param(name, text, id=f"{name}: {title}")
    for name, texts in SHAPES.items()
    for title, text in texts.items()
]
TREES = [
    pytest.param(name, tree, id=f"{name}: {tree.title}")
    for name, file in (("podman", "containers.conf.txt"), ("crio", "crio.conf.txt"))
    for tree in trees(file)
]
MAIN = {"podman": "etc/containers/containers.conf", "crio": "etc/crio/crio.conf"}
RUNTIMES = {"podman": ("engine", "runtimes"), "crio": ("crio", "runtime", "runtimes")}
DEFAULT = {"podman": ("engine", "runtime"), "crio": ("crio", "runtime", "default_runtime")}
ENTRY: dict[str, Any] = {"podman": [PROGRAM], "crio": PROGRAM}
#: Headers of a file that ours cannot have a second time: beside other runtimes, as the default.
OURS = {
    "podman": (r"\[engine(\.runtimes)?\]",) * 2,
    "crio": (r"\[crio\.runtime\.runtimes\.xpu\]", r"\[crio\.runtime(\.runtimes\.xpu)?\]"),
}


def test_there_are_forty_of_each_kind() -> None:
    assert all(len(texts) >= 40 for texts in SHAPES.values())


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root without other files; the engine's version is not known, and no file must outlive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(engines, "installed_version", lambda _: None)
    for name in SHAPES:
        read = vars(engine(name).FILE)  # type: ignore[attr-defined]
        for when in ("before", "after"):
            monkeypatch.setitem(read, when, tuple(f"{tmp_path}{path}" for path in read[when]))
    return tmp_path


def merged(top: Path, name: str) -> dict[str, Any]:
    """What the engine takes: its main file, then those of the folder by their names; a later value counts.

    podman reads its vendor's file before them, and of the folder only what ends in `.conf`.
    """
    data: dict[str, Any] = {}
    vendors = top / "usr/share/containers/containers.conf"
    those = sorted((top / f"{MAIN[name]}.d").glob("*.conf" if name == "podman" else "*"))
    for path in (vendors, top / MAIN[name], *those):
        if path.exists():
            add(data, tomli.loads(path.read_bytes().decode("utf-8-sig")))
    return data


def add(data: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            add(data[key], value)
        else:
            data[key] = value


def at(data: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        data = data.get(key, {})
    return data


def counts(top: Path, name: str, theirs: dict[str, Any], default: bool) -> None:
    """Asserts that the engine takes ours, and everything else as before."""
    now = merged(top, name)
    runtimes = at(now, RUNTIMES[name])
    ours = runtimes.pop("xpu")
    assert (ours["runtime_path"] if name == "crio" else ours) == ENTRY[name]
    assert at(now, DEFAULT[name]) == ("xpu" if default else at(theirs, DEFAULT[name]))
    known = at(now, ("engine", "runtime_supports_json"))
    assert name == "crio" or {"xpu", *at(theirs, ("engine", "runtime_supports_json"))} <= {*known}
    before = dict(at(theirs, RUNTIMES[name]))
    before.pop("xpu", None)
    assert runtimes == before


def there_and_back(top: Path, name: str, path: str, default: bool) -> tuple[str, ...]:
    """Configures twice, and unconfigures, and writes no other file; the notes of the first."""
    known: Engine = engine(name)
    before = snapshot(top)
    theirs = merged(top, name)
    (first,) = known.configure(textfile.read(path), PROGRAM, default)
    textfile.write(first.file, first.text)
    (again,) = known.configure(textfile.read(path), PROGRAM, default)
    assert again.text == again.file.text
    counts(top, name, theirs, default)
    ours = textfile.read(path)
    assert known.runtime_path(ours) == PROGRAM and path in known.sources(ours)
    (edit,) = engines.unconfigure(known, ours)
    textfile.write(edit.file, edit.text)
    after = snapshot(top)
    if (own := str(Path(path).relative_to(top))) in before:
        assert before.pop(own)[0] == after.pop(own)[0]  # its bytes; it is another file by now
    assert after == before
    return first.notes


def refused(top: Path, name: str, path: str, default: bool, told: str) -> None:
    before = snapshot(top)
    with pytest.raises(ConfigError, match=told) as caught:
        engine(name).configure(textfile.read(path), PROGRAM, default)
    assert caught.value.todo.endswith("; nothing was changed")
    assert snapshot(top) == before


@pytest.mark.parametrize("place", ["", ".d/10-site.conf", ".d/zz-site.conf"], ids=["main", "before", "after"])
@pytest.mark.parametrize(("name", "text"), EACH)
def test_configure_beside_an_operators_file_takes_effect_and_leaves_it_unchanged(
    top: Path, name: str, text: str, place: str
) -> None:
    path = top / f"{MAIN[name]}{place}"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    ours = f"{top}{engine(name).DEFAULT_PATH}"
    is_later = place.startswith(".d/zz")
    for default in (False, True):
        if (data := parsed(text)) is None:
            refused(top, name, ours, default, f"^{path}:[0-9]+:[0-9]+: not TOML: .*: fix it first")
        elif is_later and (at(data, (*RUNTIMES[name], "xpu")) or (default and at(data, DEFAULT[name]))):
            refused(top, name, ours, default, f"^{path} is read after {ours}, and has another")
        else:
            there_and_back(top, name, ours, default)


@pytest.mark.parametrize(("name", "text"), EACH)
def test_an_operators_main_file_is_restored_or_refused_without_a_change(
    top: Path, name: str, text: str
) -> None:
    """`--config` can name it, where a file of its own is what people want."""
    path = top / MAIN[name]
    path.parent.mkdir(parents=True)
    for raw in (text, text.replace("\n", "\r\n"), text.removesuffix("\n"), f"\ufeff{text}"):
        path.write_bytes(raw.encode())
        for default in (False, True):
            if parsed(text) is None:
                refused(top, name, str(path), default, f"^{path}:[0-9]+:[0-9]+: not TOML: .*: fix it first")
            elif re.search(rf"^\s*{OURS[name][default]}", text, re.MULTILINE):
                refused(top, name, str(path), default, "with the names of ours: leave --config out, or name")
            else:
                there_and_back(top, name, str(path), default)


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize(("name", "tree"), TREES)
def test_beside_all_files_of_a_node_the_default_that_counts_is_named(
    top: Path, name: str, tree: Tree, default: bool
) -> None:
    tree.write(top)
    ours, decides = f"{top}{engine(name).DEFAULT_PATH}", f"{top}/{tree.decides}"
    if default and ("/zz-" in decides or "/root/" in decides):
        refused(top, name, ours, default, f"^{decides} is read after {ours}, and has another")
        return
    notes = there_and_back(top, name, ours, default)
    assert [note.split()[0] for note in notes] == ([decides] if default and tree.decides else [])
