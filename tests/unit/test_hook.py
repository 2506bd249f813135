"""The hook, where what it is called for is gone in the middle of it."""

from __future__ import annotations

import os

import pytest

from xpu_runtime import hook
from xpu_runtime.errors import SpecError
from xpu_runtime.linux import cgroups, proc
from xpu_runtime.messages import Log
from xpu_runtime.oci.state import State
from xpu_runtime.start import in_container


def test_a_container_that_ends_while_it_gets_its_slice_is_no_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A moment that no test of the whole hits at will: the kernel has just forgotten its process."""

    def start(state: State, *_: object) -> None:
        cgroups.v2_folder(state.pid, not_of=os.getpid())

    monkeypatch.setattr(in_container, "start", start)
    monkeypatch.setattr(hook, "_asking_spec", lambda *_: {})
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    caller = proc.Caller(os.getpid(), 0, {}, "/", 0.0)
    with pytest.raises(SpecError, match="container c has ended while it was given its slice"):
        hook.start(State("c", "/bundle", child), None, Log(), caller)
