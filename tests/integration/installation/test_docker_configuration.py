"""`xpu runtime configure docker`, against a real dockerd that reads the file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from xpu_runtime.engines import docker

from ..conftest import Node
from ..findings import Finding, examine

FOO = ("--add-runtime", "foo=/usr/sbin/runc")


class Daemon:
    """A dockerd of its own with a configuration file."""

    def __init__(self, folder: Path, state: Path) -> None:
        self._folder, self._state = folder, state
        self._socket = f"unix://{folder}/s"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, config: Path, *flags: str) -> int:
        """Starts or restarts it; its process id."""
        self.stop()
        folder = self._folder
        arguments = [f"--data-root={folder}/data", f"--exec-root={self._state}", f"--pidfile={folder}/pid"]
        network = ["--iptables=false", "--bridge=none", "-H", self._socket]
        command = ["dockerd", "--config-file", str(config), *arguments, *network, *flags]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def runtimes(self) -> tuple[str, list[str]]:
        """The default runtime and all runtimes that it names; empty while it does not answer."""
        words = ["docker", "-H", self._socket, "info", "--format", "{{json .}}"]
        done = subprocess.run(words, capture_output=True, text=True)
        info = json.loads(done.stdout) if done.returncode == 0 else {}
        return info.get("DefaultRuntime") or "", sorted(info.get("Runtimes") or {})

    def shows(self, default: str, *, knows_xpu: bool) -> None:
        """Waits until its default runtime is this one, and it knows xpu or not."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            found, names = self.runtimes()
            if (found, "xpu" in names) == (default, knows_xpu):
                return
            time.sleep(0.1)
        raise AssertionError((self._folder / "log").read_text()[-2000:])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    # containerd 1.7 limits the paths of its sockets, which are below, to 104 bytes.
    state = Path(tempfile.mkdtemp(prefix="xpu-d-", dir="/run"))
    found = Daemon(tmp_path, state)
    yield found
    found.stop()
    # dockerd leaves its network namespace mounted in its state folder.
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if line.split()[1].startswith((str(tmp_path), str(state))):
            subprocess.run(["umount", line.split()[1]], check=True)
    shutil.rmtree(state)


def test_a_running_docker_takes_the_runtime_up_and_forgets_it_as_we_say_it_does(
    node: Node, tmp_path: Path, daemon: Daemon
) -> None:
    config = tmp_path / "daemon.json"
    config.write_text('{\n  "features": {"buildkit": true}\n}\n')
    pid = daemon.start(config)
    daemon.shows("runc", knows_xpu=False)
    words = ("--config", config, "--runtime-path", "/usr/bin/true", "--set-as-default")
    done = node.xpu("runtime", "configure", "docker", *words)
    assert "kill -HUP $(pidof dockerd)" in done.stdout
    os.kill(pid, signal.SIGHUP)
    daemon.shows("xpu", knows_xpu=True)
    done = node.xpu("runtime", "unconfigure", "docker", "--config", config)
    assert f"{docker.AFTER_UNCONFIGURE}\n" in done.stdout
    daemon.start(config)
    daemon.shows("runc", knows_xpu=False)


def test_docker_starts_with_our_entries_in_its_file_and_with_its_earlier_file(
    node: Node, tmp_path: Path, daemon: Daemon
) -> None:
    config = tmp_path / "daemon.json"
    before = (
        '{"default-runtime": "other", "runtimes": {"other": {"path": "/usr/sbin/runc"},'
        ' "xpu": {"path": "/usr/sbin/runc", "runtimeArgs": ["--debug"]}}}'
    )
    config.write_text(before)
    words = ("--config", config, "--runtime-path", "/usr/bin/true", "--set-as-default")
    node.xpu("runtime", "configure", "docker", *words)
    daemon.start(config)
    daemon.shows("xpu", knows_xpu=True)
    node.xpu("runtime", "unconfigure", "docker", "--config", config)
    assert config.read_text() == before
    daemon.start(config)
    daemon.shows("other", knows_xpu=True)


def about(node: Node, pid: int) -> list[Finding]:
    """The findings of doctor about the dockerd with this process id; there may be others on the machine."""
    found, _ = examine(node)
    return [each for each in found if each["check"] == "docker" and f"(process {pid})" in each["text"]]


def test_a_file_of_ours_that_docker_was_started_with_stays(
    node: Node, tmp_path: Path, daemon: Daemon
) -> None:
    config = tmp_path / "daemon.json"
    words = ("--config", config)
    node.xpu("runtime", "configure", "docker", *words, "--runtime-path", "/usr/bin/true")
    daemon.start(config)
    daemon.shows("runc", knows_xpu=True)
    node.xpu("runtime", "unconfigure", "docker", *words)
    assert config.read_text() == "{}\n"
    daemon.start(config)
    daemon.shows("runc", knows_xpu=False)


@pytest.mark.parametrize("default", [(), ("--default-runtime", "foo")], ids=["added", "the default"])
def test_a_docker_that_has_runtimes_by_its_command_line_is_restarted_and_not_reloaded(
    node: Node, tmp_path: Path, daemon: Daemon, default: tuple[str, ...]
) -> None:
    config = tmp_path / "daemon.json"
    config.write_text("{}\n")
    pid = daemon.start(config, *FOO, *default)
    daemon.shows("foo" if default else "runc", knows_xpu=False)
    words = ("runtime", "configure", "docker", "--config", config, "--runtime-path", "/usr/bin/true")
    advice = node.xpu(*words).stdout
    assert f"For the change to take effect: {docker.AFTER_UNCONFIGURE}. Do not reload" in advice
    assert f"(process {pid}) would forget the runtimes that only its command line names (foo)" in advice
    assert "HUP" not in advice and "reload docker" not in advice
    (unread,) = [each for each in about(node, pid) if "has not read" in each["text"]]
    assert unread["todo"].startswith(f"{docker.AFTER_UNCONFIGURE}. Do not reload")
    if not default:  # 20.10 would end; otherwise doctor shows what it forgets
        os.kill(pid, signal.SIGHUP)
        daemon.shows("runc", knows_xpu=True)
        assert "foo" not in daemon.runtimes()[1]
        (lost,) = [each for each in about(node, pid) if "has forgotten" in each["text"]]
        assert "(foo)" in lost["text"] and lost["todo"] == docker.AFTER_UNCONFIGURE
    # Follow the advice.
    daemon.start(config, *FOO, *default)
    daemon.shows("foo" if default else "runc", knows_xpu=True)
    assert "foo" in daemon.runtimes()[1]


def test_a_default_runtime_in_the_file_beside_one_by_flag_is_refused(
    node: Node, tmp_path: Path, daemon: Daemon
) -> None:
    config = tmp_path / "daemon.json"
    config.write_text("{}\n")
    pid = daemon.start(config, "--default-runtime=runc")
    daemon.shows("runc", knows_xpu=False)
    words = ("runtime", "configure", "docker", "--config", config, "--runtime-path", "/usr/bin/true")
    done = node.xpu(*words, "--set-as-default", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"xpu: dockerd (process {pid}) is started with --default-runtime runc, and does not start where "
        f"{config} has default-runtime as well: take the flag out of its command line"
    )
    assert config.read_text() == "{}\n"
    # The other way that it names.
    node.xpu(*words)
    pid = daemon.start(config, "--default-runtime=xpu")
    daemon.shows("xpu", knows_xpu=True)
    done = node.xpu(*words, "--set-as-default", check=False)
    assert done.returncode == 1 and "it is xpu by that flag" in done.stderr
    # It could not start without us.
    done = node.xpu("runtime", "unconfigure", "docker", "--config", config, check=False)
    assert done.returncode == 1 and "take --default-runtime out of its command line first" in done.stderr
    # doctor reports another program's entry in the file.
    config.write_text('{"default-runtime": "xpu", "runtimes": {"xpu": {"path": "/usr/bin/true"}}}')
    assert [each["state"] for each in about(node, pid) if "as well" in each["text"]] == ["problem"]
