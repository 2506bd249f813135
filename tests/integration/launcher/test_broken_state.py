"""With damaged files of ours, engines still reach their runtime, and no container gets more than its
grant."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import script
from xpu_runtime.config import cache

from .conftest import Launcher

RUNC = "/usr/sbin/runc"
MakeBundle = Callable[..., Path]


def says_runc(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 1 and "container does not exist" in done.stderr


def says_shim(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 0 and done.stdout.startswith("the shim\n")


def test_without_a_configuration_it_is_the_system_s_runc(launcher: Launcher) -> None:
    assert says_runc(launcher.run("state", "nope"))


def test_the_compiled_runtime_is_taken_while_the_configuration_is_the_same(launcher: Launcher) -> None:
    launcher.compiled("/bin/echo")
    assert launcher.run("state", "nope").stdout == "state nope\n"
    launcher.config.write_text("runtimes: [crun]  # changed\n")
    assert says_shim(launcher.run("state", "nope"))


def make_garbage(conf: Path) -> None:
    conf.write_bytes(os.urandom(3000))


def make_empty(conf: Path) -> None:
    conf.write_text("")


def cut_off(conf: Path) -> None:
    conf.write_text(conf.read_text().removesuffix("\n"))


def make_a_folder(conf: Path) -> None:
    conf.unlink()
    conf.mkdir()


def make_a_fifo(conf: Path) -> None:
    conf.unlink()
    os.mkfifo(conf)


def make_large(conf: Path) -> None:
    conf.write_text("#\n" * 20_000 + conf.read_text())


def make_writable_by_others(conf: Path) -> None:
    conf.chmod(0o666)


def give_to_someone(conf: Path) -> None:
    os.chown(conf, 1000, 1000)


def make_of_another_version(conf: Path) -> None:
    conf.write_text(conf.read_text().replace(f"format={cache.FORMAT}", "format=1"))


def name_another_configuration(conf: Path) -> None:
    conf.write_text(conf.read_text().replace("config=", "config=/other"))


def name_a_relative_runtime(conf: Path) -> None:
    conf.write_text(conf.read_text().replace("runtime=/bin/echo", "runtime=echo"))


def name_an_endless_runtime(conf: Path) -> None:
    conf.write_text(conf.read_text().replace("runtime=/bin/echo", "runtime=/" + "x" * 5000))


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        make_garbage,
        make_empty,
        cut_off,
        make_a_folder,
        make_a_fifo,
        make_large,
        make_writable_by_others,
        give_to_someone,
        make_of_another_version,
        name_another_configuration,
        name_a_relative_runtime,
        name_an_endless_runtime,
    ],
)
def test_python_makes_an_untrusted_compiled_file_anew(
    checked_launcher: Launcher, damage: Callable[[Path], None]
) -> None:
    launcher = checked_launcher
    conf = launcher.compiled("/bin/echo")
    assert launcher.run("state", "nope").stdout == "state nope\n"
    damage(conf)
    assert says_shim(launcher.run("state", "nope"))
    launcher.shim.unlink()
    assert says_runc(launcher.run("state", "nope"))


def lose_its_mode(runtime: Path) -> None:
    runtime.chmod(0o644)


def become_writable_by_others(runtime: Path) -> None:
    runtime.chmod(0o777)


def become_no_program(runtime: Path) -> None:
    runtime.write_bytes(b"\x7fELF, or so it says")


@pytest.mark.parametrize("damage", [Path.unlink, lose_its_mode, become_writable_by_others, become_no_program])
def test_python_looks_again_for_a_runtime_that_cannot_be_started(
    launcher: Launcher, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    runtime = tmp_path / "runtime"
    shutil.copy("/bin/echo", runtime)
    launcher.compiled(runtime)
    assert launcher.run("state", "nope").stdout == "state nope\n"
    damage(runtime)
    assert says_shim(launcher.run("state", "nope"))
    launcher.shim.unlink()
    assert says_runc(launcher.run("state", "nope"))


@pytest.mark.parametrize("as_symlink", [False, True])
def test_the_launcher_never_takes_itself_for_the_runtime(
    launcher: Launcher, tmp_path: Path, as_symlink: bool
) -> None:
    alias = tmp_path / "runc"
    alias.symlink_to(launcher.path)
    launcher.compiled(alias if as_symlink else launcher.path)
    assert says_shim(launcher.run("state", "nope"))


def where_mounts_are(change: str, launcher: Launcher, *run: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command where `change` has changed the mounts, for it alone."""
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{change}\nexec "$@"', "sh"]
    return subprocess.run([*words, *run], env=launcher.env, capture_output=True, text=True, timeout=60)


def test_a_link_to_the_launcher_in_front_of_runc_is_passed_over(launcher: Launcher) -> None:
    script = f"mount -t tmpfs none /usr/local/sbin; ln -s {launcher.path} /usr/local/sbin/runc"
    assert says_runc(where_mounts_are(script, launcher, launcher.path, "state", "nope"))
    assert says_runc(where_mounts_are(script + "; umount -l /proc", launcher, launcher.path, "state", "nope"))


NO_RUNTIME = 'for f in /usr/*bin/runc /usr/*bin/crun; do [ ! -e "$f" ] || mount --bind /dev/null "$f"; done'


def test_the_runc_of_cri_o_s_packages_is_found_by_the_launcher_and_the_shim(launcher: Launcher) -> None:
    script = f"mount -t tmpfs none /usr/libexec; install -D /usr/sbin/runc -t /usr/libexec/crio; {NO_RUNTIME}"
    assert says_runc(where_mounts_are(script, launcher, launcher.path, "state", "nope"))
    look = "import xpu_runtime.config.low_level_runtime as module; print(*module.find_runtime(('runc',)))"
    python = f"import sys; sys.path = {sys.path}; {look}"
    found = where_mounts_are(script, launcher, sys.executable, "-c", python)
    assert found.stdout.startswith("/usr/libexec/crio/runc "), found.stderr


def test_where_there_is_no_runtime_the_launcher_says_so(launcher: Launcher) -> None:
    done = where_mounts_are(NO_RUNTIME, launcher, launcher.path, "state", "nope")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "xpu-container-runtime: no runc or crun in the system's bin and sbin folders: install one of them\n"
    )


def test_without_proc_the_shim_is_found_by_the_launcher_s_own_name(launcher: Launcher) -> None:
    launcher.compiled("/bin/nonexistent")
    assert says_shim(where_mounts_are("umount -l /proc", launcher, launcher.path, "state", "nope"))


@pytest.fixture(params=["no shim", "no interpreter"])
def lame(request: pytest.FixtureRequest) -> Launcher:
    """A launcher that cannot start Python."""
    if request.param == "no interpreter":
        without: Launcher = request.getfixturevalue("launcher_without_python")
        return without
    launcher: Launcher = request.getfixturevalue("launcher")
    launcher.shim.unlink()
    return launcher


@pytest.mark.parametrize("stale", [False, True])
def test_a_container_that_asks_for_nothing_starts_without_python(
    lame: Launcher, bundle: MakeBundle, state_root: Path, container_id: Callable[[], str], stale: bool
) -> None:
    if stale:
        lame.compiled("/bin/echo").unlink()
    done = lame.run("--root", state_root, "run", "-b", bundle(["echo", "started"]), container_id())
    assert (done.returncode, done.stdout) == (0, "started\n")


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_container_that_asks_does_not_start_without_python(
    lame: Launcher,
    bundle: MakeBundle,
    state_root: Path,
    container_id: Callable[[], str],
    tmp_path: Path,
    stale: bool,
    log_format: str,
) -> None:
    if stale:
        lame.compiled("/bin/echo").unlink()
    log = tmp_path / "log"
    folder = bundle(["echo", "started"], env=["XPU_MEM=4G"])
    options: list[str | Path] = ["--log", log, "--log-format", log_format, "--root", state_root]
    done = lame.run(*options, "run", "-b", folder, container_id())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("xpu-container-runtime: this container asks for an accelerator")
    assert done.stderr.count("\n") == 1
    message = done.stderr.removeprefix("xpu-container-runtime: ").strip()
    if log_format == "json":
        line = json.loads(log.read_text())
        assert (line["level"], line["msg"]) == ("error", message)
    else:
        assert log.read_text().endswith(f'level=error msg="{message}"\n')
    assert not any(state_root.iterdir())


def test_a_log_that_cannot_be_written_does_not_hold_the_launcher(
    lame: Launcher, bundle: MakeBundle, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    folder = bundle(env=["XPU_MEM=4G"])
    for log in (tmp_path / "fifo", tmp_path, tmp_path / "no" / "folder", ""):
        assert lame.run("--log", log, "create", "-b", folder, "x").returncode == 1


def without_streams(launcher: Launcher, *words: str | Path) -> int:
    """The launcher's exit code where it is started with no file descriptor at all."""
    command = [str(launcher.path), *map(str, words)]
    code = f"import os\nos.closerange(0, 1000)\nos.execv({command[0]!r}, {command!r})"
    return subprocess.run([sys.executable, "-c", code], env=launcher.env, timeout=60).returncode


@pytest.mark.parametrize("asks", [False, True])
def test_closed_standard_streams_are_left_closed(
    launcher: Launcher, bundle: MakeBundle, tmp_path: Path, asks: bool
) -> None:
    runtime = script(tmp_path / "runtime", f"ls -l /proc/$$/fd > {tmp_path}/open\nexit 7")
    launcher.compiled(runtime)
    launcher.shim.write_text(f"import os\nos.execv({str(runtime)!r}, ['x'])\n")
    folder = bundle(env=["XPU_MEM=4G"] if asks else [])
    code = without_streams(launcher, "create", "-b", folder, "x")
    assert code == 7
    links = [line.split(" -> ")[1] for line in (tmp_path / "open").read_text().splitlines()[1:]]
    # Only what the shell itself opens: its script, and the file that it writes to.
    assert [link for link in links if not link.startswith(str(tmp_path))] == []


def test_nothing_is_written_into_a_file_that_took_a_closed_stream_s_place(
    launcher: Launcher, bundle: MakeBundle, tmp_path: Path
) -> None:
    launcher.shim.unlink()
    folder = bundle(env=["XPU_MEM=4G"])
    spec = (folder / "config.json").read_bytes()
    assert without_streams(launcher, "create", "-b", folder, "x") == 1
    assert (folder / "config.json").read_bytes() == spec


@pytest.mark.parametrize("argv0", ["", "runc", "/elsewhere/runc"])
def test_the_launcher_s_own_name_decides_nothing(launcher: Launcher, argv0: str) -> None:
    launcher.compiled("/bin/nonexistent")
    command = [argv0, "state", "nope"]
    # Without a folder to go to, Python 3.14 starts it by posix_spawn, and that takes no empty name.
    done = subprocess.run(
        command, executable=launcher.path, env=launcher.env, cwd="/", capture_output=True, timeout=60
    )
    assert done.stdout == b"the shim\nstate\nnope\n"


def test_a_line_too_long_for_the_shim_still_reaches_the_runtime(launcher: Launcher) -> None:
    """The kernel takes the launcher's line to the last byte; Python's, with the shim's path, is E2BIG."""
    launcher.compiled("/bin/nonexistent")

    def done(length: int) -> subprocess.CompletedProcess[str] | None:
        whole, part = divmod(length, 100_000)
        command = ["./" + launcher.path.name, "state", *["x" * 100_000] * whole, "x" * part]
        folder = launcher.path.parent
        try:
            return subprocess.run(command, env=launcher.env, cwd=folder, capture_output=True, text=True)
        except OSError as error:
            assert error.errno == errno.E2BIG
            return None

    fits, too_long = 0, 100_000_000
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        fits, too_long = (fits, middle) if done(middle) is None else (middle, too_long)
    answer = done(fits)
    assert answer is not None
    assert "requires exactly 1 argument" in answer.stderr
    shorter = done(fits - 1000)
    assert shorter is not None
    assert says_shim(shorter)


def test_a_signal_that_kills_runc_is_the_exit_that_the_engine_sees(launcher: Launcher) -> None:
    launcher.compiled("/bin/sh")
    assert launcher.run("-c", "kill -TERM $$").returncode == -signal.SIGTERM
