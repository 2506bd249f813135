"""Backends are registered by their files."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from xpu_runtime import extensions
from xpu_runtime.errors import DeviceError
from xpu_runtime.ledger.grants import CORES, KINDS, MEMORY, Grant, Holding, Slice
from xpu_runtime.limits import backends, registry
from xpu_runtime.limits.backend import HARD, SOFT, Backend


def held_by(memory: str | None, cores: str | None) -> Slice:
    return Slice("0", "GPU-0", 1 << 30, memory is not None, 30, Holding(memory, HARD, cores, HARD))


def test_each_file_is_a_backend_of_that_name_and_the_strongest_come_first() -> None:
    assert sorted(backend.NAME for backend in registry.every()) == list(extensions.backends())
    strengths = [backend.STRONGEST for backend in registry.every()]
    assert strengths == sorted(strengths, key=(HARD, SOFT).index)
    assert all(set(backend.KINDS) <= {MEMORY, CORES} == set(KINDS) for backend in registry.every())


def test_the_backends_of_a_grant_are_those_that_hold_a_limit_of_it() -> None:
    slices = (held_by("library", "none"), held_by("driver", None), held_by(None, "driver"))
    assert [backend.NAME for backend in registry.holding(slices)] == ["driver", "library"]
    assert registry.holding((held_by(None, None), held_by("none", "none"))) == []


def test_one_that_is_not_registered_is_told() -> None:
    with pytest.raises(DeviceError, match="no backend 'no-such-backend' on this node"):
        registry.holding((held_by("no-such-backend", None),))


def test_of_several_accounts_of_a_grant_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        keeper = Backend()
        keeper.NAME, keeper.KEEPS_ACCOUNT = name, True
        module = SimpleNamespace(BACKEND=keeper)
        monkeypatch.setitem(sys.modules, f"xpu_runtime.limits.backends.{name}", module)
    monkeypatch.setattr(extensions, "backends", lambda: ("a", "b", "driver"))

    def accountant(*slices: Slice) -> str | None:
        found = registry.accountant(Grant(0, "c1", "/b", 1, 1, "", "running", "hook", 0.0, slices))
        return None if found is None else found.NAME

    assert accountant(held_by("driver", "none")) is None
    assert accountant(held_by("driver", "b")) == "b"
    assert accountant(held_by("b", "a")) == "b"
    assert accountant(held_by("b", None), held_by("a", None)) == "a"
    assert accountant(held_by("of-a-newer-version", "a")) == "a"


@pytest.mark.parametrize(
    "stray",
    (
        "README",
        "._dmem.py",
        ".#dmem.py",
        "dmem copy.py",
        "old/",
        "foo.py~",
        ".dmem.py.swp",
        "a-b.py",
        "_own.py",
    ),
)
def test_other_files_beside_the_modules_are_no_backends(
    stray: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "__file__", str(tmp_path / "extensions.py"))
    folder = tmp_path / "backends"
    (folder / "package").mkdir(parents=True)
    (folder / "package/__init__.py").touch()
    (folder / "module.py").touch()
    if stray.endswith("/"):
        (folder / stray).mkdir()
    else:
        (folder / stray).touch()
    assert extensions.names("backends") == ("module", "package")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def", "SyntaxError"),
        ("", "AttributeError"),
        ("BACKEND = None", "AttributeError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("class BACKEND: NAME = 'other'", "its NAME is 'other'"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.setattr(extensions, "backends", lambda: ("broken", "driver"))
    monkeypatch.delitem(sys.modules, f"{backends.__name__}.broken", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(DeviceError, match=rf"/backends/broken.py cannot be loaded: .*{why}.*: mend or rem"):
        registry.every()


def test_no_backend_has_a_name_that_xpu_enforce_has_for_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extensions, "names", lambda folder: ("auto", "dmem", "hard", "none"))
    assert extensions.backends() == ("dmem",)
