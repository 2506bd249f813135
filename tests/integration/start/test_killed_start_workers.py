"""Start workers that are killed, during a call and between calls: nothing is half started or lost."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.sharing_time import Serve, until, workers_of

from ..conftest import Bundles, Node
from .workers import agent_with_card, with_card, workers_are_there


def test_a_worker_that_is_killed_at_work_starts_nothing_by_half(
    node: Node, bundles: Bundles, start_agent: Serve, any_mode: str
) -> None:
    """At each of its calls that change something, from `go` to the answer."""
    service = agent_with_card(node, start_agent, "1xT4-R580")
    changes = "ftruncate,unlink,rename,open_tree,move_mount,mount,setns,mknodat,symlinkat,flock"
    refused = 0
    for when in range(1, 9):
        workers_are_there(node)
        pids = workers_of(node)[1:]
        tracer = subprocess.Popen(
            [
                *("strace", "-qq", "-o", os.devnull, "-e", f"trace={changes}"),
                *("-e", f"inject={changes}:signal=KILL:when={when}"),
                *(word for pid in pids for word in ("-p", str(pid))),
            ],
            stderr=subprocess.DEVNULL,
        )
        until(lambda seen=pids: all(_traced(pid) for pid in seen), "strace is there")  # type: ignore[misc]
        bundle = bundles("XPU_MEM=1G", "XPU_CORES=30", args=["nvidia-smi"])
        done = node.run(bundle)
        tracer.terminate()
        tracer.wait()
        if done.returncode:
            assert "start the container again" in done.stderr or "start it again" in done.stderr, done.stderr
            refused += 1
        else:
            assert "1024MiB" in done.stdout.replace(" ", "")
        node.close_containers()
        node.xpu("gc")
        assert node.grants() == []
    assert refused >= 3
    told = "was ended by SIGKILL in the middle of a call, which has failed"
    until(lambda: service.log.count(told) >= refused, "the agent's log has each")

    # The worker that was killed just before its answer may be missing.
    until(lambda: refused - 1 <= len(failures(node)) <= refused, "the events have them")


def failures(node: Node) -> list[str]:
    """The reasons of the failed starts, all of which a killed worker has failed."""
    found = [each["reason"] for each in node.events() if each["event"] == "failed"]
    assert all("was ended by SIGKILL" in each for each in found), found
    return found


#: The number of flock on x86-64, as /proc/PID/syscall has it.
_FLOCK = "73 "


@contextmanager
def held_at_its_call(
    node: Node, bundle: Path
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """The caller of a start whose worker is held at its first lock, and the holder: the worker goes on when
    that is killed."""
    pids = workers_of(node)[1:]

    def is_held() -> bool:
        return any(Path(f"/proc/{pid}/syscall").read_text().startswith(_FLOCK) for pid in pids)

    with subprocess.Popen(
        [
            *("strace", "-qq", "-o", os.devnull, "-e", "trace=flock"),
            *("-e", "inject=flock:delay_enter=60s:when=1"),
            *(word for pid in pids for word in ("-p", str(pid))),
        ]
    ) as tracer:
        until(lambda: all(map(_traced, pids)), "strace is there")
        caller = subprocess.Popen(
            node.command("run", "--bundle", bundle, bundle.name), env=node.environ, stderr=subprocess.DEVNULL
        )
        until(is_held, "the worker is at its call")
        yield caller, tracer
        tracer.kill()


def test_a_caller_killed_during_its_workers_call_gets_nothing(
    node: Node, bundles: Bundles, start_agent: Serve
) -> None:
    node.configure("mode: spec")
    agent_with_card(node, start_agent, "1xT4-R580")
    bundle = bundles("XPU_MEM=1G")
    before = (bundle / "config.json").read_bytes()

    def kinds() -> list[str]:
        return [each["event"] for each in node.events()]

    with held_at_its_call(node, bundle) as (caller, tracer):
        caller.kill()
        caller.wait()
        tracer.kill()
        until(lambda: kinds() == ["granted", "released", "failed"], "the call has ended")
    assert (bundle / "config.json").read_bytes() == before
    assert node.grants() == []


def test_a_worker_that_is_lost_after_its_agent_is_an_event(
    node: Node, bundles: Bundles, start_agent: Serve
) -> None:
    service = agent_with_card(node, start_agent, "1xT4-R580")
    with held_at_its_call(node, bundles("XPU_MEM=1G")) as (caller, tracer):
        service.end(signal.SIGTERM)
        # Those that were at no call have ended.
        until(lambda: len(workers_of(node)) == 2, "one is at its call")
        os.kill(workers_of(node)[1], signal.SIGKILL)
        tracer.kill()
        assert caller.wait() != 0

    until(lambda: len(failures(node)) == 1, "it is an event")
    until(lambda: workers_of(node) == [], "all have ended")


def _traced(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True  # it was killed already
    return "TracerPid:\t0" not in status


def test_killed_workers_are_replaced(served: Node, bundles: Bundles) -> None:
    with_card(served, "1xT4")
    for _ in range(3):
        before = workers_of(served)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda seen=before: len(set(workers_of(served)) - set(seen)) >= 3, "others are there")  # type: ignore[misc]
        assert served.run(bundles("XPU_MEM=1G")).returncode == 0
