"""Each later command for a container reaches what has created it, whatever new containers get by now.

Two programs stand as low-level runtimes: each is runc with a folder of its own for its state, whatever root
it is given, and notes what it was called with. So neither knows the other's containers, as with runc and
crun.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import created
from xpu_runtime import paths
from xpu_runtime.linux.proc import Caller
from xpu_runtime.oci import argv
from xpu_runtime.start import created as python

from .conftest import Launcher

RUNTIME = """#!/bin/sh
echo "$XPU_CONFIG $XPU_RUN_DIR $*" >> {0}.calls
[ "$1" != --root ] || shift 2
exec /usr/sbin/runc --root {0}.state "$@"
"""


class Runtimes:
    """Low-level runtimes of the test's own behind one launcher."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.launcher = launcher
        self._folder = folder
        folder.mkdir()

    def take(self, name: str) -> Path:
        """New containers get this one from here on."""
        path = self._folder / name
        if not path.exists():
            path.write_text(RUNTIME.format(path))
            path.chmod(0o755)
        self.launcher.compiled(path)
        return path

    def calls(self, name: str) -> list[str]:
        path = self._folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def __call__(self, *words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        # Output to a file: the container would keep a pipe open.
        with (self._folder / "output").open("w+") as output:
            done = subprocess.run(
                [self.launcher.path, *words],
                env={**self.launcher.env, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=60,
            )
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read())


@pytest.fixture
def runtimes(checked_launcher: Launcher, tmp_path: Path) -> Iterator[Runtimes]:
    folder = tmp_path / "runtimes"
    yield Runtimes(checked_launcher, folder)
    for state in folder.glob("*.state/*"):
        subprocess.run(["/usr/sbin/runc", "--root", state.parent, "delete", "--force", state.name])


@pytest.mark.parametrize("has_root", [True, False], ids=["--root", "no --root"])
def test_a_container_keeps_its_runtime_when_new_ones_get_another(
    runtimes: Runtimes,
    bundle: Callable[..., Path],
    container_id: Callable[[], str],
    tmp_path: Path,
    has_root: bool,
) -> None:
    root = ["--root", str(tmp_path / "root")] if has_root else []
    name = container_id()
    runtimes.take("first")
    assert runtimes(*root, "create", "--bundle", bundle(["sleep", "1000"]), name).returncode == 0
    runtimes.take("second")
    for words in (
        ["start", name],
        ["state", name],
        ["exec", "--cwd", "/", "-e", "A=1", name, "true"],
        ["exec", name, "sh", "-c", "exit 0"],
        ["ps", name],
        ["pause", name],
        ["resume", name],
        ["update", "--pids-limit", "100", name],
        ["events", "--stats", name],
        ["kill", "--all", name, "KILL"],
        ["delete", "--force", name],
    ):
        done = runtimes(*root, *words)
        assert done.returncode == 0, (words, done.stdout)
    assert runtimes.calls("second") == []
    # It is gone, and its id is free: for what new containers get.
    assert created.of(tmp_path) == {}
    assert runtimes(*root, "create", "--bundle", bundle(["true"]), name).returncode == 0
    assert runtimes(*root, "delete", "--force", name).returncode == 0
    assert len(runtimes.calls("second")) == 2


def test_later_commands_have_the_configuration_and_run_folder_of_the_create(
    runtimes: Runtimes, bundle: Callable[..., Path], container_id: Callable[[], str], tmp_path: Path
) -> None:
    """As with podman, whose `start` has not what conmon's `create` had."""
    name = container_id()
    runtimes.take("first")
    assert runtimes("create", "--bundle", bundle(["true"]), name).returncode == 0
    other = tmp_path / "other.yaml"
    other.write_text("")
    for words, environ in (
        (["start", name], {"XPU_CONFIG": "", "XPU_RUN_DIR": ""}),
        (["state", name], {"XPU_CONFIG": str(other), "XPU_RUN_DIR": str(tmp_path)}),
        (["delete", "--force", name], {"XPU_CONFIG": str(other), "XPU_RUN_DIR": "/nowhere"}),
    ):
        assert runtimes(*words, **environ).returncode == 0, words
    had = {tuple(call.split()[:2]) for call in runtimes.calls("first")}
    assert had == {(str(runtimes.launcher.config), str(runtimes.launcher.run_dir))}


def test_what_the_create_had_not_is_taken_from_later_commands(
    runtimes: Runtimes, bundle: Callable[..., Path], container_id: Callable[[], str]
) -> None:
    name = container_id()
    runtimes.take("first")
    runtime = str(runtimes.take("first"))
    line = ["create", "--bundle", str(bundle(["true"])), name]
    read = argv.read(["xpu-argv-1,creates,id=3+0,bundle=2+0", *line], "/")
    assert python.keep(read, runtime, Caller(1, 1, {}, "/", 0.0)) == runtime
    assert runtimes(*line).returncode == 0
    for path in created.of(runtimes.launcher.path.parents[3]):
        os.unlink(path)
    assert python.keep(read, runtime, Caller(1, 1, {}, "/", 0.0)) == runtime
    assert runtimes("delete", "--force", name).returncode == 0
    assert runtimes.calls("first")[-1] == f"  delete --force {name}"


def test_a_container_that_could_not_be_deleted_is_still_known(
    runtimes: Runtimes, bundle: Callable[..., Path], container_id: Callable[[], str]
) -> None:
    name = container_id()
    runtimes.take("first")
    assert runtimes("create", "--bundle", bundle(["sleep", "1000"]), name).returncode == 0
    assert runtimes("start", name).returncode == 0
    done = runtimes("delete", name)
    assert (done.returncode, "is not stopped" in done.stdout) == (1, True)
    runtimes.take("second")
    assert runtimes("delete", "--force", name).returncode == 0
    assert runtimes.calls("second") == []


def test_one_id_in_two_roots_is_two_containers(
    runtimes: Runtimes, bundle: Callable[..., Path], container_id: Callable[[], str], tmp_path: Path
) -> None:
    name = container_id()
    for runtime in ("first", "second"):
        runtimes.take(runtime)
        line: list[str | Path] = ["--root", tmp_path / runtime, "create", "--bundle", bundle(["true"]), name]
        assert runtimes(*line).returncode == 0
    assert runtimes("--root", tmp_path / "first", "state", name).returncode == 0
    assert [len(runtimes.calls(each)) for each in ("first", "second")] == [2, 1]


@pytest.mark.parametrize("given", ["var/a/b/", "var/a/.//b", "run/a/../a/b"])
def test_a_root_folder_has_one_name(
    runtimes: Runtimes,
    bundle: Callable[..., Path],
    container_id: Callable[[], str],
    tmp_path: Path,
    given: str,
) -> None:
    """docker says /var/run/docker/..., which is below /run; its first container comes before the folder."""
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to("run")
    name = container_id()
    runtimes.take("first")
    line: list[str | Path] = ["--root", f"{tmp_path}/{given}", "create", "--bundle", bundle(["true"]), name]
    assert runtimes(*line).returncode == 0
    runtimes.take("second")
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    assert runtimes("--root", tmp_path / "run" / "a" / "b", "state", name).returncode == 0


def test_an_id_that_is_in_use_stays_with_its_container(
    runtimes: Runtimes, bundle: Callable[..., Path], container_id: Callable[[], str]
) -> None:
    name = container_id()
    runtimes.take("first")
    assert runtimes("create", "--bundle", bundle(["true"]), name).returncode == 0
    runtimes.take("second")
    again = runtimes("create", "--bundle", bundle(["true"]), name)
    assert again.returncode == 1 and "exists" in again.stdout
    assert runtimes("delete", "--force", name).returncode == 0
    assert runtimes.calls("second") == []


def test_what_has_ended_without_a_delete_does_not_keep_its_id(
    runtimes: Runtimes,
    bundle: Callable[..., Path],
    container_id: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XPU_RUN_DIR", str(runtimes.launcher.run_dir))
    name = container_id()
    for runtime in ("first", "second"):
        runtimes.take(runtime)
        assert runtimes("run", "--bundle", bundle(["true"]), name).returncode == 0
    assert [call.split()[2] for call in runtimes.calls("second")] == ["run"]
    # `xpu gc` removes what such a one has left, and not what may still come to be.
    (path,) = created.of(tmp_path)
    python.forget_gone()
    assert set(created.of(tmp_path)) == {path}
    os.utime(path, (1, 1), follow_symlinks=False)
    python.forget_gone()
    assert created.of(tmp_path) == {}


@pytest.mark.parametrize("spelling", ["", "/", "/../run/."])
def test_a_run_folder_is_one_whatever_its_spelling(
    runtimes: Runtimes,
    bundle: Callable[..., Path],
    container_id: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spelling: str,
) -> None:
    monkeypatch.setenv("XPU_RUN_DIR", str(runtimes.launcher.run_dir))
    runtimes.take("first")
    words: list[str | Path] = ["run", "--bundle", bundle(["true"]), container_id()]
    assert runtimes(*words, XPU_RUN_DIR=f"{runtimes.launcher.run_dir}{spelling}").returncode == 0
    (path,) = created.of(tmp_path)
    os.utime(path, (1, 1), follow_symlinks=False)
    python.forget_gone()
    assert created.of(tmp_path) == {}


@pytest.mark.parametrize("by", ["launcher", "shim"])
def test_an_id_that_is_used_again_begins_anew(
    checked_launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """`run` leaves its record. The runtime here has no container yet, as in the middle of a `create`."""
    monkeypatch.setenv("XPU_RUN_DIR", str(checked_launcher.run_dir))
    runtime = tmp_path / "runtime"
    runtime.write_text("#!/bin/sh\n[ $1 != state ]\n")
    runtime.chmod(0o755)
    checked_launcher.compiled(runtime)
    (tmp_path / "config.json").write_text("{}")
    line: list[str] = ["create", "--bundle", str(tmp_path), tmp_path.name]
    assert checked_launcher.run(*line).returncode == 0
    (path,) = created.of(tmp_path)
    os.utime(path, (1, 1), follow_symlinks=False)
    if by == "launcher":
        assert checked_launcher.run(*line).returncode == 0
    else:
        read = argv.read(["xpu-argv-1,creates,id=3+0,bundle=2+0", *line], "/")
        python.keep(read, str(runtime), Caller(1, 1, checked_launcher.env, "/", 0.0))
    python.forget_gone()
    assert set(created.of(tmp_path)) == {path}


def test_a_record_that_is_made_while_the_runtime_is_asked_stays(
    checked_launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPU_RUN_DIR", str(checked_launcher.run_dir))
    runtime = tmp_path / "runtime"
    checked_launcher.compiled(runtime)
    again = f"{checked_launcher.path} create --bundle {tmp_path} {tmp_path.name}"
    runtime.write_text(f"#!/bin/sh\n[ $1 = state ] || exit 0\n{again}\nexit 1\n")
    runtime.chmod(0o755)
    (tmp_path / "config.json").write_text("{}")
    assert checked_launcher.run("create", "--bundle", tmp_path, tmp_path.name).returncode == 0
    (path,) = created.of(tmp_path)
    os.utime(path, (1, 1), follow_symlinks=False)
    monkeypatch.setenv("XPU_CONFIG", str(checked_launcher.config))
    python.forget_gone()
    assert set(created.of(tmp_path)) == {path}


def test_a_runtime_that_does_not_answer_holds_nobody_up_and_keeps_its_container(
    checked_launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPU_RUN_DIR", str(checked_launcher.run_dir))
    monkeypatch.setattr(python, "_PATIENCE_S", 0.2)
    runtime = tmp_path / "runtime"
    runtime.write_text(f"#!/bin/sh\n[ $1 = state ] || exit 0\necho $$ > {tmp_path}/pid\nexec sleep 20\n")
    runtime.chmod(0o755)
    checked_launcher.compiled(runtime)
    (tmp_path / "config.json").write_text("{}")
    assert checked_launcher.run("create", "--bundle", tmp_path, tmp_path.name).returncode == 0
    (path,) = created.of(tmp_path)
    os.utime(path, (1, 1), follow_symlinks=False)
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


@pytest.mark.parametrize("race", ["made", "taken away"])
def test_two_shims_at_the_first_start_leave_a_record_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, race: str
) -> None:
    """Another start makes the folder, or the end of the last container takes it away, in between."""
    folder = tmp_path / "xpu" / "created"
    monkeypatch.setattr(python, "FOLDER", str(folder))
    monkeypatch.setattr(paths, "DEFAULT_RUN_DIR", str(folder.parent))
    mkdir, symlink, taken = os.mkdir, os.symlink, list[str]()

    def make(path: str, mode: int = 0o777) -> None:
        if race == "made" and path == str(folder):
            mkdir(path, mode)
        mkdir(path, mode)

    def link(text: str, path: str) -> None:
        if race == "taken away" and folder.exists() and not taken:
            taken.append(path)
            folder.rmdir()
            folder.parent.rmdir()
        symlink(text, path)

    monkeypatch.setattr(os, "mkdir", make)
    monkeypatch.setattr(os, "symlink", link)
    read = argv.read(["xpu-argv-1,creates,id=1+0", "create", "one"], "/")
    assert python.keep(read, "/bin/true", Caller(1, 1, {}, "/", 0.0)) == "/bin/true"
    assert [record.container_id for _, record in python.records()] == ["one"]
    assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o700, 0o755)


@pytest.mark.parametrize(
    "text", ["1\n{0}/other\n\n\n/other\n{1}", "1\n{0}/other\n\n\n{2}\n{1}x", "1\nother\n\n\n{2}\n{1}"]
)
def test_the_shim_asks_no_runtime_of_another_container_s_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """As the launcher: each of these says that it has the container, and none of them is its runtime."""
    monkeypatch.setattr(python, "FOLDER", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").write_text("#!/bin/sh\n")
    (tmp_path / "other").chmod(0o755)
    root = str(tmp_path / "root")
    read = argv.read(["xpu-argv-1,creates,id=3+0,root=1+0", "--root", root, "create", "one"], "/")
    caller = Caller(1, 1, {}, "/", 0.0)
    assert python.keep(read, "/bin/true", caller) == "/bin/true"
    ((path, ours),) = python.records()
    os.unlink(path)
    os.symlink(text.format(tmp_path, "one", root), path)
    assert python.keep(read, "/bin/true", caller) == "/bin/true"
    assert list(python.records()) == [(path, ours)]


def test_a_container_that_is_there_keeps_its_record(
    runtimes: Runtimes,
    bundle: Callable[..., Path],
    container_id: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XPU_RUN_DIR", str(runtimes.launcher.run_dir))
    name = container_id()
    runtimes.take("first")
    assert runtimes("create", "--bundle", bundle(["true"]), name).returncode == 0
    (path,) = created.of(tmp_path)
    os.utime(path, (1, 1), follow_symlinks=False)
    python.forget_gone()
    assert set(created.of(tmp_path)) == {path}


def test_a_runtime_that_is_gone_is_named(
    runtimes: Runtimes, bundle: Callable[..., Path], container_id: Callable[[], str]
) -> None:
    name = container_id()
    first = runtimes.take("first")
    assert runtimes("create", "--bundle", bundle(["true"]), name).returncode == 0
    runtimes.take("second")
    first.rename(first.with_suffix(".away"))
    done = runtimes("state", name)
    assert done.returncode == 1
    assert done.stdout == (
        f"xpu-container-runtime: container {name} cannot be reached: {first} has created it, and cannot be "
        "started (No such file or directory): install it again\n"
    )


def test_a_program_that_an_update_has_moved_is_found_by_its_name(
    launcher: Launcher, bundle: Callable[..., Path], container_id: Callable[[], str], state_root: Path
) -> None:
    moved = state_root.parent / "elsewhere" / "runc"
    moved.parent.mkdir()
    moved.symlink_to("/usr/sbin/runc")
    launcher.compiled(moved)
    name = container_id()
    done = subprocess.run(
        [launcher.path, "--root", state_root, "create", "--bundle", bundle(["true"]), name],
        env=launcher.env,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 0
    moved.unlink()
    launcher.compiled("/bin/false")
    assert launcher.run("--root", state_root, "state", name).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_delete_ends_as_the_runtime_does_and_the_runtime_with_it(
    checked_launcher: Launcher, tmp_path: Path, number: int
) -> None:
    """A runtime that waits stands for one that hangs: whoever ends the launcher ends it too."""
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


def test_a_delete_under_an_engine_that_ignores_its_children_is_seen_to_end(
    runtimes: Runtimes, bundle: Callable[..., Path], container_id: Callable[[], str], tmp_path: Path
) -> None:
    name = container_id()
    runtimes.take("first")
    assert runtimes("create", "--bundle", bundle(["true"]), name).returncode == 0
    done = subprocess.run(
        [runtimes.launcher.path, "delete", "--force", name],
        env=runtimes.launcher.env,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        restore_signals=False,
        timeout=60,
    )
    assert (done.returncode, created.of(tmp_path)) == (0, {})


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
def test_launcher_and_shim_write_one_record(checked_launcher: Launcher, tmp_path: Path, root: str) -> None:
    checked_launcher.compiled("/bin/true")
    (tmp_path / "config.json").write_text("{}")
    line: list[str] = [
        *(["--root", root] if root else []),
        "create",
        "--bundle",
        str(tmp_path),
        f"{tmp_path.name}-é",
    ]
    env = {**checked_launcher.env, "XPU_RUN_DIR": os.path.relpath(checked_launcher.run_dir, tmp_path)}
    subprocess.run([checked_launcher.path, *line], env=env, cwd=tmp_path, check=True, timeout=60)
    by_launcher = created.of(tmp_path)
    assert len(by_launcher) == 1
    created.forget(tmp_path)
    shift = 2 if root else 0
    facts = ",root=1+0" if root else ""
    read = argv.read([f"xpu-argv-1,creates,id={3 + shift}+0{facts}", *line], str(tmp_path))
    python.keep(read, "/bin/true", Caller(1, 1, env, str(tmp_path), 0.0))
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
