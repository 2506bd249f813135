"""`make install` and `make uninstall`, as packagers and people use them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support import REPOSITORY

PROGRAMS = ("xpu", "xpu-container-runtime", "xpu-container-runtime-hook")


def make(target: str, destination: Path, cwd: Path = REPOSITORY, umask: int = -1) -> None:
    done = subprocess.run(
        ["make", "-s", target, f"DESTDIR={destination}", "PREFIX=/usr"],
        cwd=cwd,
        umask=umask,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_an_installed_tree_works_in_its_place_and_uninstall_removes_it_all(tmp_path: Path) -> None:
    make("install", tmp_path)
    programs = tmp_path / "usr" / "bin"
    assert sorted(os.listdir(programs)) == sorted(PROGRAMS)
    assert os.listdir(tmp_path / "usr" / "lib") == ["xpu-container-runtime"]
    environ = {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin", "XPU_RUN_DIR": str(tmp_path / "run")}
    says = {}
    for name, words in zip(PROGRAMS, (["--version"], ["--version"], []), strict=True):
        done = subprocess.run(
            [name, *words], env=environ, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        says[name] = (done.returncode, done.stdout + done.stderr)
    assert says["xpu"][0] == 0
    assert says["xpu-container-runtime"] == (
        0,
        subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout,
    )
    assert says["xpu-container-runtime-hook"][0] == 1
    assert "usage" in says["xpu-container-runtime-hook"][1]
    # No installed file contains a path of the build, or DESTDIR.
    scattered = subprocess.run(
        ["grep", "-rl", str(tmp_path), tmp_path / "usr"], capture_output=True, text=True, check=False
    )
    assert scattered.stdout == ""
    make("uninstall", tmp_path)
    assert [path for path in (tmp_path / "usr").rglob("*") if not path.is_dir()] == []


def modes(top: Path) -> dict[str, str]:
    return {
        str(path.relative_to(top)): oct(path.stat().st_mode & 0o7777)
        for path in [top, *top.rglob("*")]
        if not path.is_symlink()
    }


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_installers_umask_decides_no_mode(tmp_path: Path, umask: int) -> None:
    # The files that a clone makes under that umask.
    source = tmp_path / "clone"
    source.mkdir()
    (source / "build").mkdir()
    sources = ["Makefile", "config", "hooks", "native", "packaging", "pyproject.toml", "sim", "src"]
    # Other folders of build are for other tests, which may be making them right now.
    built = ["interposer", "launcher", "probe", "sim", "vendor", "wheels"]
    for name in [*sources, *(f"build/{name}" for name in built)]:
        subprocess.run(["cp", "-a", REPOSITORY / name, source / name], check=True)
    subprocess.run(["chmod", "-R", f"u=rwX,go={'rwX' if umask == 0 else ''}", source], check=True)
    destination = tmp_path / "root"
    make("install", destination, cwd=source, umask=umask)
    found = modes(destination)
    del found["."]
    wrong = {name: mode for name, mode in found.items() if mode not in ("0o755", "0o644")}
    assert wrong == {}
    programs = tuple(f"usr/bin/{name}" for name in PROGRAMS)
    assert {name: found[name] for name in programs} == dict.fromkeys(programs, "0o755")
    assert found["usr/lib/xpu-container-runtime/python/xpu_bundle.py"] == "0o644"
    folders = [path for path in destination.rglob("*") if path.is_dir()]
    assert {found[str(path.relative_to(destination))] for path in folders} == {"0o755"}


@pytest.mark.parametrize(("target", "programs"), [("build", ["cc"]), ("install", ["cc"]), ("build", [])])
def test_a_build_installs_nothing_and_names_the_command_that_does(
    tmp_path: Path, target: str, programs: list[str]
) -> None:
    source, path = tmp_path / "clone", tmp_path / "bin"
    source.mkdir()
    path.mkdir()
    shutil.copy(REPOSITORY / "Makefile", source)
    for name in ("make", "sh", *programs):
        (path / name).symlink_to(shutil.which(name) or "")
    done = subprocess.run(
        ["make", "-s", target, "SHELL=sh"],
        cwd=source,
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
    )
    missing = "build/wheels is missing" if programs else "there is no C compiler"
    assert done.returncode == 2
    assert missing in done.stderr
    assert "make deps" in done.stderr
    assert sorted(os.listdir(source)) == ["Makefile"]


def test_without_a_static_c_library_the_build_names_the_package_that_has_it(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -static "*) exit 1 ;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", "-C", REPOSITORY / "native/launcher", f"OUT={tmp_path}", f"CC={compiler}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "install musl-tools (Debian) or glibc-static (RHEL:" in done.stderr
