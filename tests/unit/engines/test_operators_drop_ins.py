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

from support.drop_in_trees import parsed, shapes
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
    """What the engine takes: its main file, then those of the folder by their names; a later value counts."""
    data: dict[str, Any] = {}
    folder = top / f"{MAIN[name]}.d"
    for path in (top / MAIN[name], *sorted(folder.glob("*") if folder.exists() else [])):
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


def contents(top: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in top.rglob("*") if path.is_file()}


def there_and_back(top: Path, name: str, path: str, default: bool) -> None:
    """Configures twice, and unconfigures."""
    known: Engine = engine(name)
    before = contents(top)
    theirs = merged(top, name)
    for again in (False, True):
        (edit,) = known.configure(textfile.read(path), PROGRAM, default)
        assert not again or edit.text == edit.file.text
        textfile.write(edit.file, edit.text)
    counts(top, name, theirs, default)
    (edit,) = engines.unconfigure(known, textfile.read(path))
    textfile.write(edit.file, edit.text)
    assert contents(top) == before


def refused(top: Path, name: str, path: str, default: bool, told: str) -> None:
    before = contents(top)
    with pytest.raises(ConfigError, match=told) as caught:
        engine(name).configure(textfile.read(path), PROGRAM, default)
    assert caught.value.todo.endswith("; nothing was changed")
    assert contents(top) == before


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
    for raw in (text, text.replace("\n", "\r\n"), text.removesuffix("\n")):
        path.write_bytes(raw.encode())
        for default in (False, True):
            if parsed(text) is None:
                refused(top, name, str(path), default, f"^{path}:[0-9]+:[0-9]+: not TOML: .*: fix it first")
            elif re.search(rf"^\s*{OURS[name][default]}", text, re.MULTILINE):
                refused(top, name, str(path), default, "with the names of ours: leave --config out, or name")
            else:
                there_and_back(top, name, str(path), default)
