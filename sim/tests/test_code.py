"""Linked code, maps of tensors, and waits for values: functions that NVIDIA's libraries look up and call."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import MIB
from support.simulation import SUCCESS, Process, used

from .test_memory import INVALID

FILE_NOT_FOUND, NOT_SUPPORTED = 301, 801


@pytest.fixture
def one(pair: tuple[Process, Process]) -> Process:
    """Its driver is built with sanitizers."""
    return pair[0]


def test_linked_code_is_loaded_as_an_image_of_its_size(one: Process, tmp_path: Path) -> None:
    file = tmp_path / "code"
    file.write_bytes(bytes(2 * MIB))
    before = used(one)
    result, size = one.linked(3 * MIB, str(file))
    assert result == SUCCESS
    assert 8 * MIB < size < 8 * MIB + 4096
    assert used(one) - before == 10 * MIB, "in pages of 2 MiB"


def test_invalid_code_is_not_linked(one: Process) -> None:
    assert one.link_wrongly("/nowhere") == [INVALID, INVALID, FILE_NOT_FOUND, INVALID, SUCCESS]


def test_a_tensor_is_mapped_within_the_hardwares_bounds(one: Process) -> None:
    result, told = one.tensor_map(1 << 20, [64, 64], [64], [8, 8])
    assert result == SUCCESS
    assert told > 0
    for wrong in (
        (8, [64, 64], [64], [8, 8]),
        (1 << 20, [64, 0], [64], [8, 8]),
        (1 << 20, [64, 64], [8], [8, 8]),
        (1 << 20, [64, 64], [1 << 40], [8, 8]),
        (1 << 20, [64, 64], [64], [8, 257]),
        (1 << 20, [64] * 6, [64] * 5, [8] * 6),
    ):
        assert one.tensor_map(*wrong)[0] == INVALID, wrong


def test_waits_for_values_are_not_supported(one: Process) -> None:
    assert one.await_values(one.alloc(4096)[1]) == [NOT_SUPPORTED] * 3


def test_a_library_may_have_an_option_without_a_value_and_need_not_be_kept(one: Process) -> None:
    preserved = 1
    before = used(one)
    assert one.load_library(3 * MIB, [preserved]) == [SUCCESS, SUCCESS]
    assert used(one) - before == 4 * MIB, "in pages of 2 MiB"


def test_libraries_of_nvidia_find_contexts_streams_and_kernels_in_private_tables(one: Process) -> None:
    context, stream, as_context, as_stream = one.numbers_by_tables()
    assert (context, stream) == (as_context, as_stream)
    assert context and stream
    assert one.launch_each_kernel() == [1, SUCCESS]
    assert one.places() == NOT_SUPPORTED
