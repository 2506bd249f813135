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

from support import created, script
from xpu_runtime.start import created as python

from .conftest import Launcher

Record = Callable[..., str]


@pytest.fixture
def record(checked_launcher: Launcher, tmp_path: Path) -> Record:
    """`record(SCRIPT)`: the record of a container that a runtime of these lines has created."""

    def create(text: str = "exit 0", *options: str | Path) -> str:
        checked_launcher.compiled(script(tmp_path / "runtime", text))
        (tmp_path / "config.json").write_text("{}")
        create_anew(checked_launcher, tmp_path, *options)
        (path,) = created.of(tmp_path)
        return path

    return create


def create_anew(launcher: Launcher, bundle: Path, *options: str | Path) -> None:
    assert launcher.run(*options, "create", "--bundle", bundle, bundle.name).returncode == 0


def test_an_id_that_is_used_again_begins_anew(
    checked_launcher: Launcher, tmp_path: Path, record: Record
) -> None:
    """`run` leaves its record. The runtime here has no container yet, as in the middle of a `create`."""
    path = record("[ $1 != state ]")
    os.utime(path, (1, 1), follow_symlinks=False)
    create_anew(checked_launcher, tmp_path)
    checked_launcher.collect_garbage(long_after=False)
    assert set(created.of(tmp_path)) == {path}


def test_a_record_that_is_made_while_the_runtime_is_asked_stays(
    checked_launcher: Launcher, tmp_path: Path, record: Record
) -> None:
    again = f"{checked_launcher.path} create --bundle {tmp_path} {tmp_path.name}"
    path = record(f"[ $1 = state ] || exit 0\n{again}\nexit 1")
    checked_launcher.collect_garbage()
    assert set(created.of(tmp_path)) == {path}


def test_a_runtime_that_does_not_answer_holds_nobody_up_and_keeps_its_container(
    checked_launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    monkeypatch.setattr(python, "_PATIENCE_S", 0.2)
    path = record(f"[ $1 = state ] || exit 0\necho $$ > {tmp_path}/pid\nexec sleep 20")
    began = time.monotonic()
    checked_launcher.collect_garbage()
    assert time.monotonic() - began < 10
    assert set(created.of(tmp_path)) == {path}
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()


def test_a_runtime_that_does_not_answer_the_launcher_is_the_one_to_ask(
    launcher: Launcher, tmp_path: Path
) -> None:
    """It may have a container of this id, and says so or not in its own time."""
    text = f"[ $1 = state ] || {{ echo $1; exit 0; }}\necho $$ > {tmp_path}/pid\nexec sleep 30"
    hangs = script(tmp_path / "hangs", text)
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
    checked_launcher: Launcher, tmp_path: Path, record: Record, text: str
) -> None:
    """Each of these says that it has the container, and none of them is its runtime."""
    script(tmp_path / "other", f"touch {tmp_path}/asked")
    root = str(tmp_path / "root")
    path = record("exit 0", "--root", root)
    before = created.of(tmp_path)
    os.unlink(path)
    os.symlink(text.format(tmp_path, tmp_path.name, root), path)
    create_anew(checked_launcher, tmp_path, "--root", root)
    assert created.of(tmp_path) == before
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_delete_ends_as_the_runtime_does_and_the_runtime_with_it(
    checked_launcher: Launcher, tmp_path: Path, record: Record, number: int
) -> None:
    """A runtime that waits stands for one that hangs: ending the launcher ends it too."""
    record(f"[ $1 = delete ] || exit 0\necho $$ > {tmp_path}/pid\nexec sleep 1000")
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
    checked_launcher: Launcher, tmp_path: Path, record: Record, text: str
) -> None:
    path = record("exit 0", "--root", tmp_path)
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
