"""Time that the driver counts and an account lacks: the containers that are reported, and those that are
not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.limits import sharing, unaccounted_time
from xpu_runtime.limits.pages import Compute
from xpu_runtime.vendors import registry
from xpu_runtime.vendors.inventory import Inventory

S = 1_000_000_000
INVENTORY = Inventory("/", False, (), (), ())
HOLDING = Holding("library", "soft", "library", "soft")


def grant(number: int) -> Grant:
    slice_ = Slice("0", "GPU-1", 1 << 30, True, 50, HOLDING)
    return Grant(number, f"c{number}", "/b", number, 0, "", "running", "hook", 0.0, (slice_,))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[tuple[int, int], float | None]]:
    """The report on containers, each with its processes, its charged part of the time, and the ns charged
    ahead; `busy`: the driver's count of each process."""

    def told(busy: dict[int, float], *containers: tuple[set[int], float, int]) -> dict[Any, float | None]:
        grants = [grant(number + 1) for number in range(len(containers))]
        now = [1000 * S]

        def readings(_: list[Grant]) -> list[tuple[tuple[int, int], int, Compute]]:
            return [
                ((each.id, 0), now[0], Compute(int(now[0] * charged), 0, 0, 0, now[0] + ahead))
                for each, (_, charged, ahead) in zip(grants, containers, strict=True)
            ]

        def sleep(seconds: float) -> None:
            now[0] += int(seconds * S)

        monkeypatch.setattr(sharing, "readings", readings)
        monkeypatch.setattr(time, "sleep", sleep)
        monkeypatch.setattr(sharing, "shared", lambda _: sharing.CAP)
        monkeypatch.setattr(registry, "utilization", lambda _: lambda: {"GPU-1": dict(busy)})
        monkeypatch.setattr(unaccounted_time, "processes", lambda each: containers[each.id - 1][0])
        found = unaccounted_time.got(INVENTORY, grants)
        return {key: share.unaccounted for key, share in found.items()}

    return told


Node = Callable[..., dict[tuple[int, int], float | None]]


def test_a_program_that_goes_round_the_cap_is_told_and_an_honest_one_is_not(node: Node) -> None:
    told = node({10: 0.95, 20: 0.5}, ({10}, 0.0, 0), ({20}, 0.45, 0))
    assert told == {(1, 0): pytest.approx(95), (2, 0): 0.0}


def test_of_a_kernel_of_seconds_that_is_charged_ahead_nothing_is_told(node: Node) -> None:
    assert node({10: 1.0}, ({10}, 0.0, 4 * S)) == {(1, 0): None}
    # Short kernels are charged a little ahead, too.
    assert node({10: 1.0}, ({10}, 0.0, S // 100)) == {(1, 0): pytest.approx(100)}


def test_of_containers_that_share_a_pid_namespace_nothing_is_told(node: Node) -> None:
    assert node({10: 0.8}, ({10, 20}, 0.8, 0), ({10, 20}, 0.0, 0)) == {(1, 0): None, (2, 0): None}


def test_where_the_driver_has_no_sample_nothing_is_told_beyond(node: Node) -> None:
    assert node({}, ({10}, 0.3, 0)) == {(1, 0): 0.0}
