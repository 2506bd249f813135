"""A cap on cores that changes: as a memory limit does, through whichever backend holds it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support import example_backend
from xpu_runtime import extensions
from xpu_runtime.errors import ApplyError, DeviceError
from xpu_runtime.ledger import waiting
from xpu_runtime.ledger.grants import CORES, MEMORY, Grant, Holding
from xpu_runtime.ledger.refusal import Refused
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import enforce, pages, resize
from xpu_runtime.limits.backend import Backend
from xpu_runtime.limits.backends import library
from xpu_runtime.limits.resize import Wanted
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import Memory

from .resizing import FOUND, GIB, UUIDS, Container

BY_EXAMPLE = Holding(example_backend.NAME, "hard", example_backend.NAME, "hard")


@pytest.fixture(autouse=True)
def registered_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' backend, registered in this process."""
    names = (*extensions.backends(), example_backend.NAME)
    monkeypatch.setattr(extensions, "backends", lambda: names)
    monkeypatch.setitem(sys.modules, f"xpu_runtime.limits.backends.{example_backend.NAME}", example_backend)


@pytest.fixture
def capped(run_dir: Path) -> Iterator[Container]:
    """A container with 4 GiB and 30 % of the cores of a device."""
    found = Container("c1", 4 * GIB, holding=BY_EXAMPLE, cores=30)
    example_backend.write(found.grant, {(0, MEMORY): 4 * GIB, (0, CORES): 30})
    yield found
    found.close()


def limits(container: Container) -> tuple[list[tuple[int, int | None]], list[tuple[int, int]]]:
    """The booked limits and those in force: bytes and percent by slice."""
    in_force = example_backend.limits(container.grant)
    count = len(container.grant.slices)
    return (
        [(part.memory_bytes, part.cores) for part in container.slices()],
        [(in_force[position, MEMORY], in_force[position, CORES]) for position in range(count)],
    )


def test_cores_change_alone_and_together_with_memory(capped: Container) -> None:
    for wanted, now in [
        (Wanted(cores=50), (4 * GIB, 50)),
        (Wanted(cores=5), (4 * GIB, 5)),
        (Wanted(Memory(bytes=6 * GIB), 100), (6 * GIB, 100)),
        (Wanted(Memory(bytes=8 * GIB), 10), (8 * GIB, 10)),
    ]:
        (after,) = capped.change(wanted).slices
        assert (after.memory_bytes, after.cores) == now
        assert limits(capped) == ([now], [now])


def test_a_smaller_limit_goes_back_if_the_other_kind_is_refused(capped: Container) -> None:
    other = Container("c2", 4 * GIB, holding=BY_EXAMPLE, cores=60)
    for wanted in (Wanted(Memory(bytes=GIB), 45), Wanted(Memory(bytes=12 * GIB), 5)):
        with pytest.raises(Refused):
            capped.change(wanted)
        assert limits(capped) == ([(4 * GIB, 30)], [(4 * GIB, 30)])
    with pytest.raises(Refused, match=r"GPU 0 does not have enough free cores.*XPU_CORES=40"):
        capped.change(Wanted(cores=45))
    capped.change(Wanted(cores=40))
    other.close()


def test_an_interrupted_change_restores_each_limit_that_it_can_and_names_the_others(
    capped: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a driver that hangs, which has memory, while others have the cores."""
    set_in_file = example_backend.ExampleChange.set

    def hangs(change: example_backend.ExampleChange, position: int, kind: str, value: int) -> None:
        if (kind, value) == (MEMORY, 4 * GIB):
            raise DeviceError("the driver does not answer")
        set_in_file(change, position, kind, value)
        if (kind, value) == (CORES, 10):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(example_backend.ExampleChange, "set", hangs)
        with pytest.raises(
            ApplyError, match=r"was interrupted, and limits .* tighter than the booked limits"
        ):
            capped.change(Wanted(Memory(bytes=GIB), 10))
    assert limits(capped) == ([(4 * GIB, 30)], [(GIB, 30)])


def test_a_backend_whose_limits_cannot_change_says_so(
    capped: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_backend.Example, "open", Backend.open)
    with pytest.raises(ApplyError, match="held by example cannot change while the container runs"):
        capped.change(Wanted(cores=10))
    assert limits(capped) == ([(4 * GIB, 30)], [(4 * GIB, 30)])


def test_a_slice_without_a_policy_changes_none(capped: Container) -> None:
    with pytest.raises(ApplyError, match="held by example, which supports neither --sched nor --priority"):
        capped.change(Wanted(cores=10, sched="burst"))
    assert limits(capped) == ([(4 * GIB, 30)], [(4 * GIB, 30)])


def test_a_policy_changes_alone_and_only_where_there_is_a_cap(run_dir: Path) -> None:
    held = Container("c1", 4 * GIB, 4 * GIB, holding=Holding("library", "soft", "library", "soft"), cores=30)
    held.change(Wanted(sched="burst"), 1)
    held.change(Wanted(priority="low"), 1)
    page = pages.quota(str(held.folder))
    assert page.policies == (pages.Policy(), pages.Policy("burst", "low"))
    assert (page.cores, page.limits) == ((30, 30), (4 * GIB, 4 * GIB))
    # A refused change leaves both as they are.
    with pytest.raises(Refused):
        held.change(Wanted(Memory(bytes=99 * GIB), sched="weight"), 0, 1)
    assert pages.quota(str(held.folder)).policies == page.policies
    held.close()
    uncapped = Container("c2", 4 * GIB, holding=Holding("library", "soft"))
    with pytest.raises(ApplyError, match="has no cap on the cores of GPU 0: start it again with XPU_CORES"):
        uncapped.change(Wanted(priority="high"))
    uncapped.close()


def test_a_policy_that_cannot_be_put_into_force_is_told_and_no_event_says_it(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise DeviceError("the page is on a disk that fails")

    monkeypatch.setattr(library.QuotaChange, "set_policy", fails)
    holding = Holding("library", "soft", "library", "soft")
    with (
        closing(Container("c1", 4 * GIB, holding=holding, cores=30)) as held,
        pytest.raises(ApplyError, match="how time is shared is not in force: the page is on a disk"),
    ):
        held.change(Wanted(sched="burst"))
    with Ledger() as ledger:
        assert [event.kind for event in ledger.history()] == ["granted"]


def test_the_limits_of_a_grant_are_lifted_though_those_of_another_cannot_be(
    capped: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    lifted = []

    def lift(backend: example_backend.Example, inventory: object, grant: Grant, unless: object) -> None:
        if grant.id == capped.grant.id:
            raise DeviceError("the driver does not answer")
        lifted.append(grant.id)

    monkeypatch.setattr(example_backend.Example, "must_lift", lambda *_: True)
    monkeypatch.setattr(example_backend.Example, "lift", lift)
    with closing(Container("c2", GIB, holding=BY_EXAMPLE, cores=5)) as other:
        with pytest.raises(DeviceError, match="the driver does not answer"):
            enforce.clear(FOUND, [capped.grant, other.grant])
        assert lifted == [other.grant.id]
        assert not capped.folder.exists() and not other.folder.exists()


def test_a_page_made_anew_has_its_backends_present_limits(run_dir: Path) -> None:
    """The container turns out to have no cgroup v2 folder, and memory goes from the driver to the page."""
    first = Container("c1", 4 * GIB, holding=Holding("driver", "hard", "library", "soft"), cores=30)
    assert pages.quota(str(first.folder)).limits == (None,)
    (slice_,) = first.grant.slices
    anew = first.grant.replace(
        slices=(slice_.replace(holding=Holding("library", "soft", "library", "soft")),)
    )
    enforce.prepare(anew, Request())
    assert pages.quota(str(first.folder)).limits == (None,)  # a second call of the hook makes nothing anew
    enforce.prepare(anew, Request(sched="weight"), anew=True)
    page = pages.quota(str(first.folder))
    assert (page.limits, page.cores, page.policies) == ((4 * GIB,), (30,), (pages.Policy("weight"),))
    first.close()


def test_a_backend_that_is_not_registered_any_more_changes_nothing(
    capped: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tuple(name for name in extensions.backends() if name != example_backend.NAME)
    monkeypatch.setattr(extensions, "backends", lambda: left)
    with pytest.raises(DeviceError, match="no backend 'example'"):
        capped.change(Wanted(cores=10))


# At once.


class Driver:
    """Holds up the first call that sets this limit until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]) -> None:
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        set_in_file = example_backend.ExampleChange.set

        def waits(change: example_backend.ExampleChange, position: int, kind: str, value: int) -> None:
            if (kind, value) == limit and not self.is_asked.is_set():
                self.is_asked.set()
                assert self.may_answer.wait(60)
            set_in_file(change, position, kind, value)

        monkeypatch.setattr(example_backend.ExampleChange, "set", waits)


class Changes(threading.Thread):
    """A change in a thread of its own; its exception is kept."""

    def __init__(self, container: Container, wanted: Wanted) -> None:
        super().__init__(daemon=True)
        self._container, self._wanted = container, wanted
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._container.change(self._wanted)
        except Exception as error:
            self.error = error


@pytest.mark.parametrize("cores", [10, 60])
def test_a_driver_that_takes_long_keeps_no_container_from_its_start(
    capped: Container, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    driver = Driver(monkeypatch, (CORES, cores))
    change = Changes(capped, Wanted(cores=cores))
    assert driver.is_asked.wait(60)
    waiting.allow(1.0)
    other = Container("c2", GIB)
    # A smaller share is not free before it is booked, and a larger one is not free any more.
    with Ledger() as ledger:
        assert ledger.uses()[UUIDS[0]].cores == max(30, cores)
    driver.may_answer.set()
    change.join()
    assert change.error is None
    assert limits(capped) == ([(4 * GIB, cores)], [(4 * GIB, cores)])
    other.close()


def test_a_change_that_lost_to_a_start_is_refused_and_smaller_limits_go_back(
    capped: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch, (CORES, 10))
    change = Changes(capped, Wanted(Memory(bytes=8 * GIB), 10))
    assert driver.is_asked.wait(60)
    other = Container("c2", 10 * GIB)
    driver.may_answer.set()
    change.join()
    assert isinstance(change.error, Refused)
    assert limits(capped) == ([(4 * GIB, 30)], [(4 * GIB, 30)])
    other.close()


def test_of_two_changes_at_once_the_second_waits_for_the_first(
    capped: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch, (CORES, 10))
    first = Changes(capped, Wanted(cores=10))
    assert driver.is_asked.wait(60)
    with monkeypatch.context() as patch:
        patch.setattr(resize, "_WAIT_S", 0.1)
        with pytest.raises(ApplyError, match=r"another change of limits is under way: .*set\.lock"):
            capped.change(Wanted(cores=60))
    second = Changes(capped, Wanted(cores=60))
    second.join(0.2)
    assert second.is_alive()
    driver.may_answer.set()
    first.join()
    second.join()
    assert first.error is second.error is None
    assert limits(capped) == ([(4 * GIB, 60)], [(4 * GIB, 60)])


def test_something_else_in_the_changes_locks_place_is_named(capped: Container, run_dir: Path) -> None:
    (run_dir / "set.lock").unlink(missing_ok=True)
    (run_dir / "set.lock").mkdir()
    with pytest.raises(ApplyError, match=r"cannot lock .*set\.lock: Is a directory"):
        capped.change(Wanted(cores=10))
    assert limits(capped) == ([(4 * GIB, 30)], [(4 * GIB, 30)])


@pytest.mark.parametrize("cores", [10, 60])
def test_a_container_that_ends_while_the_driver_is_asked_is_told(
    capped: Container, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    driver = Driver(monkeypatch, (CORES, cores))
    change = Changes(capped, Wanted(cores=cores))
    assert driver.is_asked.wait(60)
    waiting.allow(1.0)
    capped.close()
    with Ledger() as ledger:
        assert [each.id for each in ledger.reap()] == [capped.grant.id]
    driver.may_answer.set()
    change.join()
    assert isinstance(change.error, ApplyError) and "has ended" in str(change.error)
