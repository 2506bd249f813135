"""containerd 2 merges the imports of config.toml. Our runtime is then a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tomli

from support.containerd_files import (
    CRI_2,
    CRI_3,
    NAMES,
    PROGRAM,
    configure,
    configured,
    cri,
    refused,
    unconfigure,
)
from xpu_runtime import textfile
from xpu_runtime.engines import containerd


def test_a_folder_of_imported_files_gets_a_file_of_ours_and_config_toml_stays(
    containerd_2: Path, drop_in: Path
) -> None:
    before = containerd_2.read_bytes()
    configure(containerd_2, "--set-as-default")
    written = drop_in.read_text()
    assert tomli.loads(written) == {
        "version": 3,
        "plugins": {
            "io.containerd.cri.v1.runtime": {
                "containerd": {
                    "default_runtime_name": "xpu",
                    "runtimes": {
                        "xpu": {
                            "runtime_type": "io.containerd.runc.v2",
                            "pod_annotations": ["yoyoworks.com/*"],
                            "options": {"SystemdCgroup": True, "BinaryName": PROGRAM},
                        }
                    },
                }
            }
        },
    }
    drop_in.write_text(written + "# mine\n")
    configure(containerd_2)
    assert drop_in.read_text() == written + "# mine\n"
    configure(containerd_2, program="/bin/false")
    assert drop_in.read_text() == written.replace(PROGRAM, "/bin/false")
    unconfigure(containerd_2)
    assert not drop_in.exists()
    assert containerd_2.read_bytes() == before
    unconfigure(containerd_2)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("conf.d/[^.]*.toml", True),
        ("conf.d/*[!a].toml", True),
        ("conf.d/99-xpu.toml", True),
        ("./conf.d/../conf.d/*", True),
        ("conf.d/[^9]*.toml", False),
        ("conf.d/99-xpu.tom?", False),
        ("conf?d/*.toml", False),
    ],
)
def test_a_drop_in_is_made_only_in_an_imported_folder(
    containerd_2: Path, drop_in: Path, pattern: str, matches: bool
) -> None:
    before = containerd_2.read_text().replace("conf.d/*.toml", pattern)
    containerd_2.write_text(before)
    configure(containerd_2)
    assert drop_in.exists() is matches
    assert (containerd_2.read_text() == before) is matches
    unconfigure(containerd_2)
    assert (drop_in.exists(), containerd_2.read_text()) == (False, before)


def test_a_file_by_a_relative_path_is_read_like_any_other(
    containerd_2: Path, drop_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(containerd_2.parent)
    configure(Path("config.toml"))
    assert drop_in.exists()
    unconfigure(Path("config.toml"))
    assert not drop_in.exists()


@pytest.mark.parametrize(("said", "version"), [("v1.7.24", 3), ("no version", 3), ("no version", 2)])
def test_a_containerd_that_does_not_read_the_file_does_not_affect_its_imports(
    tmp_path: Path, containerd_says: Callable[[str], None], said: str, version: int
) -> None:
    """The device plugin's container, for example, has no containerd."""
    containerd_says(said)
    (tmp_path / "conf.d").mkdir()
    table = f"[plugins.'{NAMES[version][0]}'.containerd"
    config, imported = tmp_path / "config.toml", tmp_path / "conf.d" / "mine.toml"
    config.write_text(f"version = {version}\nimports = ['conf.d/*.toml']\n")
    imported.write_text(
        f"version = {version}\n{table}]\ndefault_runtime_name = 'xpu'\n"
        f"{table}.runtimes.xpu.options]\nBinaryName = '{PROGRAM}'\n"
    )
    assert containerd.sources(textfile.read(str(config))) == [str(config), str(imported)]
    assert containerd.is_default(textfile.read(str(config))) is True


@pytest.mark.parametrize("said", ["v1.7.24", "no version"])
def test_sources_accepts_a_version_that_is_no_number(
    tmp_path: Path, containerd_says: Callable[[str], None], said: str
) -> None:
    containerd_says(said)
    config = tmp_path / "config.toml"
    config.write_text('version = "three"\n')
    assert containerd.sources(textfile.read(str(config))) == [str(config)]


def test_containerd_is_asked_for_its_version_once(containerd_2: Path, tmp_path: Path) -> None:
    program, asked = tmp_path / "bin" / "containerd", tmp_path / "asked"
    program.write_text(f"{program.read_text()}echo asked >> {asked}\n")
    configure(containerd_2)
    assert asked.read_text() == "asked\n"


def test_a_dry_run_shows_the_drop_in_that_would_be_added_or_removed(
    containerd_2: Path, drop_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(containerd_2, "--dry-run")
    assert capsys.readouterr().out.startswith(f"--- /dev/null\n+++ {drop_in}\n")
    assert not drop_in.exists()
    configure(containerd_2)
    assert capsys.readouterr().out.startswith(f"{drop_in}: changed\n")
    unconfigure(containerd_2, "--dry-run")
    assert capsys.readouterr().out.startswith(f"--- {drop_in}\n+++ /dev/null\n")
    unconfigure(containerd_2)
    assert capsys.readouterr().out.startswith(f"{drop_in}: removed\n")


@pytest.mark.parametrize(
    "imports", ["", "imports = []\n", "imports = ['/etc/a.toml']\n", "imports = ['/*/*.toml']\n"]
)
def test_our_runtime_is_in_config_toml_if_containerd_2_imports_no_folder(
    containerd_2: Path, imports: str
) -> None:
    containerd_2.write_text(f"version = 3\n{imports}")
    configure(containerd_2)
    assert "xpu" in cri(containerd_2.read_text())["runtimes"]
    unconfigure(containerd_2)
    assert containerd_2.read_text() == f"version = 3\n{imports}"


def test_our_runtime_stays_in_config_toml_until_unconfigure(containerd_2: Path, drop_in: Path) -> None:
    before = containerd_2.read_text()
    configure(containerd_2)
    with_drop_in = drop_in.read_bytes()
    drop_in.unlink()
    # The file as containerd 1 had it before the upgrade.
    containerd_2.write_text(
        configured(before.replace("imports", "# imports")).replace("# imports", "imports")
    )
    configure(containerd_2, program="/bin/false")
    assert cri(containerd_2.read_text())["runtimes"]["xpu"]["options"]["BinaryName"] == "/bin/false"
    assert not drop_in.exists()
    drop_in.write_bytes(with_drop_in)
    unconfigure(containerd_2)
    assert (containerd_2.read_text(), drop_in.exists()) == (before, False)


@pytest.fixture(params=["exit 1", "echo containerd containerd.io 1.7.28 0123abc"], ids=["gone", "downgraded"])
def other_containerd(request: pytest.FixtureRequest, containerd_2: Path) -> Callable[[], bool]:
    """Replaces or breaks the containerd of `containerd_2`. The result says whether a containerd still
    works."""

    def change() -> bool:
        (containerd_2.parent / "bin" / "containerd").write_text(f"#!/bin/sh\n{request.param}\n")
        return "1.7" in request.param

    return change


def test_unconfigure_removes_the_drop_in_with_any_containerd(
    containerd_2: Path, drop_in: Path, other_containerd: Callable[[], bool]
) -> None:
    before = containerd_2.read_text()
    configure(containerd_2)
    assert drop_in.exists()
    other_containerd()
    unconfigure(containerd_2)
    assert (containerd_2.read_text(), drop_in.exists()) == (before, False)


def test_our_runtime_is_configured_once_with_any_containerd(
    containerd_2: Path,
    drop_in: Path,
    other_containerd: Callable[[], bool],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The newest version of config.toml that the older containerd reads.
    before = containerd_2.read_text().replace("version = 3", "version = 2").replace(CRI_3, CRI_2)
    containerd_2.write_text(before)
    configure(containerd_2, "--set-as-default")
    merges_not = other_containerd()
    configure(containerd_2, program="/bin/false")
    assert capsys.readouterr().err == ""
    assert drop_in.exists() is not merges_not
    where = containerd_2 if merges_not else drop_in
    assert cri(where.read_text())["runtimes"]["xpu"]["options"]["BinaryName"] == "/bin/false"
    assert cri(where.read_text())["default_runtime_name"] == "xpu"
    assert merges_not or containerd_2.read_text() == before
    unconfigure(containerd_2)
    assert (containerd_2.read_text(), drop_in.exists()) == (before, False)


def runc(name: str, body: str) -> str:
    """A file with these options of runc."""
    version = 3 if name == CRI_3 else 2
    return f"version = {version}\n[plugins.'{name}'.containerd.runtimes.runc.options]\n{body}\n"


def test_our_runtime_has_the_cgroup_driver_of_runc_in_the_merged_files(
    containerd_2: Path,
) -> None:
    folder = containerd_2.parent / "conf.d"
    # containerd merges all imports of config.toml first, then the imports of the imported files.
    (folder / "10.toml").write_text(
        "imports = ['../later.toml', '../config.toml']\n" + runc(CRI_3, "Root = '/10'\nShimCgroup = '/10'")
    )
    (folder / "20.toml").write_text(runc(CRI_3, "Root = '/20'\nIoUid = 20\nSystemdCgroup = false"))
    (containerd_2.parent / "later.toml").write_text(runc(CRI_3, "IoUid = 7"))
    configure(containerd_2)
    xpu = cri((folder / "99-xpu.toml").read_text())["runtimes"]["xpu"]
    assert xpu["options"] == {
        "Root": "/20",
        "ShimCgroup": "/10",
        "IoUid": 7,
        "SystemdCgroup": False,
        "BinaryName": PROGRAM,
    }


def test_a_runc_that_an_imported_file_names_is_not_named_again(containerd_2: Path) -> None:
    containerd_2.write_text("version = 3\nimports = ['conf.d/*.toml']\n")
    (containerd_2.parent / "conf.d" / "10.toml").write_text(runc(CRI_3, "SystemdCgroup = true"))
    configure(containerd_2)
    assert list(cri((containerd_2.parent / "conf.d" / "99-xpu.toml").read_text())["runtimes"]) == ["xpu"]


def test_imports_without_a_version_are_refused_because_containerd_ignores_them(
    containerd_2: Path,
) -> None:
    containerd_2.write_text("imports = ['conf.d/*.toml']\n")
    error = refused(containerd_2)
    assert error.what == f"containerd 2.2 ignores plugins.cri of a file of version 1, as {containerd_2} is"
    assert error.todo.startswith("write `version = 2` as its first line, and configure again")


@pytest.mark.parametrize("imports", ["'conf.d/*.toml'", "[1]"], ids=["a string", "a number in the list"])
def test_imports_that_are_no_list_of_strings_are_refused(containerd_2: Path, imports: str) -> None:
    containerd_2.write_text(f"version = 3\nimports = {imports}\n")
    assert refused(containerd_2).what == f"{containerd_2}: imports is no list of strings"


def test_a_file_of_another_version_that_hides_ours_is_refused(containerd_2: Path) -> None:
    containerd_2.write_text("version = 2\nimports = ['conf.d/*.toml']\n")
    other = containerd_2.parent / "conf.d" / "10.toml"
    other.write_text(
        runc(CRI_3, "SystemdCgroup = true").replace(".runc.options]", ".runc]\nruntime_type = 'x'")
    )
    later = containerd_2.parent / "conf.d" / "999.toml"
    later.write_text("version = 3\n")
    error = refused(containerd_2)
    assert error.what == (
        f"{other}, which is imported, has tables of plugins.{CRI_3}, and containerd 2.2 takes those in "
        f"the place of ours in plugins.{CRI_2}"
    )


def test_a_file_of_another_version_whose_runtimes_ours_would_hide_is_refused(containerd_2: Path) -> None:
    other = containerd_2.parent / "conf.d" / "10.toml"
    other.write_text(f"version = 2\n[plugins.'{CRI_2}'.containerd.runtimes.kata]\nruntime_type = 'x'\n")
    containerd_2.write_text("version = 3\nimports = ['conf.d/*.toml']\n")
    error = refused(containerd_2)
    assert error.what == (
        "beside ours containerd 2.2 would not see the runtime kata: a file that "
        f"{containerd_2} imports has it in tables of another version"
    )
    assert not (containerd_2.parent / "conf.d" / "99-xpu.toml").exists()
    other.write_text(f"version = 3\n[plugins.'{CRI_3}'.containerd.runtimes.kata]\nruntime_type = 'x'\n")
    configure(containerd_2)


def test_a_later_file_with_another_default_runtime_is_refused(containerd_2: Path) -> None:
    later = containerd_2.parent / "conf.d" / "zz.toml"
    later.write_text(f"version = 3\n[plugins.'{CRI_3}'.containerd]\ndefault_runtime_name = 'runc'\n")
    assert str(later) in refused(containerd_2, "--set-as-default").what
    configure(containerd_2)


def test_a_note_names_an_earlier_entry_of_ours_with_another_cgroup_driver_than_runc(
    containerd_2: Path, drop_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(containerd_2)
    assert capsys.readouterr().err == ""
    drop_in.write_text(drop_in.read_text().replace("SystemdCgroup = true\n", ""))
    configure(containerd_2)
    assert "xpu: note: SystemdCgroup is true for runc and false for xpu" in capsys.readouterr().err
    unconfigure(containerd_2)
    configure(containerd_2)
    assert capsys.readouterr().err == ""
