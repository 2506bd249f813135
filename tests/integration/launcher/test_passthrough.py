"""Behind the launcher runc is runc: the same words in give the same bytes, codes and processes out.

Tests that take `runc` run twice, once with runc alone, so that their expectations are runc's own behaviour.
"""

from __future__ import annotations

import array
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from .conftest import Launcher

RUNC = "/usr/sbin/runc"
CommandLine = Callable[..., list[str | Path]]
MakeBundle = Callable[..., Path]


def without_times(text: str) -> str:
    return re.sub(r"20\d\d-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)", "TIME", text)


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--version"],
        ["-v"],
        ["--help"],
        ["create", "--help"],
        ["features"],
        ["frobnicate"],
        ["--frobnicate"],
        ["--log-format", "xml", "state", "nope"],
        ["--root"],
        ["state"],
        ["state", "nope"],
        ["delete", "nope"],
        ["delete", "--force", "nope"],
        ["kill", "nope", "KILL"],
        ["start", "nope"],
        ["exec", "nope", "true"],
        ["ps", "nope"],
        ["events", "nope"],
        ["list"],
        ["create"],
        ["create", "one", "two"],
        ["create", "--frobnicate", "one"],
        ["create", "--pid-file"],
        ["create", "--bundle", "/dev/null/bundle", "one"],
        ["run", "one"],
        ["run", "--preserve-fds", "many", "one"],
        ["restore", "one"],
    ],
    ids=lambda words: " ".join(words) or "no words",
)
def test_an_answer_without_a_container_is_runc_s_byte_for_byte(
    launcher: Launcher, state_root: Path, tmp_path: Path, words: list[str]
) -> None:
    words = words if words[:1] == ["--root"] else ["--root", str(state_root), *words]
    ours = run([launcher.path, *words], cwd=tmp_path, env=launcher.env)
    its = run([RUNC, *words], cwd=tmp_path, env=launcher.env)
    assert (ours.returncode, ours.stdout) == (its.returncode, its.stdout)
    assert without_times(ours.stderr) == without_times(its.stderr)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_log_is_runc_s_word_for_word(launcher: Launcher, tmp_path: Path, log_format: str) -> None:
    logs = []
    for program in (launcher.path, RUNC):
        log = tmp_path / f"{Path(program).name}.log"
        options: list[str | Path] = ["--log", log, "--log-format", log_format, "--root", tmp_path / "r"]
        assert run([program, *options, "create", "--bundle", tmp_path, "x"]).returncode == 1
        logs.append(without_times(log.read_text()))
    assert logs[0] == logs[1] != ""


def test_spec_writes_the_file_that_runc_writes(
    launcher: Launcher, tmp_path: Path, base_spec: dict[str, Any]
) -> None:
    assert launcher.run("spec", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "config.json").read_text()) == base_spec


@pytest.fixture
def created(
    runc: CommandLine, bundle: MakeBundle, state_root: Path, container_id: Callable[[], str]
) -> Iterator[Callable[..., tuple[str, CommandLine]]]:
    """Creates a container; gives its id, and `runc` with the state root filled in."""

    def in_root(*words: str | Path) -> list[str | Path]:
        return runc("--root", state_root, *words)

    def create(args: list[str], *options: str | Path, **more: Any) -> tuple[str, CommandLine]:
        name = container_id()
        command = in_root("create", "--bundle", bundle(args, **more), *options, name)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60)
        assert done.returncode == 0
        return name, in_root

    yield create


def test_a_container_goes_from_created_to_running_to_gone(
    created: Callable[..., tuple[str, CommandLine]],
) -> None:
    name, runc = created(["sleep", "1000"])
    states = []
    for words in (["state"], ["start"], ["state"]):
        done = run(runc(*words, name))
        assert done.returncode == 0
        states += [json.loads(done.stdout)] if words == ["state"] else []
    assert [state["status"] for state in states] == ["created", "running"]
    assert [state["id"] for state in states] == [name, name]
    pid = states[0]["pid"]
    pidfd = os.pidfd_open(pid)
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    assert not ended.poll(0)
    assert run(runc("ps", "--format", "json", name)).stdout == f"[{pid}]\n"
    assert json.loads(run(runc("list", "--format", "json")).stdout)[0]["id"] == name
    assert json.loads(run(runc("events", "--stats", name)).stdout)["type"] == "stats"
    assert run(runc("kill", name, "KILL")).returncode == 0
    assert run(runc("delete", "--force", name)).returncode == 0
    assert run(runc("state", name)).returncode == 1
    assert ended.poll(60_000)
    os.close(pidfd)


def test_exec_has_a_terminal_when_asked(created: Callable[..., tuple[str, CommandLine]]) -> None:
    name, runc = created(["sleep", "1000"])
    master, slave = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            runc("exec", "-t", name, "sh", "-c", "tty; exit 6"), stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        assert process.wait(timeout=60) == 6
        assert terminal.read(100).startswith(b"/dev/pts/")


def test_a_signal_reaches_the_container_s_process(
    runc: CommandLine, bundle: MakeBundle, state_root: Path, container_id: Callable[[], str]
) -> None:
    folder = bundle(["sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"])
    command = runc("--root", state_root, "run", "-b", folder, container_id())
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 9


def test_create_sends_a_real_terminal_over_the_console_socket(
    created: Callable[..., tuple[str, CommandLine]], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "console"))
        listener.listen(1)
        listener.settimeout(60)
        name, runc = created(
            ["sh", "-c", "tty; read line; echo got $line"],
            "--console-socket",
            tmp_path / "console",
            terminal=True,
        )
        connection, _ = listener.accept()
        with connection:
            _, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(4))
    master = array.array("i", ancillary[0][2])[0]
    with os.fdopen(master, "r+b", buffering=0) as terminal:
        assert run(runc("start", name)).returncode == 0
        shown = terminal.read(100)
        assert shown.startswith(b"/dev/")
        terminal.write(b"words\n")
        while b"got words" not in shown:
            shown += terminal.read(100)


def test_preserve_fds_hands_an_open_file_to_the_container(
    runc: CommandLine, bundle: MakeBundle, state_root: Path, container_id: Callable[[], str], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("through the descriptor")
    folder = bundle(["sh", "-c", "cat <&3"])
    command = runc("--root", state_root, "run", "-b", folder, "--preserve-fds", "1", container_id())
    with open(tmp_path / "secret") as file:
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", '"$@" >"$0"', str(tmp_path / "out"), *map(str, command)],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), 3)],
        )
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "out").read_text() == "through the descriptor"


REPORT = """
import os, signal, sys
# Not SigQ: it counts the signals that are queued for all processes of the user.
KEPT = ("SigPnd", "SigBlk", "SigIgn", "SigCgt", "Umask", "CapEff")
fds = {}
for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
    try:
        fds[fd] = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        pass  # the folder that listdir had open
status = [line for line in open("/proc/self/status") if line.startswith(KEPT)]
environment = open("/proc/self/environ").read()
print(fds, status, environment, os.getcwd(), os.getpgrp() == os.getpid(), sys.argv)
"""


def test_the_runtime_finds_everything_as_the_engine_left_it(launcher: Launcher, tmp_path: Path) -> None:
    """Descriptors, masked and ignored signals, environment, umask: python3 stands as the runtime."""
    launcher.compiled(os.path.realpath("/usr/bin/python3"))

    def engine() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD})
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.umask(0o137)

    reports = []
    with open(tmp_path / "kept", "w") as kept:
        for program in (launcher.path, os.path.realpath("/usr/bin/python3")):
            done = subprocess.run(
                [program, "-I", "-S", "-c", REPORT, "create", "--bundle", "", "\udcff"],
                env={**launcher.env, "ODD": "a=b\n"},
                cwd=tmp_path,
                pass_fds=[kept.fileno()],
                preexec_fn=engine,
                restore_signals=False,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=60,
            )
            assert (done.returncode, done.stderr) == (0, b"")
            reports.append(re.sub(rb"pipe:\[\d+\]", b"pipe", done.stdout))
    assert reports[0] == reports[1]
