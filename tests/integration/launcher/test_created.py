"""Each later command for a container reaches the runtime that created it, also after new containers get
another.

Two programs stand as low-level runtimes: each is runc with a state folder of its own (it ignores --root), and
records its calls. So neither knows the other's containers, as with runc and crun.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from support import created, script

from .conftest import Launcher

RUNTIME = """echo "$XPU_CONFIG $XPU_RUN_DIR $*" >> {0}.calls
[ "$1" != --root ] || shift 2
exec /usr/sbin/runc --root {0}.state "$@"
"""


class Runtimes:
    """Low-level runtimes of the test's own behind one launcher."""

    def __init__(
        self, launcher: Launcher, folder: Path, bundle: Callable[..., Path], new_id: Callable[[], str]
    ) -> None:
        self.launcher, self.bundle, self.new_id = launcher, bundle, new_id
        self._folder = folder
        folder.mkdir()

    def take(self, name: str) -> Path:
        """New containers get this one from here on."""
        path = self._folder / name
        if not path.exists():
            script(path, RUNTIME.format(path))
        self.launcher.compiled(path)
        return path

    def calls(self, name: str) -> list[str]:
        path = self._folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def create(self, *options: str | Path, args: Sequence[str] = ("true",), name: str = "") -> str:
        """A new container; its id."""
        name = name or self.new_id()
        done = self(*options, "create", "--bundle", self.bundle(list(args)), name)
        assert done.returncode == 0, done.stdout
        return name

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
def runtimes(
    checked_launcher: Launcher, tmp_path: Path, bundle: Callable[..., Path], container_id: Callable[[], str]
) -> Iterator[Runtimes]:
    folder = tmp_path / "runtimes"
    yield Runtimes(checked_launcher, folder, bundle, container_id)
    for state in folder.glob("*.state/*"):
        subprocess.run(["/usr/sbin/runc", "--root", state.parent, "delete", "--force", state.name])


@pytest.mark.parametrize("has_root", [True, False], ids=["--root", "no --root"])
def test_a_container_keeps_its_runtime_when_new_ones_get_another(
    runtimes: Runtimes,
    tmp_path: Path,
    has_root: bool,
) -> None:
    root = ["--root", str(tmp_path / "root")] if has_root else []
    runtimes.take("first")
    name = runtimes.create(*root, args=["sleep", "1000"])
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
    # It is gone, and a new container with its id gets its own configuration.
    assert created.of(tmp_path) == {}
    runtimes.create(*root, name=name)
    assert runtimes(*root, "delete", "--force", name).returncode == 0
    assert len(runtimes.calls("second")) == 2


def test_later_commands_have_the_configuration_and_run_folder_of_the_create(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    """As with podman, whose `start` lacks the environment of conmon's `create`."""
    runtimes.take("first")
    name = runtimes.create()
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


def test_variables_that_the_create_lacked_are_not_given_to_later_commands(runtimes: Runtimes) -> None:
    name = runtimes.new_id()
    runtime = str(runtimes.take("first"))
    line = ["create", "--bundle", str(runtimes.bundle(["true"])), name]
    done = runtimes("xpu-prepared-1", runtime, *line, XPU_CONFIG="", XPU_RUN_DIR="")
    assert done.returncode == 0, done.stderr
    assert runtimes("delete", "--force", name).returncode == 0
    assert runtimes.calls("first")[-1] == f"  delete --force {name}"


def test_a_container_that_could_not_be_deleted_is_still_known(runtimes: Runtimes) -> None:
    runtimes.take("first")
    name = runtimes.create(args=["sleep", "1000"])
    assert runtimes("start", name).returncode == 0
    done = runtimes("delete", name)
    assert (done.returncode, "is not stopped" in done.stdout) == (1, True)
    runtimes.take("second")
    assert runtimes("delete", "--force", name).returncode == 0
    assert runtimes.calls("second") == []


def test_one_id_in_two_roots_is_two_containers(runtimes: Runtimes, tmp_path: Path) -> None:
    name = runtimes.new_id()
    for runtime in ("first", "second"):
        runtimes.take(runtime)
        runtimes.create("--root", tmp_path / runtime, name=name)
    assert runtimes("--root", tmp_path / "first", "state", name).returncode == 0
    assert [len(runtimes.calls(each)) for each in ("first", "second")] == [2, 1]


@pytest.mark.parametrize("given", ["var/a/b/", "var/a/.//b", "run/a/../a/b"])
def test_a_root_folder_has_one_name(runtimes: Runtimes, tmp_path: Path, given: str) -> None:
    """docker says /var/run/docker/..., which is below /run; its first container comes before the folder."""
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to("run")
    runtimes.take("first")
    name = runtimes.create("--root", f"{tmp_path}/{given}")
    runtimes.take("second")
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    assert runtimes("--root", tmp_path / "run" / "a" / "b", "state", name).returncode == 0


def test_an_id_that_is_in_use_stays_with_its_container(runtimes: Runtimes) -> None:
    runtimes.take("first")
    name = runtimes.create()
    runtimes.take("second")
    again = runtimes("create", "--bundle", runtimes.bundle(["true"]), name)
    assert again.returncode == 1 and "exists" in again.stdout
    assert runtimes("delete", "--force", name).returncode == 0
    assert runtimes.calls("second") == []


def test_a_container_that_ended_without_a_delete_does_not_keep_its_id(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    name = runtimes.new_id()
    for runtime in ("first", "second"):
        runtimes.take(runtime)
        assert runtimes("run", "--bundle", runtimes.bundle(["true"]), name).returncode == 0
    assert [call.split()[2] for call in runtimes.calls("second")] == ["run"]
    # `xpu gc` removes what such a one has left, and not what may still come to be.
    (path,) = created.of(tmp_path)
    runtimes.launcher.collect_garbage(long_after=False)
    assert set(created.of(tmp_path)) == {path}
    runtimes.launcher.collect_garbage()
    assert created.of(tmp_path) == {}


@pytest.mark.parametrize("spelling", ["/", "/../run/."])
def test_a_run_folder_is_one_whatever_its_spelling(runtimes: Runtimes, tmp_path: Path, spelling: str) -> None:
    runtimes.take("first")
    words: list[str | Path] = ["run", "--bundle", runtimes.bundle(["true"]), runtimes.new_id()]
    assert runtimes(*words, XPU_RUN_DIR=f"{runtimes.launcher.run_dir}{spelling}").returncode == 0
    assert len(created.of(tmp_path)) == 1
    runtimes.launcher.collect_garbage()
    assert created.of(tmp_path) == {}


def test_a_container_that_is_there_keeps_its_record(runtimes: Runtimes, tmp_path: Path) -> None:
    runtimes.take("first")
    runtimes.create()
    records = created.of(tmp_path)
    runtimes.launcher.collect_garbage()
    assert created.of(tmp_path) == records != {}


def test_a_runtime_that_is_gone_is_named(runtimes: Runtimes) -> None:
    name = runtimes.new_id()
    first = runtimes.take("first")
    assert runtimes("create", "--bundle", runtimes.bundle(["true"]), name).returncode == 0
    runtimes.take("second")
    first.rename(first.with_suffix(".away"))
    done = runtimes("state", name)
    assert done.returncode == 1
    assert done.stdout == (
        f"xpu-container-runtime: container {name} cannot be reached: {first} has created it, and cannot be "
        "started (No such file or directory): install it again\n"
    )


def test_a_delete_under_an_engine_that_ignores_its_children_is_seen_to_end(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    runtimes.take("first")
    name = runtimes.create()
    done = subprocess.run(
        [runtimes.launcher.path, "delete", "--force", name],
        env=runtimes.launcher.env,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        restore_signals=False,
        timeout=60,
    )
    assert (done.returncode, created.of(tmp_path)) == (0, {})


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
