"""The hook, if its container ends while the hook runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xpu_runtime import hook
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.errors import SpecError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.linux import cgroups, proc
from xpu_runtime.messages import Log
from xpu_runtime.oci.state import State
from xpu_runtime.start import config_json, in_container


def test_a_container_that_ends_while_it_gets_its_slice_is_no_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A moment that no test of the whole hits at will: the kernel has just forgotten its process."""

    def start(state: State, *_: object) -> None:
        cgroups.v2_folder(state.pid, not_of=os.getpid())

    monkeypatch.setattr(in_container, "start", start)
    monkeypatch.setattr(hook, "_spec_with_request", lambda *_: {})
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    caller = proc.Caller(os.getpid(), 0, {}, "/", 0.0)
    with pytest.raises(SpecError, match="container c has ended while it was given its slice"):
        hook.start(State("c", "/bundle", child), None, Log(), caller)


#: Starts a process in the pid namespace of the process that it is given, and never waits for it.
EXEC = """
import ctypes, os, sys, time
if ctypes.CDLL(None).setns(os.open(f"/proc/{sys.argv[1]}/ns/pid", os.O_RDONLY), 0):
    sys.exit("setns")
if not os.fork():
    os.execvp("sleep", ["sleep", "100"])
print(flush=True)
time.sleep(100)
"""


def test_a_first_process_that_only_waits_for_an_execs_holds_no_slice_without_a_cgroup_either() -> None:
    with contextlib.ExitStack() as started:

        def start(*command: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        outside = start("unshare", "--pid", "--fork", "sleep", "100")
        children = f"/proc/{outside.pid}/task/{outside.pid}/children"
        while not (found := Path(children).read_text().split()):
            time.sleep(0.01)
        first = int(found[0])
        started.enter_context(contextlib.suppress(ProcessLookupError))
        started.callback(os.kill, first, signal.SIGKILL)
        exec_ = start(sys.executable, "-c", EXEC, str(first))
        assert exec_.stdout is not None and exec_.stdout.readline()
        began = proc.start_time(first)
        assert began is not None
        grant = Grant(1, "c", "/bundle", first, began, "", "running", "hook", 0.0, ())
        state = State("c", "/bundle", first)

        assert not hook._is_of(grant, state, None)
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while not hook._is_of(grant, state, None):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # The kernel keeps it for as long as nobody waits for the exec's process.
        assert proc.is_alive(first, grant.start_time)


def test_a_spec_that_asks_for_nothing_any_more_does_not_get_its_booked_slice() -> None:
    """The engine's file may change between spec mode's create and the hook."""
    state = State("c", "/bundle", os.getpid())
    with pytest.raises(SpecError, match="the spec of container c asks for no XPU any more: start it again"):
        in_container.start(state, 7, {}, DEFAULTS, Log(), proc.this_process())


def test_a_spec_is_not_written_for_a_caller_that_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    ended = subprocess.Popen(["/bin/true"])
    caller = proc.Caller(ended.pid, proc.start_time(ended.pid) or 1, {}, "/", 0.0)
    ended.wait()
    with pytest.raises(SpecError, match=f"the process that was to start {tmp_path} has ended"):
        config_json.write(str(path), {"hooks": {}}, caller, keep=True)
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]
    assert path.read_text() == "{}"
