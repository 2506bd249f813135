"""The CUDA interposer: memory of modules and libraries, taken when they are loaded or first used."""

from __future__ import annotations

from typing import Any

import pytest

from support import GIB, MIB

from ..calls import BLIND, CONTEXT, HEAVY, OUT, OUT_OF_MEMORY, SUCCESS, Start, kinds

LOADERS = [
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
]


@pytest.mark.parametrize("load", LOADERS)
def test_a_module_is_charged_refused_where_it_does_not_fit_and_given_back(caller: Start, load: str) -> None:
    user = caller(CONTEXT + 30 * MIB, topology=HEAVY, CUDA_MODULE_LOADING="EAGER")
    result, module = user.module(load, 20 * MIB - 1000)
    assert result == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT + 20 * MIB}
    assert user.module(load, 20 * MIB - 1000)[0] == OUT_OF_MEMORY
    assert kinds(user.sandbox) == {"overhead": CONTEXT + 20 * MIB}
    assert user.alloc(10 * MIB)[0] == SUCCESS
    assert user.unload(module) == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT, "linear": 10 * MIB}


@pytest.mark.parametrize("seen", [True, False], ids=["reported", "not-reported"])
@pytest.mark.parametrize("elsewhere", [True, False], ids=["other-device", "no-context"])
def test_a_module_is_taken_off_its_own_device_whatever_context_is_current(
    caller: Start, seen: bool, elsewhere: bool
) -> None:
    card = (HEAVY if seen else BLIND)["gpus"][0]
    two: dict[str, Any] = {"driver": "R580", "gpus": [card, card]}
    user = caller(4 * GIB, topology=two, device=None, CUDA_MODULE_LOADING="EAGER")
    user.init()
    first, second = user.create_context(0)[1], user.create_context(1)[1]
    user.current(first)
    module = user.module("cuModuleLoadData", 20 * MIB - 1000)[1]
    assert (user.sandbox.total(0), user.sandbox.total(1)) == (CONTEXT + 20 * MIB, CONTEXT)
    for _ in range(2):  # the thread has a stack of two: without another context, both are taken off it
        user.current(second if elsewhere else 0)
    assert user.unload(module) == SUCCESS
    assert (user.sandbox.total(0), user.sandbox.total(1)) == (CONTEXT, CONTEXT)


def test_a_module_that_is_loaded_late_is_found_before_the_next_refusal(caller: Start) -> None:
    user = caller(CONTEXT + 30 * MIB, topology=HEAVY)
    module = user.module("cuModuleLoadData", 20 * MIB - 1000)[1]
    assert user.sandbox.total() == CONTEXT
    assert user.function(module) == SUCCESS
    assert user.info() == [SUCCESS, 10 * MIB, CONTEXT + 30 * MIB]
    assert user.alloc(12 * MIB)[0] == OUT_OF_MEMORY


def test_no_module_comes_when_those_that_are_loaded_late_have_passed_the_limit(caller: Start) -> None:
    user = caller(CONTEXT + 30 * MIB, topology=HEAVY)
    for _, module in [user.module("cuModuleLoadData", 20 * MIB - 1000) for _ in range(2)]:
        assert user.function(module) == SUCCESS
    assert user.module("cuModuleLoadData", 20 * MIB - 1000)[0] == OUT_OF_MEMORY
    assert kinds(user.sandbox) == {"overhead": CONTEXT + 40 * MIB}


@pytest.mark.parametrize("load", ["cuLibraryLoadData", "cuLibraryLoadFromFile"])
def test_a_library_is_charged_once_it_is_used_and_given_back(caller: Start, load: str) -> None:
    user = caller(CONTEXT + 30 * MIB, topology=HEAVY, CUDA_MODULE_LOADING="EAGER")
    result, library = user.module(load, 20 * MIB - 1000)
    assert result == SUCCESS
    assert user.code("cuLibraryGetModule", OUT, library) == SUCCESS
    assert user.info() == [SUCCESS, 10 * MIB, CONTEXT + 30 * MIB]
    assert kinds(user.sandbox) == {"overhead": CONTEXT + 20 * MIB}
    assert user.unload(library, "cuLibraryUnload") == SUCCESS
    assert kinds(user.sandbox) == {"overhead": CONTEXT}


def test_a_module_at_the_address_of_an_old_one_ends_that_one(caller: Start) -> None:
    user = caller(1 * GIB, topology=BLIND, CUDA_MODULE_LOADING="EAGER")
    places = [user.module("cuModuleLoadData", 20 * MIB - 1000)[1]]
    while places[-1] not in places[:-1] and len(places) < 30:
        assert user.code("real:cuModuleUnload", places[-1]) == SUCCESS
        places.append(user.module("cuModuleLoadData", 20 * MIB - 1000)[1])
    # Modules whose end was not reported are charged, except the one whose address a new module has.
    assert user.sandbox.total() - CONTEXT == len(set(places)) * 20 * MIB == (len(places) - 1) * 20 * MIB
    assert user.unload(places[-1]) == SUCCESS
    assert user.sandbox.total() - CONTEXT == (len(set(places)) - 1) * 20 * MIB
