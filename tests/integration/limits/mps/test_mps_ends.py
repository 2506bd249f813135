"""Daemons, servers and starts under MPS that end too early: the messages, and the remedies."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support import GIB
from support.device_work import PROGRAM, Workers
from support.sharing_time import until

from ...conftest import CGROUPS, Bundles, Node
from .daemons import MPS, SLEEP, daemons, instead, kept, kill, names, number


def findings(node: Node) -> list[dict[str, str]]:
    """The findings of `xpu doctor`."""
    found: list[dict[str, str]] = json.loads(node.xpu("doctor", "--json", check=False).stdout)["findings"]
    return found


def test_without_the_daemon_a_program_is_refused_and_a_start_mends_it(card: Node, bundles: Bundles) -> None:
    container = card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    kill(number(card, "control"))
    until(lambda: names(card) == [], "all have ended")  # the stand-in's server goes with it
    done = card.oci("exec", container, "cuda-probe", "info")
    assert done.returncode == 1
    assert "CUDA_ERROR_MPS_CONNECTION_FAILED" in done.stderr
    assert "the program would run without MPS, and without its limits" in done.stderr
    told = "the MPS control daemon of GPU 0 has ended: programs that start in the container cannot use"
    assert told in card.xpu("ps").stderr
    found = [each for each in findings(card) if told in each["text"]]
    assert [each["todo"] for each in found] == ["start the container again"]
    assert "start the container again" not in found[0]["text"]
    other = card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    for each in (container, other):
        assert card.oci("exec", each, "cuda-probe", "mps").stdout == "device 0: under MPS, 40\n"
    assert "the MPS server of GPU 0 has ended" in card.xpu("ps").stderr  # of the first container


def test_a_daemon_that_hangs_is_asked_once_for_all_its_containers(card: Node, bundles: Bundles) -> None:
    containers = [card.start(bundles(MPS, "XPU_MEM=1G", args=SLEEP)) for _ in range(3)]
    asked = card.run_dir / "asked"
    instead(card, "control", f"echo >> {asked}", "exec sleep 1000")
    told = [line for line in card.xpu("ps").stderr.splitlines() if "daemon does not answer" in line]
    assert len(told) == len(containers)
    assert asked.read_text() == "\n"


def test_a_dead_server_is_told_to_the_programs_that_used_it(card: Node, bundles: Bundles) -> None:
    container = card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    words = card.command("exec", container, "cuda-probe", "alloc", "100", "--watch")
    with subprocess.Popen(
        words, env=card.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "allocating 100 MiB: CUDA_SUCCESS\n"
        assert program.stdout.readline()
        kill(number(card, "server"))
        _, errors = program.communicate(timeout=20)
    assert program.returncode == 1
    assert "CUDA_ERROR_MPS_RPC_FAILURE" in errors
    assert errors.count("xpu: the device's MPS server has ended") == 1
    told = card.xpu("ps").stderr
    assert f"xpu: container {container}: the MPS server of GPU 0 has ended: programs that used it" in told
    # The daemon starts another server for the next program, and a container's start does if no program ran.
    assert card.oci("exec", container, "cuda-probe", "mps").stdout == "device 0: under MPS, 40\n"
    kill(number(card, "server"))
    other = card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    for each in (container, other):
        assert card.oci("exec", each, "cuda-probe", "mps").stdout == "device 0: under MPS, 40\n"


@pytest.mark.parametrize("cap", [(), ("XPU_CORES=30",)])
def test_a_dead_server_is_told_by_a_launch_that_meets_it_first(
    node: Node, workers: Workers, cap: tuple[str, ...]
) -> None:
    node.sim("1xT4-R580")
    container = workers.start(MPS, "XPU_MEM=4G", *cap)
    words = node.command("exec", container, PROGRAM, "fail", "busy_1ms", "100")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, env=node.environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        kill(number(node, "server"))
        out, errors = program.communicate("\n", timeout=20)
    # The program has ended at that call, so that no other call has reported it.
    assert (program.returncode, out) == (1, "launch: CUDA_ERROR_MPS_RPC_FAILURE\n")
    assert errors.count("xpu: the device's MPS server has ended") == 1


def test_gc_ends_what_a_killed_hook_leaves(card: Node, bundles: Bundles) -> None:
    container = card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    there = daemons(card)
    # As a hook leaves it that was killed after the ledger's row and before the daemon's end.
    (entry,) = card.json("ps")
    hooks = card.run_dir / "devices"
    hooks.rename(card.run_dir / "hidden")
    card.remove(container)
    (card.run_dir / "hidden").rename(hooks)
    assert daemons(card) == there
    assert "no container uses it any more" in card.xpu("doctor", check=False).stdout
    card.xpu("gc")
    assert daemons(card) == []
    assert entry["memory_bytes"] == 4 * GIB


def remove_cgroups(name: str) -> None:
    folders = (*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}"))
    until(lambda: all(map(is_removed, folders)), "the cgroups are gone", 20)


def is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def test_a_start_that_is_killed_at_any_time_leaves_what_gc_ends(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4")
    daemon_seen = False
    for step in itertools.count():
        # On a slow machine the daemon is there later.
        if step >= 12 and (daemon_seen or step >= 60):
            break
        bundle = bundles(MPS, "XPU_MEM=4G", args=SLEEP)
        name = bundle.name
        # The runtime, runc and the hook; not the daemon, which has a session of its own.
        with subprocess.Popen(
            node.command("create", "--bundle", bundle, bundle.name),
            env=node.environ,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as start:
            time.sleep(0.08 + 0.03 * step)
            os.killpg(start.pid, signal.SIGKILL)
        daemon_seen |= bool(daemons(node))
        node.oci("delete", "--force", bundle.name)
        node.xpu("gc")
        until(
            lambda: not any(Path(f"/proc/{grant.pid}").exists() for grant in node.grants()),
            "no process is left",
        )
        node.xpu("gc")
        assert (daemons(node), kept(node), node.grants()) == ([], [], [])
        # runc leaves these if it is killed while it creates a container.
        remove_cgroups(name)
    assert daemon_seen
    done = node.run(bundles(MPS, "XPU_MEM=4G", args=["cuda-probe", "mps"]))
    assert done.stdout == "device 0: under MPS, 40\n"


def test_a_start_after_a_killed_start_uses_its_daemon(card: Node, bundles: Bundles) -> None:
    card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    (uuid,) = kept(card)
    # As a kill leaves it between the daemon's start and its links; and one that dies with its files there.
    for name in (card.run_dir / "devices" / "mps" / uuid / "clients").glob("*/*"):
        name.unlink()
    there = daemons(card)
    second = card.start(bundles(MPS, "XPU_MEM=4G", args=SLEEP))
    assert daemons(card) == there
    assert "under MPS" in card.oci("exec", second, "cuda-probe", "mps").stdout


def test_many_starts_and_ends_at_once_leave_nothing(card: Node, bundles: Bundles) -> None:
    ready = [bundles(MPS, "XPU_MEM=1G", args=["cuda-probe", "mps"]) for _ in range(6)]
    running = [
        subprocess.Popen(
            card.command("run", "--bundle", each, each.name),
            env=card.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in ready
    ]
    for each in running:
        told, _ = each.communicate(timeout=60)
        assert (each.returncode, told) == (0, "device 0: under MPS, 40\n")
    assert daemons(card) == []


def test_the_refusal_has_the_message_of_a_daemon_that_does_not_start(card: Node, bundles: Bundles) -> None:
    """Its folder, with its logs, is gone by the time that somebody reads the refusal."""
    instead(
        card,
        "control",
        "echo the output",
        'printf "first line\\nlast line\\n" > "$CUDA_MPS_LOG_DIRECTORY/control.log"',
        "exit 3",
    )
    done = card.run(bundles(MPS, "XPU_MEM=4G"))
    assert done.returncode != 0
    told = "fails (3); start.log: the output; control.log: first line / last line: see "
    assert told in done.stderr, done.stderr


def test_a_server_that_ends_at_once_is_told_at_once(node: Node, bundles: Bundles) -> None:
    node.sim("1xT4-R580")
    instead(node, "server", "exit 1")
    began = time.monotonic()
    done = node.run(bundles(MPS, "XPU_MEM=4G"))
    assert time.monotonic() - began < 30
    assert "the MPS server ends at once; control.log: " in done.stderr, done.stderr
    assert "Server exited" in done.stderr
    assert (names(node), kept(node)) == ([], [])
