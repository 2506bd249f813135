"""Processes of both architectures share one account: its pages have the same layout and locks there."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable

import pytest

from support import MIB
from xpu_runtime.limits import pages

from .accounts import LINEAR, Account, Make, Process


@pytest.fixture
def emulated(account: Make) -> Callable[[Account], Process]:
    """A worker for aarch64, under qemu on another architecture."""

    def begin(here: Account) -> Process:
        compiler = "gcc" if platform.machine() == "aarch64" else "aarch64-linux-gnu-gcc"
        program = here.place.build("worker.c", "-static", compiler=compiler, name="worker-aarch64")
        # From Debian 14 on the emulator has only its plain name, and is static.
        emulator = shutil.which("qemu-aarch64-static") or "qemu-aarch64"
        before = [] if platform.machine() == "aarch64" else [emulator]
        return here.start(*before, program=program)

    return begin


def test_an_aarch64_process_shares_the_account(account: Make, emulated: Callable[[Account], Process]) -> None:
    """Its structures, locks and system calls equal those of its neighbours."""
    here = account(MIB, slots=pages.SLOTS)
    first, second, native = emulated(here), emulated(here), here.start()
    assert first.charge(MIB // 2) and second.charge(MIB // 4) and native.charge(MIB // 4)
    assert not first.charge(1) and not native.charge(1)
    first.give(4096)
    assert second.used() == native.used() == MIB - 4096
    first.kill()
    assert native.charge(MIB // 2)
    assert second.own() == MIB // 4
    second.give(MIB, LINEAR)
    assert native.used() == MIB * 3 // 4


def test_threads_and_a_forked_child_on_aarch64(account: Make, emulated: Callable[[Account], Process]) -> None:
    here = account(MIB)
    process = emulated(here)
    assert process.charge(4096)
    assert process.ask("threads", 4, 2000) == "0"
    assert process.ask("fork", "own", 0) == "0"
    assert process.ask("fork", "charge", 0, LINEAR, 4096) == "1"
    assert process.own() == process.used() == 4096
