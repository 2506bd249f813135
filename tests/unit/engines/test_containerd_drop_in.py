"""containerd 2 merges what config.toml imports: there ours is a file, which comes and goes whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tomli

from support.containerd_files import PROGRAM, configured, cri


@pytest.fixture
def containerd_2(tmp_path: Path, containerd_says: Callable[[str], None]) -> Path:
    """A config.toml beside a folder of imported files, and a containerd 2."""
    containerd_says("v2.2.1")
    (tmp_path / "conf.d").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(
        f"version = 3\nimports = ['{tmp_path}/other.toml', 'conf.d/*.toml'] # mine\n"
        "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"
        "runtime_type = 'io.containerd.runc.v2'\noptions.SystemdCgroup = true\n"
    )
    return config


def in_process(*words: str | Path) -> None:
    from xpu_runtime.cli.runtime import runtime

    runtime.main([str(word) for word in words], standalone_mode=False)


def test_a_folder_of_imported_files_gets_a_file_of_ours_and_config_toml_stays(containerd_2: Path) -> None:
    before = containerd_2.read_bytes()
    drop_in = containerd_2.parent / "conf.d" / "99-xpu.toml"
    words = ("configure", "containerd", "--config", containerd_2, "--runtime-path", PROGRAM)
    in_process(*words, "--set-as-default")
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
    in_process(*words)
    assert drop_in.read_text() == written + "# mine\n"
    in_process(*words[:-1], "/bin/false")
    assert drop_in.read_text() == written.replace(PROGRAM, "/bin/false")
    in_process("unconfigure", "containerd", "--config", containerd_2)
    assert not drop_in.exists()
    assert containerd_2.read_bytes() == before
    in_process("unconfigure", "containerd", "--config", containerd_2)


def test_a_dry_run_shows_the_file_that_would_come_and_go(
    containerd_2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drop_in = containerd_2.parent / "conf.d" / "99-xpu.toml"
    words = ("configure", "containerd", "--config", containerd_2, "--runtime-path", PROGRAM)
    in_process(*words, "--dry-run")
    assert capsys.readouterr().out.startswith(f"--- /dev/null\n+++ {drop_in}\n")
    assert not drop_in.exists()
    in_process(*words)
    assert capsys.readouterr().out.startswith(f"{drop_in}: changed\n")
    in_process("unconfigure", "containerd", "--config", containerd_2, "--dry-run")
    assert capsys.readouterr().out.startswith(f"--- {drop_in}\n+++ /dev/null\n")
    in_process("unconfigure", "containerd", "--config", containerd_2)
    assert capsys.readouterr().out.startswith(f"{drop_in}: removed\n")


@pytest.mark.parametrize(
    "imports", ["", "imports = []\n", "imports = ['/etc/a.toml']\n", "imports = ['/*/*.toml']\n"]
)
def test_where_containerd_2_imports_no_folder_ours_is_in_config_toml(
    containerd_2: Path, imports: str
) -> None:
    containerd_2.write_text(f"version = 3\n{imports}")
    in_process("configure", "containerd", "--config", containerd_2, "--runtime-path", PROGRAM)
    assert "xpu" in cri(containerd_2.read_text())["runtimes"]
    in_process("unconfigure", "containerd", "--config", containerd_2)
    assert containerd_2.read_text() == f"version = 3\n{imports}"


def test_a_config_toml_that_has_ours_already_keeps_it_until_both_are_taken_out(containerd_2: Path) -> None:
    before = containerd_2.read_text()
    drop_in = containerd_2.parent / "conf.d" / "99-xpu.toml"
    in_process("configure", "containerd", "--config", containerd_2, "--runtime-path", PROGRAM)
    with_drop_in = drop_in.read_bytes()
    drop_in.unlink()
    # As containerd 1 had it before the upgrade.
    containerd_2.write_text(
        configured(before.replace("imports", "# imports")).replace("# imports", "imports")
    )
    in_process("configure", "containerd", "--config", containerd_2, "--runtime-path", "/bin/false")
    assert cri(containerd_2.read_text())["runtimes"]["xpu"]["options"]["BinaryName"] == "/bin/false"
    assert not drop_in.exists()
    drop_in.write_bytes(with_drop_in)
    in_process("unconfigure", "containerd", "--config", containerd_2)
    assert (containerd_2.read_text(), drop_in.exists()) == (before, False)


@pytest.fixture(params=["exit 1", "echo containerd containerd.io 1.7.28 0123abc"], ids=["gone", "downgraded"])
def other_containerd(request: pytest.FixtureRequest, containerd_2: Path) -> Callable[[], bool]:
    """What happens to the containerd beside `containerd_2`: whether one is there then."""

    def change() -> bool:
        (containerd_2.parent / "bin" / "containerd").write_text(f"#!/bin/sh\n{request.param}\n")
        return "1.7" in request.param

    return change


def test_a_drop_in_goes_whatever_containerd_is_there(
    containerd_2: Path, other_containerd: Callable[[], bool]
) -> None:
    before = containerd_2.read_text()
    drop_in = containerd_2.parent / "conf.d" / "99-xpu.toml"
    in_process("configure", "containerd", "--config", containerd_2, "--runtime-path", PROGRAM)
    assert drop_in.exists()
    other_containerd()
    in_process("unconfigure", "containerd", "--config", containerd_2)
    assert (containerd_2.read_text(), drop_in.exists()) == (before, False)


def test_there_is_one_copy_of_ours_whatever_containerd_is_there(
    containerd_2: Path, other_containerd: Callable[[], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    before = containerd_2.read_text()
    drop_in = containerd_2.parent / "conf.d" / "99-xpu.toml"
    words = ("configure", "containerd", "--config", containerd_2, "--runtime-path")
    in_process(*words, PROGRAM, "--set-as-default")
    merges_not = other_containerd()
    in_process(*words, "/bin/false")
    assert capsys.readouterr().err == ""
    assert drop_in.exists() is not merges_not
    where = containerd_2 if merges_not else drop_in
    assert cri(where.read_text())["runtimes"]["xpu"]["options"]["BinaryName"] == "/bin/false"
    assert cri(where.read_text())["default_runtime_name"] == "xpu"
    assert merges_not or containerd_2.read_text() == before
    in_process("unconfigure", "containerd", "--config", containerd_2)
    assert (containerd_2.read_text(), drop_in.exists()) == (before, False)
