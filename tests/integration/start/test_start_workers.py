"""The agent's start workers: a start that they do is a start as any other, and without them all goes on."""

from __future__ import annotations

import operator
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.sharing_time import Serve, until, workers_of

from ..conftest import Bundles, Node
from ..inside import tree
from ..refusals import log_entries
from .test_faults import DRIVERS
from .workers import agent_with_card, with_card, without_python, workers_are_there

# Starts and ends by workers.


@DRIVERS
def test_a_start_by_workers_gives_what_any_other_gives(
    node: Node, copy: Path, bundles: Bundles, start_agent: Serve, any_mode: str, topology: str
) -> None:
    with_card(node, topology)
    look = "nvidia-smi | grep MiB; cut -d ' ' -f 5-6 /proc/self/mountinfo; stat -c '%n %a %t %T' /dev/*"

    def seen() -> tuple[int, str, dict[str, tuple[str, ...]]]:
        bundle = bundles("XPU_MEM=1G", "XPU_CORES=30", args=["sh", "-c", look])
        done = node.run(bundle)
        return done.returncode, done.stdout, tree(bundle / "rootfs")

    without = seen()
    assert without[0] == 0 and "1024MiB" in without[1].replace(" ", "") and "libcuda.so" in without[1]
    start_agent()
    workers_are_there(node)
    without_python(copy)
    assert seen() == without
    assert node.grants() == []


def test_sockets_that_somebody_has_removed_come_back(node: Node, copy: Path, start_agent: Serve) -> None:
    agent_with_card(node, start_agent, "1xT4")
    names = ("agent.sock", "start.sock", "metrics.sock")
    until(lambda: all((node.run_dir / name).is_socket() for name in names), "all are there")
    time.sleep(1.5)  # the agent has looked at them
    for name in names:
        (node.run_dir / name).unlink()
    until(lambda: all((node.run_dir / name).is_socket() for name in names), "they are there again", 30)
    workers_are_there(node)
    assert node.json("top")["agent_runs"]
    assert "xpu_up 1.0" in scraped(node.run_dir / "metrics.sock")


def scraped(path: Path) -> str:
    words = ["curl", "-sS", "--unix-socket", str(path), "http://localhost/metrics"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def test_refusals_are_the_same_to_the_letter(
    node: Node, bundles: Bundles, start_agent: Serve, any_mode: str
) -> None:
    with_card(node, "1xT4")

    def told(*env: str) -> tuple[int, str, list[Any]]:
        bundle = bundles(*env)
        log = bundle / "log.json"
        done = node.oci("--log", log, "--log-format", "json", "create", "--bundle", bundle, "same")
        entries = [(each["level"], each["msg"]) for each in log_entries(log, "json")]
        return done.returncode, done.stderr, [each for each in entries if "xpu" in each[1]]

    requests = (["XPU_MEM=40G"], ["XPU_MEM=4X"], ["XPU_VISIBLE_DEVICES=7"], ["XPU_CORES=33"])
    without = [told(*each) for each in requests]
    start_agent()
    workers_are_there(node)
    assert [told(*each) for each in requests] == without
    assert all(status != 0 for status, _, _ in without)
    assert [each["event"] for each in node.events()] == ["refused"] * 2 * len(requests)


def test_a_refusal_ends_the_worker_and_another_takes_its_place(served: Node, bundles: Bundles) -> None:
    with_card(served, "1xT4")
    before = workers_of(served)
    for _ in range(5):
        assert served.run(bundles("XPU_MEM=40G")).returncode != 0
    workers_are_there(served)
    assert workers_of(served)[0] == before[0] and workers_of(served) != before
    assert served.run(bundles("XPU_MEM=1G")).returncode == 0


def test_a_worker_that_has_asked_the_driver_ends_and_another_takes_its_place(
    served: Node, bundles: Bundles
) -> None:
    with_card(served, "1xT4")
    before = workers_of(served)
    (served.run_dir / "inventory.json").unlink()
    assert served.run(bundles("XPU_MEM=1G")).returncode == 0
    until(lambda: len(set(workers_of(served)) - set(before)) == 1, "another is there")
    workers_are_there(served)
    warm = workers_of(served)
    assert served.run(bundles("XPU_MEM=1G")).returncode == 0
    assert workers_of(served) == warm


def test_many_at_once_get_what_there_is_and_no_more(served: Node, bundles: Bundles) -> None:
    with_card(served, "1xT4")
    folders = [bundles("XPU_MEM=1G", args=["sleep", "1000"]) for _ in range(24)]
    running = served.create_all(folders)
    done = [each.wait(120) for each in running]
    assert done.count(0) == len(served.grants()) == 15
    served.close_containers()
    assert served.grants() == []


def test_nothing_grows_from_start_to_start(served: Node, bundles: Bundles) -> None:
    with_card(served, "1xT4-R580")
    bundle = bundles("XPU_MEM=1G", "XPU_CORES=30")
    spec = (bundle / "config.json").read_bytes()

    def start() -> None:
        (bundle / "config.json").write_bytes(spec)
        assert served.run(bundle).returncode == 0

    def open_files() -> list[int]:
        """Without the ledger, which a worker keeps open from its first call on."""
        folders = [Path(f"/proc/{pid}/fd") for pid in workers_of(served)]
        return [
            sum(not os.readlink(each).endswith("/ledger.db") for each in folder.iterdir())
            for folder in folders
        ]

    for _ in range(6):
        start()
    before, pids = open_files(), workers_of(served)  # a worker may have files of its last call open still
    for _ in range(12):
        start()
    assert workers_of(served) == pids
    until(
        lambda: all(map(operator.le, open_files(), before)),
        "a worker has closed what it had open for the last call",
    )


# Without them.


def test_paths_that_mean_the_callers_own_files_are_read_by_the_caller(
    node: Node, bundles: Bundles, start_agent: Serve
) -> None:
    agent_with_card(node, start_agent, "1xT4-R580")
    for named in ("/proc/self/cwd", "link"):
        bundle = bundles("XPU_MEM=1G", args=["nvidia-smi"])
        (bundle / "link").symlink_to("/proc/self/cwd")
        done = node.oci("run", "--bundle", named, bundle.name, cwd=bundle)
        assert "1024MiB" in done.stdout.replace(" ", ""), done.stderr


@pytest.mark.parametrize("times", [2000, 15_000])
def test_a_long_command_line_is_nobodys_limit(
    node: Node, bundles: Bundles, start_agent: Serve, times: int
) -> None:
    agent_with_card(node, start_agent, "1xT4")
    bundle = bundles("XPU_MEM=1G", args=["nvidia-smi"])
    done = node.oci(*["--debug=false"] * times, "run", "--bundle", bundle, bundle.name)
    assert "1024MiB" in done.stdout.replace(" ", ""), done.stderr


def test_a_caller_elsewhere_does_it_itself(node: Node, bundles: Bundles, start_agent: Serve) -> None:
    node.configure("mode: hook\n")
    agent_with_card(node, start_agent, "1xT4-R580")
    before = workers_of(node)
    assert node.run(bundles("XPU_MEM=1G")).returncode == 0
    # Where it would read another configuration.
    other = node.folder / "other.yaml"
    other.write_text("policy: {max_memory: 1G}\n")
    bundle = bundles("XPU_MEM=2G")
    done = node.oci("run", "--bundle", bundle, "a", env={**node.environ, "XPU_CONFIG": str(other)})
    assert "policy.max_memory" in done.stderr
    # If its paths are in another mount namespace, and one of them has another file there.
    elsewhere = f'mount --bind {other} {node.config} && exec "$@"'
    node.view = ["unshare", "--mount", "--propagation", "private", "sh", "-c", elsewhere, "sh"]
    done = node.run(bundles("XPU_COUNT=1", args=["cuda-probe", "info"]))
    assert done.stdout == "device 0: 1024 MiB free of 1024 MiB\n", done.stderr
    # Without the rights that a worker has.
    node.view = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", "--"]
    assert node.run(bundles("XPU_MEM=1G")).returncode != 0
    node.view = []
    assert workers_of(node) == before


def test_old_workers_do_not_serve_a_new_installation(
    node: Node, copy: Path, bundles: Bundles, start_agent: Serve
) -> None:
    agent_with_card(node, start_agent, "1xT4")
    before = workers_of(node)
    version = copy / "lib/xpu-container-runtime/python/xpu_runtime/version.py"
    shutil.copy(version, version.with_suffix(".new"))
    version.with_suffix(".new").rename(version)
    assert node.run(bundles("XPU_MEM=1G")).returncode == 0
    until(lambda: not set(before) & set(workers_of(node)), "the old ones have ended")
    workers_are_there(node)
    without_python(copy)
    assert node.run(bundles("XPU_MEM=1G")).returncode == 0


def test_workers_that_have_loaded_a_driver_end_when_another_is_installed(
    node: Node, bundles: Bundles, start_agent: Serve
) -> None:
    agent_with_card(node, start_agent, "1xT4")
    assert node.run(bundles("XPU_MEM=1G")).returncode == 0
    maps = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in workers_of(node)[1:]}
    loaded = {pid for pid, text in maps.items() if "/libnvidia-ml.so" in text}
    assert loaded
    (library,) = {word for text in maps.values() for word in text.split() if "/libnvidia-ml.so" in word}
    shutil.copy(library, f"{library}.new")
    os.rename(f"{library}.new", library)
    node.xpu("devices")  # the new one is known: a worker that asked the driver for its devices would end

    def have_ended() -> bool:
        assert node.run(bundles("XPU_MEM=1G")).returncode == 0
        return not loaded & set(workers_of(node))

    until(have_ended, "those with the old one have ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_when_the_agent_ends_starts_and_ends_go_on(
    node: Node, bundles: Bundles, start_agent: Serve, number: signal.Signals
) -> None:
    service = agent_with_card(node, start_agent, "1xT4")
    running = node.start(bundles("XPU_MEM=1G", args=["sleep", "1000"]))
    service.end(number)
    until(lambda: not workers_of(node), "they have ended with it")
    node.remove(running)
    assert node.grants() == []
    assert node.run(bundles("XPU_MEM=1G")).returncode == 0


@pytest.mark.parametrize("program", [None, "raise SystemExit(1)\n"], ids=["none", "one that ends at once"])
def test_without_workers_no_start_waits_for_them(
    node: Node, copy: Path, bundles: Bundles, start_agent: Serve, program: str | None
) -> None:
    """As after pip, from the sources, or with an installation that is damaged."""
    with_card(node, "1xT4")
    path = copy / "lib/xpu-container-runtime/worker.py"
    path.unlink()
    if program is not None:
        path.write_text(program)
    service = start_agent()
    if program is not None:
        until(lambda: "the start workers have ended (1)" in service.log, "they have ended")
    until(lambda: bool(service.status()), "it looks after other things")

    def connects() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            return caller.connect_ex(str(node.run_dir / "start.sock")) == 0

    until(lambda: not connects(), "nobody can connect")
    assert node.run(bundles("XPU_MEM=1G")).returncode == 0


# Other callers.


def test_messages_that_are_no_calls_harm_nobody(served: Node, bundles: Bundles) -> None:
    with_card(served, "1xT4")
    address = str(served.run_dir / "start.sock")
    assert os.stat(address).st_mode & 0o777 == 0o600
    before = workers_of(served)
    garbage = [
        b"",
        b"\0",
        b"xpu-start-1\0",
        b"xpu-start-1\0shim\0/\0\0\0/\0",
        b"xpu-start-2\0hook\0/\0\0\0/\0createRuntime\0{}\0",
        b"\xff" * 100_000,
    ]
    for message in garbage:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            caller.connect(address)
            caller.send(message)
            caller.settimeout(5)
            assert caller.recv(64) in (b"declined\0", b"")
    # Callers that say nothing, or leave, delay nobody for long.
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
    for caller in silent:
        caller.connect(address)
    began = time.monotonic()
    assert served.run(bundles("XPU_MEM=1G")).returncode == 0
    assert time.monotonic() - began < 60
    for caller in silent:
        caller.close()
    assert workers_of(served) == before
