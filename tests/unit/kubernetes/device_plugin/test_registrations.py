"""Registration with the kubelet, and the kubelet's report of given IDs."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.stand_in_kubelet import Kubelet, running, until
from xpu_runtime.kubernetes.device_plugin import kubelet
from xpu_runtime.kubernetes.device_plugin.allocated_ids import PodResourcesReader
from xpu_runtime.kubernetes.device_plugin.offer import Offer
from xpu_runtime.kubernetes.device_plugin.server import Calls, Served, pool
from xpu_runtime.kubernetes.resources import MEMORY

Register = Callable[..., kubelet.Registrations]


@pytest.fixture
def there() -> Iterator[Kubelet]:
    """A short folder: pytest's names are too long for a socket's path."""
    with running() as found:
        yield found


@pytest.fixture
def register(there: Kubelet) -> Iterator[Register]:
    """Registers what is served under each name, until the test ends."""
    threads, made = pool(), list[kubelet.Registrations]()
    calls = cast(Calls, SimpleNamespace(allocate=None, pre_start=None))

    def start(
        log: Callable[[str], None] = print,
        status: Callable[[], tuple[float, dict[str, str]] | None] = lambda: None,
        **served: Served,
    ) -> kubelet.Registrations:
        named = {f"example.com/{name}": each for name, each in served.items()}
        found = kubelet.Registrations(str(there.plugins), named, calls, lambda *_: None, threads, log, status)
        made.append(found)
        return found

    yield start
    for each in made:
        each.close()
    threads.shutdown()


def serving(*ids: str, healthy: tuple[str, ...] | None = None) -> Served:
    """What is told of a resource: its IDs, and the healthy ones (all, unless they are given)."""
    found = Served()
    found.tell(Offer(ids, frozenset(ids if healthy is None else healthy)))
    return found


def looked(found: kubelet.Registrations) -> kubelet.Registrations:
    """After a look; the plugin takes one each second, as a kubelet on a busy machine may not answer the first
    time."""
    found.look()
    return found


def test_a_resource_offered_again_after_a_while_is_not_registered_again(register: Register) -> None:
    """The Node's status is old: whole cards that have just become free are not in it yet."""
    served = serving("a-0", healthy=())
    read_at = time.monotonic()

    def status() -> tuple[float, dict[str, str]]:
        return read_at, {"example.com/a": "0"}

    found = register(status=status, a=served)
    until(lambda: looked(found).is_registered, "it is registered")
    before = found.registered
    read_at = time.monotonic() + 2 * kubelet._STATUS_S
    assert looked(found).registered == before  # true: it offers none
    read_at = time.monotonic()
    served.tell(Offer(("a-0",), frozenset(["a-0"])))
    assert looked(found).registered == before
    # Written before, perhaps, and read only now, as after an outage of the API server.
    read_at = time.monotonic() + 2 * kubelet._STATUS_S
    assert looked(found).registered == before
    read_at += kubelet._STATUS_S + 1
    until(lambda: looked(found).registered > before, "it is registered again")


def test_a_kubelet_that_is_dead_or_whose_socket_was_touched_has_dropped_nothing(
    monkeypatch: pytest.MonkeyPatch, there: Kubelet, register: Register
) -> None:
    monkeypatch.setattr(kubelet, "_UNWATCHED_S", 0.2)
    log = list[str]()
    found = register(log.append, a=serving("a-0"))
    until(lambda: looked(found).is_registered, "it is registered")
    before, paths = found.registered, list(there.plugins.iterdir())
    os.chmod(there.plugins / "kubelet.sock", 0o700)
    found.look()
    assert found.registered == before
    # Killed, it leaves its socket as it is.
    identity = kubelet._identity(str(there.plugins / "kubelet.sock"))
    there.stop()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(there.plugins / "kubelet.sock"))
    with monkeypatch.context() as patch:
        patch.setattr(kubelet, "_identity", lambda _: identity)
        log.clear()
        until(lambda: looked(found) and "no kubelet listens" in "".join(log), "it is said")
    assert not any("dropped" in line for line in log)
    assert sorted(there.plugins.iterdir()) == sorted(paths)
    there.start()
    until(lambda: looked(found).is_registered, "it is registered again")


@pytest.mark.parametrize("ends_by_name", [False, True], ids=["1.20", "1.25"])
def test_a_socket_that_is_removed_is_made_again(
    there: Kubelet, register: Register, ends_by_name: bool
) -> None:
    there.ends_by_name = ends_by_name
    found = register(a=serving("a-0"))
    until(lambda: looked(found) and there.healthy("example.com/a"), "it is offered")
    path = there.endpoint("example.com/a").path
    path.unlink()
    until(lambda: looked(found) and there.endpoint("example.com/a").path != path, "there is another one")
    until(lambda: looked(found) and there.healthy("example.com/a"), "it is offered again")
    assert there.registered.count("example.com/a") == 2  # another one would cost seconds
    assert [each.suffix for each in there.plugins.iterdir()] == [".sock"] * 2
    found.close()
    assert [each.name for each in there.plugins.iterdir()] == ["kubelet.sock"]


def test_a_resource_that_the_kubelet_has_dropped_is_registered_again(
    monkeypatch: pytest.MonkeyPatch, there: Kubelet, register: Register
) -> None:
    """As when another plugin has offered the same, and has ended."""
    monkeypatch.setattr(kubelet, "_UNWATCHED_S", 0.2)
    log = list[str]()
    found = register(log.append, a=serving("a-0"))
    until(lambda: looked(found) and there.healthy("example.com/a"), "it is offered")
    there.endpoint("example.com/a").close()
    assert there.healthy("example.com/a") == 0
    until(lambda: looked(found) and there.healthy("example.com/a"), "it is offered again")
    assert there.registered.count("example.com/a") == 2
    assert any("the kubelet has dropped example.com/a" in line for line in log)


def test_sockets_of_a_plugin_that_was_killed_are_removed_and_no_others(there: Kubelet) -> None:
    names = [f"{kubelet._PREFIX}a-1-1.sock", "nvidia.sock"]
    for name in names:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(there.plugins / name))
    (there.plugins / f"{kubelet._PREFIX}notes").write_text("")
    kubelet.remove_sockets(str(there.plugins))
    assert {each.name for each in there.plugins.iterdir()} == {
        "kubelet.sock", "nvidia.sock", f"{kubelet._PREFIX}notes",
    }  # fmt: skip
    kubelet.remove_sockets(str(there.plugins / "none"))  # no kubelet yet


def test_given_ids_stay_known_while_the_kubelet_does_not_answer(there: Kubelet) -> None:
    found = PodResourcesReader(str(there.pod_resources), [MEMORY])
    there.given["default", "a", "main", MEMORY] = ["x"]
    assert found.ask().ids(MEMORY) == frozenset({"x"})
    there.stop()
    with pytest.raises(kubelet.KubeletError):
        found.ask()
    assert found.last.ids(MEMORY) == frozenset({"x"})


def test_waiting_callers_share_the_next_answer_of_a_slow_kubelet(
    monkeypatch: pytest.MonkeyPatch, there: Kubelet
) -> None:
    found, asked = PodResourcesReader(str(there.pod_resources), [MEMORY]), list[float]()
    pods, may_answer = kubelet.pods, threading.Event()

    def slow(path: str) -> tuple[Any, ...]:
        asked.append(time.monotonic())
        may_answer.wait(30)
        if len(asked) == 4:
            raise kubelet.KubeletError("it does not answer")
        return pods(path)

    monkeypatch.setattr(kubelet, "pods", slow)
    with ThreadPoolExecutor(20) as threads:
        first = threads.submit(found.ask)
        until(lambda: asked, "the first asks")
        there.given["default", "a", "main", MEMORY] = ["x"]
        later = [threads.submit(found.ask) for _ in range(15)]
        until(lambda: len(found._turn._waiters) == 15, "they wait")  # type: ignore[attr-defined]
        may_answer.set()
        assert first.result(30).is_known
        assert {each.result(30).ids(MEMORY) for each in later} == {frozenset({"x"})}
        assert len(asked) == 2
        # Those that share one which fails all hear of it, and the next asks again.
        may_answer.clear()
        first = threads.submit(found.ask)
        until(lambda: len(asked) == 3, "one asks again")
        later = [threads.submit(found.ask) for _ in range(15)]
        until(lambda: len(found._turn._waiters) == 15, "they wait")  # type: ignore[attr-defined]
        may_answer.set()
        assert first.result(30).is_known
        assert {str(each.exception(30)) for each in later} == {"it does not answer"}
        assert found.ask().ids(MEMORY) == frozenset({"x"})
        assert len(asked) == 5


def test_a_kubelet_that_answers_too_late_has_taken_the_lists_that_it_follows(
    monkeypatch: pytest.MonkeyPatch, there: Kubelet, register: Register
) -> None:
    """Registered once more, a kubelet of 1.25 to 1.36 would follow two lists, and each takes a thread."""
    call, late = kubelet._call, list[str]()

    def answers_late(path: str, method: str, *rest: Any) -> Any:
        answer = call(path, method, *rest)
        late.append(method)
        if len(late) == 1:
            until(lambda: there.healthy("example.com/a"), "it follows the list")
            raise kubelet.KubeletError("the kubelet does not answer")
        return answer

    monkeypatch.setattr(kubelet, "_call", answers_late)
    log = list[str]()
    found = register(log.append, a=serving("a-0"))
    until(lambda: looked(found).is_registered, "it is registered")
    assert there.registered == ["example.com/a"]
    # The problem is logged once, and its end once.
    told = "the kubelet is there again, and follows all lists"
    assert log == ["the kubelet does not answer; it is tried again every second", told]
    os.rename(there.plugins / "kubelet.sock", there.plugins / "moved")
    for _ in range(2):
        found.look()
    os.rename(there.plugins / "moved", there.plugins / "kubelet.sock")
    for _ in range(2):
        found.look()
    assert [line.split(":")[0] for line in log[2:]] == ["there is no kubelet", told]
    assert there.registered == ["example.com/a"]


def test_a_resource_that_the_nodes_status_lacks_is_registered_again(
    monkeypatch: pytest.MonkeyPatch, there: Kubelet, register: Register
) -> None:
    """A kubelet of 1.20 continues to follow a plugin's list after another plugin has replaced it and
    ended."""
    monkeypatch.setattr(kubelet, "_STATUS_S", 0.1)
    amounts = {"example.com/a": "1", "example.com/b": "0"}
    log = list[str]()

    def say(line: str) -> None:
        print(line)  # a failed test shows this
        log.append(line)

    offered, none = serving("a-0", "a-1", healthy=("a-1",)), serving("b-0", healthy=())
    found = register(say, lambda: (time.monotonic(), amounts), a=offered, b=none)

    def is_registered() -> bool:
        return looked(found).is_registered and there.healthy("example.com/a") == 1

    until(is_registered, "it is registered")
    time.sleep(0.2)
    before = found.registered
    found.look()
    assert found.registered == before
    there.registered.clear()
    amounts["example.com/a"] = "0"
    until(lambda: looked(found) and there.registered, "it is registered again")
    assert there.registered == ["example.com/a"]  # that of which it offers something
    assert "the kubelet has dropped example.com/a: does another plugin offer it here?" in log
    # Not repeatedly: the status needs some time.
    until(is_registered, "it is registered again")
    time.sleep(0.2)
    before = found.registered
    found.look()
    assert found.registered == before
