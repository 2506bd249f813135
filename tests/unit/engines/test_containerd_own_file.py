"""Configure and unconfigure keep foreign content of 99-xpu.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from support.containerd_files import (
    CRI_2,
    CRI_3,
    PROGRAM,
    configure,
    configured,
    cri,
    refused,
    unconfigure,
)
from xpu_runtime.errors import ConfigError


def test_a_file_of_our_name_with_foreign_content_is_neither_written_nor_removed(
    containerd_2: Path, drop_in: Path
) -> None:
    foo = (
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.foo]\nruntime_type = 'x'\n"
    )
    drop_in.write_text(foo)
    error = refused(containerd_2)
    assert error.what.startswith(f"{drop_in} has more than our runtime")
    drop_in.unlink()
    configure(containerd_2, "--set-as-default")
    written = drop_in.read_text()
    drop_in.write_text(f"{written}[debug]\nlevel = 'debug'\n")
    assert refused(containerd_2).what.startswith(f"{drop_in} has more than our runtime")
    with pytest.raises(ConfigError):
        unconfigure(containerd_2)
    assert drop_in.exists()
    drop_in.write_text(written)
    unconfigure(containerd_2)
    assert not drop_in.exists()


RUNTIME = f"[plugins.'{CRI_3}'.containerd.runtimes"


@pytest.mark.parametrize(
    "tables",
    [
        f"{RUNTIME}.foo]\nruntime_type = 'x'\n",
        f"{RUNTIME}.xpu]\nruntime_type = 'x'\n",
        f"{RUNTIME}.xpu.options]\nBinaryName = '/x'\n",
    ],
)
def test_a_file_of_our_name_without_our_runtime_is_left_alone(
    containerd_2: Path, drop_in: Path, tables: str
) -> None:
    before = containerd_2.read_text()
    drop_in.write_text(f"version = 3\n{tables}")
    assert refused(containerd_2).what.startswith(f"{drop_in} has more than our runtime")
    unconfigure(containerd_2)
    assert (containerd_2.read_text(), drop_in.read_text()) == (before, f"version = 3\n{tables}")


def test_a_file_of_our_name_beside_ours_in_config_toml_stays(containerd_2: Path, drop_in: Path) -> None:
    containerd_2.write_text(
        configured(containerd_2.read_text().replace("imports", "# imports")).replace("# imports", "imports")
    )
    theirs = f"version = 3\n{RUNTIME}.foo]\nruntime_type = 'x'\n"
    drop_in.write_text(theirs)
    configure(containerd_2, program="/bin/false")
    assert (drop_in.read_text(), "/bin/false" in containerd_2.read_text()) == (theirs, True)
    ours = f"{RUNTIME}.xpu.options]\nBinaryName = '{PROGRAM}'\n"
    drop_in.write_text(theirs + ours)
    with pytest.raises(ConfigError, match="has more than our runtime"):
        configure(containerd_2)
    drop_in.write_text(f"version = 3\n{ours}")
    configure(containerd_2)
    assert not drop_in.exists()


def test_a_changed_runc_in_our_file_is_not_lost(containerd_2: Path, drop_in: Path) -> None:
    containerd_2.write_text("version = 3\nimports = ['conf.d/*.toml']\n")
    configure(containerd_2)
    plain = drop_in.read_text()
    drop_in.write_text(f"{plain}{RUNTIME}.runc.options]\nSystemdCgroup = true\n")
    assert refused(containerd_2).what.startswith(f"{drop_in} has more than our runtime")
    drop_in.write_text(plain)
    unconfigure(containerd_2)
    assert not drop_in.exists()


def test_our_file_is_rewritten_if_config_toml_has_a_newer_version(containerd_2: Path, drop_in: Path) -> None:
    newer = containerd_2.read_text()
    containerd_2.write_text(newer.replace("version = 3", "version = 2").replace(CRI_3, CRI_2))
    configure(containerd_2, "--set-as-default")
    older = tomli.loads(drop_in.read_text())
    containerd_2.write_text(newer)
    configure(containerd_2)
    (old,), (new,) = (list(each["plugins"]) for each in (older, tomli.loads(drop_in.read_text())))
    assert (old, new) == (CRI_2, CRI_3)
    assert cri(drop_in.read_text()) == older["plugins"][CRI_2]["containerd"]


def test_a_message_names_another_programs_runtime_in_an_imported_file(
    containerd_2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (containerd_2.parent / "conf.d" / "10.toml").write_text(
        f"version = 3\n{RUNTIME}.xpu.options]\nBinaryName = '/x'\n"
    )
    configure(containerd_2)
    assert "xpu: note: an imported file has a runtimes.xpu of another program's" in capsys.readouterr().err
    configure(containerd_2)
    assert capsys.readouterr().err == ""
