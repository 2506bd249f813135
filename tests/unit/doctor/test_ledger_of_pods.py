"""`xpu doctor`'s findings about containers of pods: by the ledger's values, and real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from xpu_runtime.doctor.areas import ledger
from xpu_runtime.finding import PROBLEM, WARNING
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.linux import proc
from xpu_runtime.request.assignment import Share

GIB = 1 << 30
_WAITS = """import sys
open("/proc/self/comm", "w").write(sys.argv[1])
print(flush=True)
sys.stdin.read()"""


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[int]:
    """The id of a process of that name."""
    words = [sys.executable, "-c", _WAITS, request.param]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as found:
        assert found.stdout is not None and found.stdout.readline()
        yield found.pid
        found.communicate()


CREATED = pytest.mark.parametrize("process", ["runc:[2:INIT]"], indirect=True)
RUNNING = pytest.mark.parametrize("process", ["python"], indirect=True)


def grant(pid: int, *slices: tuple[int, int | None], age: float = 600.0, number: int = 1) -> Grant:
    """A grant of a container with that process, of (GiB, percent) of GPU 0."""
    shares = tuple(Slice("0", "GPU-a", gib * GIB, True, cores, Holding()) for gib, cores in slices)
    started = proc.start_time(pid) or 0
    made = time.time() - age
    return Grant(number, f"c{number}", "/b", pid, started, "", "running", "hook", made, shares)


def reserved(memory: int | None, cores: int | None) -> Allocation:
    share = Share("GPU-a", None if memory is None else memory * GIB, cores)
    return Allocation("u", "default", "web", 0.0, {"main": (share,)})


@CREATED
def test_a_container_that_was_never_started_is_reported_with_a_remedy(process: int) -> None:
    (found,) = ledger.of_pods_containers([grant(process, (4, 30))], {1: ("u", "main")}, [reserved(4, 30)])

    assert found.state == PROBLEM
    assert found.text == (
        "container main of pod default/web was created 10 minutes ago and never started, as after a "
        "restart of containerd in between: it holds its slice"
    )
    assert found.todo == f"the pod's next try ends it; if there is none: kill -9 {process}"


@CREATED
def test_a_container_whose_pod_is_gone_is_named_by_the_pods_uid_and_others_may_start_later(
    process: int,
) -> None:
    of_pod, since_long, just_now = {1: ("u", "main")}, grant(process, (4, 30)), grant(process, (4, 30), age=1)

    (found,) = ledger.of_pods_containers([since_long], of_pod, [])

    assert "container main of pod u was created" in found.text
    assert list(ledger.of_pods_containers([just_now], of_pod, [reserved(4, 30)])) == []
    assert list(ledger.of_pods_containers([since_long], {}, [])) == []


@RUNNING
@pytest.mark.parametrize(
    ("slices", "memory", "cores", "told"),
    [
        ([(6, 50)], 4, 30, "holds 6G and 50% of GPU 0, and 4G and 30% are reserved for it"),
        ([(4, 20), (1, 5)], 4, 30, "holds 5G and 25% of GPU 0, and 4G and 30% are reserved for it"),
        ([(4, 40)], 4, 30, "holds 4G and 40% of GPU 0, and 4G and 30% are reserved for it"),
        ([(4, 30)], 4, 30, ""),
        ([(2, None)], 4, None, ""),
        ([(16, None)], None, None, ""),
    ],
)
def test_slices_of_a_pod_beyond_its_reservation_are_reported(
    process: int, slices: list[tuple[int, int | None]], memory: int | None, cores: int | None, told: str
) -> None:
    grants = [grant(process, each, number=number) for number, each in enumerate(slices, 1)]
    of_pods = {each.id: ("u", "main") for each in grants}

    found = list(ledger.of_pods_containers(grants, of_pods, [reserved(memory, cores)]))

    assert [(each.state, each.text) for each in found] == (
        [(WARNING, f"pod default/web {told}")] if told else []
    )


@RUNNING
def test_a_device_that_nothing_is_reserved_of_is_told(process: int) -> None:
    other = reserved(4, 30).replace(containers={"main": (Share("GPU-b", 4 * GIB, 30),)})

    (found,) = ledger.of_pods_containers([grant(process, (4, 30))], {1: ("u", "main")}, [other])

    assert "holds 4G and 30% of GPU 0, and 0M and 0% are reserved for it" in found.text
