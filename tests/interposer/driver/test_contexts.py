"""The CUDA interposer: the memory of contexts, and the memory that ends with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import GIB, MIB

from ..calls import (
    BLIND,
    CONTEXT,
    CONTEXT_IS_DESTROYED,
    HEAVY,
    INVALID_CONTEXT,
    INVALID_VALUE,
    NOT_INITIALIZED,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    Start,
    kinds,
)
from ..sandboxes import Make


@pytest.mark.parametrize("name", ["cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v4"])
def test_a_context_is_charged_by_the_drivers_count(caller: Start, name: str) -> None:
    user = caller(1 * GIB, topology=HEAVY, device=None)
    user.init()
    result, context = user.create_context(0, name)
    assert result == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT}
    assert user.info() == [SUCCESS, 1 * GIB - CONTEXT, 1 * GIB]
    assert user.alloc(1 * GIB - CONTEXT + 1)[0] == OUT_OF_MEMORY
    assert user.alloc(1 * GIB - CONTEXT)[0] == SUCCESS
    assert user.destroy(context) == SUCCESS
    assert user.sandbox.total() == 0


def test_a_context_that_does_not_fit_is_taken_down_again(caller: Start) -> None:
    user = caller(200 * MIB, topology=HEAVY, device=None)
    assert user.start() == OUT_OF_MEMORY
    assert user.create_context() == [OUT_OF_MEMORY, 0]
    assert user.sandbox.total() == 0
    # Nothing of it is left on the card, and the program goes on.
    user.sandbox.set_limit(CONTEXT)
    assert user.start() == SUCCESS
    assert user.sandbox.total() == CONTEXT
    assert user.info() == [SUCCESS, 0, CONTEXT]


def test_a_context_is_refused_before_it_is_made_where_one_was_seen(sandbox: Make, caller: Start) -> None:
    one = sandbox(2 * CONTEXT - 1, topology=HEAVY)
    first, second = caller(one, device=None), caller(one, XPU_LOG="debug", device=None)
    assert first.start() == SUCCESS
    assert second.start() == OUT_OF_MEMORY
    assert one.total() == CONTEXT
    one.set_limit(2 * CONTEXT)
    assert second.start() == SUCCESS
    assert one.total() == 2 * CONTEXT
    first.kill()
    assert second.info() == [SUCCESS, CONTEXT, 2 * CONTEXT]


@pytest.mark.parametrize("destroy", ["cuCtxDestroy", "cuCtxDestroy_v2"])
def test_a_contexts_end_frees_its_memory_and_no_other(caller: Start, destroy: str) -> None:
    user = caller(4 * GIB, topology=HEAVY, device=None)
    user.init()
    first, second = user.create_context()[1], user.create_context()[1]
    kept = user.alloc(100 * MIB)[1]  # memory of the second context, which is current
    user.current(first)
    gone = [user.alloc(10 * MIB)[1], user.alloc_managed(10 * MIB)[1], user.pitch(1000, 1000)[1]]
    assert user.sandbox.total() > 2 * CONTEXT + 120 * MIB
    assert user.destroy(first, destroy) == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT, "linear": 100 * MIB}
    for pointer in gone:
        assert user.free(pointer) != SUCCESS
    assert user.sandbox.total() == CONTEXT + 100 * MIB
    assert user.destroy(first, destroy) in (INVALID_CONTEXT, CONTEXT_IS_DESTROYED)
    user.current(second)
    assert user.free(kept) == SUCCESS
    assert user.destroy(second, destroy) == SUCCESS
    assert user.sandbox.total() == 0


def test_a_context_ends_with_its_last_use(caller: Start, way: str) -> None:
    user = caller(4 * GIB, topology=HEAVY, way=way, device=None)
    user.init()
    first, second = user.create_context()[1], user.create_context()[1]
    user.alloc(100 * MIB)
    assert user.attach() == [SUCCESS, second]
    # These calls are refused and add no use: flags, and a context that is not current.
    assert user.attach(1)[0] == INVALID_VALUE
    assert user.detach(first) == INVALID_CONTEXT
    assert user.detach(second) == SUCCESS
    assert kinds(user.sandbox) == {"overhead": 2 * CONTEXT, "linear": 100 * MIB}
    assert user.detach(second) == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT}
    assert user.detach(first) == SUCCESS
    assert user.sandbox.total() == 0
    assert user.detach(first) != SUCCESS


def test_another_use_of_the_primary_context_keeps_it(caller: Start, way: str) -> None:
    user = caller(4 * GIB, topology=HEAVY, way=way)
    user.alloc(100 * MIB)
    result, context = user.attach()
    assert result == SUCCESS
    assert user.release() == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT, "linear": 100 * MIB}
    assert user.detach(context) == SUCCESS
    assert user.sandbox.total() == 0


def test_a_destroyed_context_has_no_uses_left(caller: Start) -> None:
    user = caller(4 * GIB, topology=HEAVY, device=None)
    user.init()
    context = user.create_context()[1]
    assert user.attach() == [SUCCESS, context]
    assert user.destroy(context) == SUCCESS
    assert user.sandbox.total() == 0
    again = user.create_context()[1]
    assert user.detach(again) == SUCCESS
    assert user.sandbox.total() == 0


@pytest.mark.parametrize("name", ["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"])
def test_a_primary_context_ends_with_its_last_user(caller: Start, way: str, name: str) -> None:
    user = caller(4 * GIB, topology=HEAVY, way=way)
    assert user.code("cuDevicePrimaryCtxRetain", OUT, 0) == SUCCESS
    assert user.sandbox.total() == CONTEXT  # counted once
    user.alloc(100 * MIB)
    assert user.release(name) == SUCCESS
    assert user.sandbox.total() == CONTEXT + 100 * MIB
    assert user.release(name) == SUCCESS
    assert user.sandbox.total() == 0
    assert user.release(name) == INVALID_CONTEXT
    user.start()
    assert user.alloc(100 * MIB)[0] == SUCCESS
    assert user.sandbox.total() == CONTEXT + 100 * MIB


@pytest.mark.parametrize("name", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"])
def test_a_reset_gives_back_the_primary_contexts_memory(caller: Start, name: str) -> None:
    user = caller(4 * GIB, topology=HEAVY)
    own = user.create_context()[1]
    kept = user.alloc(2 * MIB)[1]
    user.start()
    user.alloc(100 * MIB)
    assert user.code(f"symbol:{name}", 0) == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT, "linear": 2 * MIB}
    user.current(own)
    assert user.free(kept) == SUCCESS
    assert user.destroy(own) == SUCCESS
    assert user.sandbox.total() == 0


def test_memory_that_the_driver_took_behind_the_interposer_is_found(caller: Start) -> None:
    user = caller(4 * GIB, topology=HEAVY)
    result, hidden = user.pair("real:cuMemAlloc_v2", OUT, 1 * GIB)
    assert result == SUCCESS
    assert user.info() == [SUCCESS, 3 * GIB - CONTEXT, 4 * GIB]
    assert kinds(user.sandbox) == {"overhead": CONTEXT + 1 * GIB}
    assert user.alloc(3 * GIB)[0] == OUT_OF_MEMORY
    # The program gives it back behind the interposer's back. The interposer finds that before the next
    # refusal.
    assert user.code("real:cuMemFree_v2", hidden) == SUCCESS
    assert user.alloc(4 * GIB - CONTEXT)[0] == SUCCESS


def test_managed_memory_does_not_hide_the_overhead(caller: Start) -> None:
    user = caller(4 * GIB, topology=HEAVY)
    user.alloc_managed(1 * GIB)
    user.info()
    assert kinds(user.sandbox) == {"overhead": CONTEXT, "managed": 1 * GIB}


def test_a_process_of_the_same_number_is_not_taken_for_this_one(caller: Start, tmp_path: Path) -> None:
    user = caller(4 * GIB, topology=HEAVY, XPU_LOG=f"debug:{tmp_path}/log", device=None)
    # Stands for another process of the host with this one's pid: it has memory before the first context is
    # made.
    assert user.real_context() == SUCCESS
    assert user.code("real:cuMemAlloc_v2", OUT, 1 * GIB) == SUCCESS
    result, context = user.create_context()
    assert result == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT}
    user.alloc(100 * MIB)
    assert user.info() == [SUCCESS, 4 * GIB - CONTEXT - 100 * MIB, 4 * GIB]
    assert user.destroy(context) == SUCCESS
    assert user.sandbox.total() == 0
    assert "not this container's" in (tmp_path / "log").read_text()


HEAP = 2  # CU_LIMIT_MALLOC_HEAP_SIZE


def test_a_context_limit_that_takes_memory_is_held(caller: Start, way: str) -> None:
    user = caller(CONTEXT + 100 * MIB, topology=HEAVY, way=way)
    before = user.get_limit(HEAP)[1]
    assert user.set_limit(HEAP, before + 200 * MIB) == OUT_OF_MEMORY
    assert user.get_limit(HEAP) == [SUCCESS, before]
    assert user.sandbox.total() == CONTEXT
    assert user.set_limit(HEAP, before + 60 * MIB) == SUCCESS
    assert user.sandbox.total() == CONTEXT + 60 * MIB
    assert user.set_limit(HEAP, before + 120 * MIB) == OUT_OF_MEMORY
    assert user.get_limit(HEAP) == [SUCCESS, before + 60 * MIB]
    assert user.sandbox.total() == CONTEXT + 60 * MIB
    assert user.set_limit(HEAP, before) == SUCCESS
    assert user.sandbox.total() == CONTEXT


def test_without_a_drivers_report_the_cards_free_memory_tells(caller: Start) -> None:
    user = caller(1 * GIB, topology=BLIND, CUDA_MODULE_LOADING="EAGER", device=None)
    user.init()
    context = user.create_context()[1]
    assert user.sandbox.total() == CONTEXT
    module = user.module("cuModuleLoadData", 20 * MIB - 1000)[1]
    user.alloc(100 * MIB)
    assert kinds(user.sandbox) == {"overhead": CONTEXT + 20 * MIB, "linear": 100 * MIB}
    assert user.unload(module) == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT, "linear": 100 * MIB}
    other = user.create_context()[1]
    assert user.sandbox.total() == 2 * CONTEXT + 100 * MIB
    user.sandbox.set_limit(3 * CONTEXT)
    assert user.create_context() == [OUT_OF_MEMORY, 0]
    assert user.sandbox.total() == 2 * CONTEXT + 100 * MIB
    assert user.destroy(other) == SUCCESS
    assert user.sandbox.total() == CONTEXT + 100 * MIB
    assert user.destroy(context) == SUCCESS
    assert user.sandbox.total() == 0


def test_memory_that_others_take_meanwhile_is_not_charged_to_a_context(caller: Start) -> None:
    # The context seems to take more than any does: the card's own contexts are that large here.
    huge = {"driver": "R580", "gpus": [{**BLIND["gpus"][0], "context_mib": 3000}]}
    user = caller(8 * GIB, topology=huge)
    assert kinds(user.sandbox) == {"overhead": 1 * GIB}
    assert caller(user.sandbox, device=None).start() == SUCCESS
    assert kinds(user.sandbox) == {"overhead": 2 * GIB}


@pytest.mark.parametrize("wrong", [80 * MIB, 250 * MIB, 900 * MIB])
def test_a_wrong_guess_of_a_contexts_size_is_corrected_by_two_that_agree(caller: Start, wrong: int) -> None:
    user = caller(4 * GIB, topology=BLIND, device=None)
    user.init()
    # The page is as if neighbours took or freed memory while the container's first context was made.
    with open(user.sandbox.pages / "usage", "r+b") as page:
        page.seek(1024 + 8)
        page.write(wrong.to_bytes(8, "little"))
    user.create_context()
    assert kinds(user.sandbox) == {"overhead": wrong}
    user.create_context()
    assert kinds(user.sandbox) == {"overhead": wrong + CONTEXT}
    user.create_context()
    assert kinds(user.sandbox) == {"overhead": wrong + 2 * CONTEXT}


def test_without_a_context_nothing_is_charged(caller: Start, way: str) -> None:
    user = caller(1 * GIB, way=way, device=None)
    assert user.alloc(MIB)[0] == NOT_INITIALIZED
    assert user.init() == SUCCESS
    assert user.alloc(MIB)[0] == INVALID_CONTEXT
    assert user.info()[0] == INVALID_CONTEXT
    assert user.module()[0] == INVALID_CONTEXT
    assert user.set_limit(0, 4096) == INVALID_CONTEXT
    assert user.sandbox.usage() == []


def test_a_log_has_the_size_of_contexts(caller: Start, tmp_path: Path) -> None:
    user = caller(1 * GIB, topology=HEAVY, XPU_LOG=f"debug:{tmp_path}/log")
    user.alloc(1 * GIB)
    log = (tmp_path / "log").read_text()
    assert f"device 0: a context took {CONTEXT // MIB} MiB" in log
    refused = [line for line in log.splitlines() if "refused" in line]
    assert len(refused) == 1, log
    assert f"device 0: refused 1024 MiB: {(GIB - CONTEXT) // MIB} MiB free of 1024 MiB" in refused[0]
