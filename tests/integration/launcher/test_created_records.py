"""Records of containers' settings at creation: a damaged one counts for nothing, and none goes too early."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support import created
from xpu_runtime.start import created as python

from .conftest import Launcher


@pytest.fixture
def record(
    checked_launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """`record(SCRIPT)`: the record of a container that a runtime of these lines has created, long ago."""

    def create(script: str) -> str:
        monkeypatch.setenv("XPU_RUN_DIR", str(checked_launcher.run_dir))
        runtime = tmp_path / "runtime"
        runtime.write_text(f"#!/bin/sh\n{script}\n")
        runtime.chmod(0o755)
        checked_launcher.compiled(runtime)
        (tmp_path / "config.json").write_text("{}")
        assert checked_launcher.run("create", "--bundle", tmp_path, tmp_path.name).returncode == 0
        (path,) = created.of(tmp_path)
        os.utime(path, (1, 1), follow_symlinks=False)
        return path

    return create


def test_an_id_that_is_used_again_begins_anew(
    checked_launcher: Launcher, tmp_path: Path, record: Callable[[str], str]
) -> None:
    """`run` leaves its record. The runtime here has no container yet, as in the middle of a `create`."""
    path = record("[ $1 != state ]")
    assert checked_launcher.run("create", "--bundle", tmp_path, tmp_path.name).returncode == 0
    python.forget_gone()
    assert set(created.of(tmp_path)) == {path}


def test_a_record_that_is_made_while_the_runtime_is_asked_stays(
    checked_launcher: Launcher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: Callable[[str], str],
) -> None:
    again = f"{checked_launcher.path} create --bundle {tmp_path} {tmp_path.name}"
    path = record(f"[ $1 = state ] || exit 0\n{again}\nexit 1")
    monkeypatch.setenv("XPU_CONFIG", str(checked_launcher.config))
    python.forget_gone()
    assert set(created.of(tmp_path)) == {path}


def test_a_runtime_that_does_not_answer_holds_nobody_up_and_keeps_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Callable[[str], str]
) -> None:
    monkeypatch.setattr(python, "_PATIENCE_S", 0.2)
    path = record(f"[ $1 = state ] || exit 0\necho $$ > {tmp_path}/pid\nexec sleep 20")
    began = time.monotonic()
    python.forget_gone()
    assert time.monotonic() - began < 10
    assert set(created.of(tmp_path)) == {path}
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()


def test_a_runtime_that_does_not_answer_the_launcher_is_the_one_to_ask(
    launcher: Launcher, tmp_path: Path
) -> None:
    """It may have a container of this id, and says so or not in its own time."""
    hangs = tmp_path / "hangs"
    hangs.write_text(
        f"#!/bin/sh\n[ $1 = state ] || {{ echo $1; exit 0; }}\necho $$ > {tmp_path}/pid\nexec sleep 30\n"
    )
    hangs.chmod(0o755)
    (tmp_path / "config.json").write_text("{}")
    began = time.monotonic()
    for runtime in (hangs, "/bin/false"):
        launcher.compiled(runtime)
        done = launcher.run("create", "--bundle", tmp_path, tmp_path.name)
        assert (done.returncode, done.stdout) == (0, "create\n")
    assert time.monotonic() - began < 20
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()


@pytest.mark.parametrize(
    "text", ["1\n{0}/other\n\n\n/other\n{1}", "1\n{0}/other\n\n\n{2}\n{1}x", "1\nother\n\n\n{2}\n{1}"]
)
def test_no_runtime_of_another_container_s_record_is_asked(
    checked_launcher: Launcher, tmp_path: Path, text: str
) -> None:
    """Each of these says that it has the container, and none of them is its runtime."""
    checked_launcher.compiled("/bin/true")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "other").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    (tmp_path / "other").chmod(0o755)
    root = str(tmp_path / "root")
    line: list[str | Path] = ["--root", root, "create", "--bundle", tmp_path, tmp_path.name]
    assert checked_launcher.run(*line).returncode == 0
    ((path, ours),) = created.of(tmp_path).items()
    os.unlink(path)
    os.symlink(text.format(tmp_path, tmp_path.name, root), path)
    assert checked_launcher.run(*line).returncode == 0
    assert created.of(tmp_path) == {path: ours}
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_delete_ends_as_the_runtime_does_and_the_runtime_with_it(
    checked_launcher: Launcher, tmp_path: Path, number: int
) -> None:
    """A runtime that waits stands for one that hangs: ending the launcher ends it too."""
    runtime = tmp_path / "waits"
    runtime.write_text(f"#!/bin/sh\n[ $1 = delete ] || exit 0\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    runtime.chmod(0o755)
    checked_launcher.compiled(runtime)
    (tmp_path / "config.json").write_text("{}")
    assert checked_launcher.run("create", "--bundle", tmp_path, tmp_path.name).returncode == 0
    for whom in ("launcher", "runtime"):
        (tmp_path / "pid").unlink(missing_ok=True)
        os.mkfifo(tmp_path / "pid")
        command: list[str | Path] = [checked_launcher.path, "delete", tmp_path.name]
        with subprocess.Popen(command, env=checked_launcher.env) as process:
            pid = int((tmp_path / "pid").read_text())
            runtime_ended = os.pidfd_open(pid)
            os.kill(pid if whom == "runtime" else process.pid, number)
            assert process.wait(timeout=60) == -number
            ended = select.poll()
            ended.register(runtime_ended, select.POLLIN)
            assert ended.poll(60_000)
            os.close(runtime_ended)
    assert len(created.of(tmp_path)) == 1


ROOTS = [
    "",
    "/nowhere/x",
    "relative/",
    "/run//docker",
    "/",
    "//no//./where/x/../y/",
    "/no/../..",
    "/run/.no/..",
]


@pytest.mark.parametrize("root", ROOTS)
def test_a_container_that_the_shim_has_prepared_has_the_same_record(
    checked_launcher: Launcher, tmp_path: Path, root: str
) -> None:
    checked_launcher.compiled("/bin/true")
    (tmp_path / "config.json").write_text("{}")
    folder = ["--root", root] if root else []
    line: list[str] = [*folder, "create", "--bundle", str(tmp_path), f"{tmp_path.name}-\u00e9"]
    env = {**checked_launcher.env, "XPU_RUN_DIR": os.path.relpath(checked_launcher.run_dir, tmp_path)}
    subprocess.run([checked_launcher.path, *line], env=env, cwd=tmp_path, check=True, timeout=60)
    by_launcher = created.of(tmp_path)
    assert len(by_launcher) == 1
    created.forget(tmp_path)
    words = ["xpu-prepared-1", "/bin/true", *line]
    subprocess.run([checked_launcher.path, *words], env=env, cwd=tmp_path, check=True, timeout=60)
    assert created.of(tmp_path) == by_launcher


@pytest.mark.parametrize("text", ["", "1", "2\n/bin/false\n\n\n{0}\n{1}", "1\n/bin/false\n\n\n/other\n{1}"])
def test_a_record_that_is_damaged_or_another_container_s_counts_for_nothing(
    checked_launcher: Launcher, tmp_path: Path, text: str
) -> None:
    checked_launcher.compiled("/bin/true")
    (tmp_path / "config.json").write_text("{}")
    line: list[str | Path] = ["--root", tmp_path, "create", "--bundle", tmp_path, tmp_path.name]
    assert checked_launcher.run(*line).returncode == 0
    ((path, _),) = created.of(tmp_path).items()
    os.unlink(path)
    if text:
        os.symlink(text.format(tmp_path, tmp_path.name), path)
    assert checked_launcher.run("--root", tmp_path, "state", tmp_path.name).returncode == 0
    Path(path).unlink(missing_ok=True)


def test_the_last_record_leaves_nothing_behind(checked_launcher: Launcher, tmp_path: Path) -> None:
    checked_launcher.compiled("/bin/true")
    (tmp_path / "config.json").write_text("{}")
    script = """mount -t tmpfs none /run
"$0" create --bundle "$1" one; "$0" create --bundle "$1" two; ls /run/xpu/created | wc -l
"$0" delete one; ls /run/xpu/created | wc -l; "$0" delete two; ls -A /run"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, checked_launcher.path, tmp_path],
        env=checked_launcher.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("2\n1\n", "")
