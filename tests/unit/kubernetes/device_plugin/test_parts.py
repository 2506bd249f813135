"""The plugin's smaller parts: asking the drivers, what the kubelet gave, reports, metrics."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.kubernetes_api import ApiServer
from support.stand_in_kubelet import Kubelet, running, until
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.access import Access
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.device_plugin import kubelet, metrics
from xpu_runtime.kubernetes.device_plugin.allocated_ids import AllocatedIds, PodResourcesReader
from xpu_runtime.kubernetes.device_plugin.driver import DriverLook
from xpu_runtime.kubernetes.device_plugin.metrics import Metrics, Snapshot
from xpu_runtime.kubernetes.device_plugin.offer import Offer
from xpu_runtime.kubernetes.device_plugin.pod import PodEvent, PodOnNode
from xpu_runtime.kubernetes.device_plugin.reports import Reports
from xpu_runtime.kubernetes.device_plugin.server import Calls, Served, pool
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.kubernetes.resources import MEMORY, Resources
from xpu_runtime.ledger.store import Ledger

# The drivers


def asked(look: DriverLook) -> bool:
    """Steps until something is new."""
    return bool(until(look.step, "the drivers answer"))


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A driver root with nothing in it."""
    (tmp_path / "root").mkdir()
    (tmp_path / "config.yaml").write_text(f"driver: {{root: {tmp_path}/root}}\n")
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XPU_CONFIG", str(tmp_path / "config.yaml"))
    return tmp_path


def test_what_the_drivers_tell_comes_from_another_process(root: Path) -> None:
    look = DriverLook(0.0, 20)
    assert asked(look)
    assert look.inventory is not None and look.inventory.devices == () and look.problem == ""
    assert "no NVIDIA driver found" in look.inventory.missing
    look.close()


def test_a_driver_that_hangs_is_told_and_asked_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = DriverLook(0.0, 20)
    look.step()
    monkeypatch.setattr(look, "_answer_s", 0.0)
    os.kill(look._asked.pid, signal.SIGSTOP)
    look._asked.until = 0.0
    assert asked(look)
    assert look.problem.startswith("the driver does not answer: it did not end within")
    look._answer_s = 20
    until(lambda: look.step() and not look.problem, "it answers again")
    look.close()


def test_a_driver_that_fails_is_told_and_asked_again(root: Path) -> None:
    look = DriverLook(0.0, 20)
    look.step()
    os.kill(look._asked.pid, signal.SIGSEGV)
    assert asked(look)
    assert look.problem.startswith("the drivers cannot be asked: its process died") and not look.inventory
    assert asked(look)
    assert look.problem == "" and look.inventory is not None
    (root / "config.yaml").write_text("driver: [wrong]\n")
    assert asked(look)
    assert "config.yaml" in look.problem and "cannot be asked" not in look.problem
    look.close()


# What the kubelet has given


def test_the_owner_of_ids_is_the_pod_that_has_some_of_them() -> None:
    of_memory = {
        ("ns", "a", "main"): frozenset("x"),
        ("ns", "a", "side"): frozenset("y"),
        ("ns", "b", "main"): frozenset("z"),
    }
    given = AllocatedIds(True, {MEMORY: of_memory})
    assert given.owner(MEMORY, ["x"]) == ("ns", "a")
    # Of an init container the kubelet tells those alone that a regular one has, too.
    assert given.owner(MEMORY, ["x", "i"]) == ("ns", "a")
    assert given.owner(MEMORY, ["x", "y"]) == ("ns", "a")
    assert given.owner(MEMORY, ["x", "z"]) is None
    assert given.owner(MEMORY, []) is None
    assert given.owner("other", ["x"]) is None
    assert given.ids(MEMORY) == frozenset("xyz")
    assert given.ids(MEMORY, {("ns", "b")}) == frozenset("z")
    assert given.ids("other") == frozenset()
    assert AllocatedIds().ids(MEMORY) is None
    assert given.by_pod(MEMORY) == {("ns", "a"): 2, ("ns", "b"): 1}
    assert given.ids_of(MEMORY, [("ns", "a", "side"), ("ns", "b", "main")]) == frozenset("yz")
    assert given.ids_of("other", [("ns", "a", "side")]) == frozenset()


# Reports


POD = PodOnNode.of(
    {
        "metadata": {"namespace": "ns", "name": "p", "uid": "u1"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {MEMORY: "1"}}}]},
    },
    Resources(),
)


@pytest.fixture
def reports(api_server: ApiServer) -> Iterator[Reports]:
    api_server.put("/api/v1/nodes/n1", {"metadata": {"labels": {"old": "x"}}})
    found = Reports(Api(Access(api_server.url)), "n1", print)
    thread = threading.Thread(target=found.run)
    thread.start()
    yield found
    found.stop()
    thread.join(10)
    assert not thread.is_alive()


def labels(api_server: ApiServer) -> Any:
    return api_server.objects["/api/v1/nodes/n1"]["metadata"]["labels"]


def test_the_node_is_written_when_it_changes_and_what_others_wrote_stays(
    reports: Reports, api_server: ApiServer
) -> None:
    reports.write_node({"metadata": {"labels": {"a": "1", "b": "2"}}})
    until(lambda: labels(api_server) == {"old": "x", "a": "1", "b": "2"}, "it is written")
    for _ in range(3):
        reports.write_node({"metadata": {"labels": {"a": "2", "b": None}}})
    until(lambda: labels(api_server) == {"old": "x", "a": "2"}, "it is written again")
    assert sum(method == "PATCH" for method, _ in api_server.requests) == 2


def test_a_node_whose_kubelet_is_silent_tells_of_nothing(reports: Reports, api_server: ApiServer) -> None:
    """What its status has may be from before the plugin was registered."""

    def told() -> dict[str, str] | None:
        return reports.allocatable[1] if reports.allocatable else None

    for ready, expected in (("True", {MEMORY: "0"}), ("Unknown", None), ("False", {MEMORY: "0"})):
        conditions = [{"type": "MemoryPressure", "status": "Unknown"}, {"type": "Ready", "status": ready}]
        status = {"allocatable": {MEMORY: "0"}, "conditions": conditions}
        api_server.put("/api/v1/nodes/n1", {"metadata": {}, "status": status})
        reports.write_node({"metadata": {"labels": {"ready": ready}}})
        until(lambda: told() == expected, f"it is so where Ready is {ready}")  # noqa: B023 - called here
    # Nor what is known from before an outage.
    api_server.down()
    reports.write_node({"metadata": {"labels": {"ready": "x"}}})
    until(lambda: told() is None, "it is forgotten")
    api_server.up()


def test_an_api_server_that_is_away_is_told_later_and_events_do_not_pile_up(
    reports: Reports, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpu_runtime.kubernetes.device_plugin.reports._AGAIN_S", 0.05)
    api_server.down()
    reports.write_node({"metadata": {"labels": {"a": "1"}}})
    assert POD is not None
    for number in range(1000):
        reports.tell(PodEvent(POD, "XPURefused", str(number), True))
    assert len(reports._events) <= 200
    api_server.up()
    until(lambda: labels(api_server).get("a") == "1", "it is written")


def test_an_event_is_an_object_that_the_server_takes(reports: Reports, api_server: ApiServer) -> None:
    assert POD is not None
    reports.tell(PodEvent(POD, "XPURefused", "x" * 5000, True))
    until(lambda: api_server.under(f"/api/v1/namespaces/{POD.namespace}/events"), "it is written")
    (told,) = api_server.under(f"/api/v1/namespaces/{POD.namespace}/events")
    who = {"namespace": POD.namespace, "name": POD.name, "uid": POD.uid}
    assert told["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", **who}
    assert (told["type"], told["reason"], len(told["message"])) == ("Warning", "XPURefused", 1000)


@pytest.mark.parametrize(("status", "posts"), [(503, 2), (429, 2), (404, 1)])
def test_an_event_that_could_not_be_written_is_written_later(
    reports: Reports, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch, status: int, posts: int
) -> None:
    """But for one that the API server refuses: its pod's namespace may be gone."""
    monkeypatch.setattr("xpu_runtime.kubernetes.device_plugin.reports._AGAIN_S", 0.05)
    failed: list[str] = []

    def fail_once(method: str, path: str) -> tuple[int, dict[str, Any]] | None:
        if method != "POST" or failed:
            return None
        failed.append(path)
        return status, {"kind": "Status", "code": status}

    api_server.fault = fail_once
    assert POD is not None
    reports.tell(PodEvent(POD, "XPURefused", "first", True))
    reports.tell(PodEvent(POD, "XPURefused", "second", True))

    def posted() -> int:
        return sum(method == "POST" for method, _ in api_server.requests)

    until(lambda: posted() == posts + 1, "each was posted")


def test_a_refresh_that_failed_is_tried_again_soon(
    reports: Reports, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "xpu_runtime.kubernetes.device_plugin.reports"
    for name, seconds in (("_AGAIN_S", 0.05), ("_APART_S", 0.05), ("_REFRESH_S", 0.3)):
        monkeypatch.setattr(f"{module}.{name}", seconds)
    reports.write_node({"metadata": {"labels": {"a": "1"}}})
    until(lambda: labels(api_server).get("a") == "1", "it is written")

    failed: list[bool] = []

    def fail_once(*_: str) -> tuple[int, dict[str, Any]] | None:
        if failed:
            return None
        monkeypatch.setattr(f"{module}._REFRESH_S", 600.0)
        api_server.put("/api/v1/nodes/n1", {"metadata": {"labels": {}}})
        failed.append(True)
        return 503, {"kind": "Status", "code": 503}

    api_server.fault = fail_once
    until(lambda: failed, "somebody has removed the label, and the refresh fails")
    until(lambda: labels(api_server).get("a") == "1", "it is written again")


# Metrics


def test_the_page_is_prometheus_text() -> None:
    snapshot = Snapshot(
        {MEMORY: {"healthy": 56, "unhealthy": 4, "given": 4}, 'odd"\\\n': {"healthy": 1}},
        {"reserved": 2},
        {"GPU-a": (True, False)},
        registrations=4,
        registered=True,
        ledger_answers=True,
    )
    page = Metrics(lambda: snapshot)
    page.observe("allocate", "ok", 0.25)
    page.observe("allocate", "refused", 0.5)
    text = page.page().decode()
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    of = "xpu_kubernetes_"
    assert found[f"{of}ids", ("resource", MEMORY), ("state", "unhealthy")] == 4
    assert found[f"{of}ids", ("resource", 'odd"\\\n'), ("state", "healthy")] == 1
    assert (f"{of}ids", ("resource", 'odd"\\\n'), ("state", "given")) not in found
    assert found[f"{of}calls_total", ("call", "allocate"), ("outcome", "refused")] == 1
    assert found[f"{of}call_seconds_sum", ("call", "allocate")] == 0.75
    assert found[f"{of}call_seconds_count", ("call", "allocate")] == 2
    assert found[f"{of}device_healthy", ("uuid", "GPU-a")] == 1
    assert found[f"{of}device_offered", ("uuid", "GPU-a")] == 0
    assert found[f"{of}registrations_total",] == 4
    assert (found[f"{of}up", ("part", "api")], found[f"{of}up", ("part", "ledger")]) == (0, 1)
    assert all(line.startswith(("# HELP ", "# TYPE ", of)) for line in text.splitlines())


def test_a_client_that_says_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = ["", "it hangs"]
    server = metrics.server("127.0.0.1:0", Metrics(Snapshot), lambda: problems.pop(0))
    (port,) = server.ports
    threading.Thread(target=server.run, daemon=True).start()
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    try:
        url = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{url}/healthz", timeout=10) as answer:
            assert answer.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/healthz", timeout=10)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=10)
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            assert b"xpu_kubernetes_up" in answer.read()
    finally:
        for each in silent:
            each.close()
        server.stop()


@pytest.mark.parametrize(
    "listen", ["9402", "localhost:9402", "127.0.0.1:x", "127.0.0.1:99999", "192.0.2.1:80"]
)
def test_where_nothing_can_listen_it_is_said(listen: str) -> None:
    with pytest.raises(ConfigError):
        metrics.server(listen, Metrics(Snapshot), str)


def test_a_ledger_that_has_just_changed_may_change_in_the_same_tick(run_dir: Path) -> None:
    with Ledger() as ledger:
        ledger.note("drained", "")
    path = run_dir / "ledger.db"
    assert SharedLedger.stamp() == ()
    os.utime(path, (1000, 1000))
    calm = SharedLedger.stamp()
    assert calm == SharedLedger.stamp() != ()
    path.unlink()
    assert SharedLedger.stamp() == ()


@pytest.fixture
def there() -> Iterator[Kubelet]:
    """Not in pytest's folders: their names leave a socket's path no room."""
    with running() as found:
        yield found


def registrations(
    there: Kubelet,
    served: dict[str, Served],
    threads: ThreadPoolExecutor,
    log: Callable[[str], None],
    status: Callable[[], tuple[float, dict[str, str]] | None] = lambda: None,
) -> kubelet.Registrations:
    calls = cast(Calls, SimpleNamespace(allocate=None, pre_start=None))
    return kubelet.Registrations(str(there.plugins), served, calls, lambda *_: None, threads, log, status)


def looked(found: kubelet.Registrations) -> kubelet.Registrations:
    """After a look, of which the plugin has one each second: a kubelet on a busy machine may not answer the
    first time."""
    found.look()
    return found


def test_what_is_offered_for_the_first_time_in_a_while_is_not_registered_again(there: Kubelet) -> None:
    """What the Node's status tells is old: whole cards that have just become free are in none yet."""
    served, threads = Served(), pool()
    served.tell(Offer(("a-0",), frozenset()))
    read_at = time.monotonic()

    def status() -> tuple[float, dict[str, str]]:
        return read_at, {"example.com/a": "0"}

    found = registrations(there, {"example.com/a": served}, threads, print, status)
    try:
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
    finally:
        found.close()
        threads.shutdown()


def test_a_kubelet_that_is_dead_or_whose_socket_was_touched_has_dropped_nothing(
    monkeypatch: pytest.MonkeyPatch, there: Kubelet
) -> None:
    monkeypatch.setattr(kubelet, "_UNWATCHED_S", 0.2)
    served = Served()
    served.tell(Offer(("a-0",), frozenset(["a-0"])))
    threads, log = pool(), list[str]()
    found = registrations(there, {"example.com/a": served}, threads, log.append)
    try:
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
    finally:
        found.close()
        threads.shutdown()


def test_what_the_kubelet_has_given_holds_while_it_does_not_answer(there: Kubelet) -> None:
    found = PodResourcesReader(str(there.pod_resources), [MEMORY])
    there.given["default", "a", "main", MEMORY] = ["x"]
    assert found.ask().ids(MEMORY) == frozenset({"x"})
    there.stop()
    with pytest.raises(kubelet.KubeletError):
        found.ask()
    assert found.last.ids(MEMORY) == frozenset({"x"})


def test_those_who_ask_a_slow_kubelet_share_its_next_answer(
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


def test_a_kubelet_that_answers_too_late_has_taken_what_it_follows(
    monkeypatch: pytest.MonkeyPatch, there: Kubelet
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
    served, threads, log = Served(), pool(), list[str]()
    served.tell(Offer(("a-0",), frozenset(["a-0"])))
    found = registrations(there, {"example.com/a": served}, threads, log.append)
    try:
        until(lambda: looked(found).is_registered, "it is registered")
        assert there.registered == ["example.com/a"]
        # What went wrong is said once, and that it is well again.
        told = "the kubelet is there again, and follows all lists"
        assert log == ["the kubelet does not answer; it is tried again each second", told]
        os.rename(there.plugins / "kubelet.sock", there.plugins / "moved")
        for _ in range(2):
            found.look()
        os.rename(there.plugins / "moved", there.plugins / "kubelet.sock")
        for _ in range(2):
            found.look()
        assert [line.split(":")[0] for line in log[2:]] == ["there is no kubelet", told]
        assert there.registered == ["example.com/a"]
    finally:
        found.close()
        threads.shutdown()


def test_what_the_nodes_status_has_nothing_of_is_registered_again(
    monkeypatch: pytest.MonkeyPatch, there: Kubelet
) -> None:
    """A kubelet of 1.20 goes on following the list of a plugin in whose place another one came, and has ended
    since."""
    monkeypatch.setattr(kubelet, "_STATUS_S", 0.1)
    served, none = Served(), Served()
    served.tell(Offer(("a-0", "a-1"), frozenset(["a-1"])))
    none.tell(Offer(("b-0",), frozenset()))
    amounts = {"example.com/a": "1", "example.com/b": "0"}
    threads, log = pool(), list[str]()

    def say(line: str) -> None:
        print(line)  # what a failure shows
        log.append(line)

    both = {"example.com/a": served, "example.com/b": none}
    found = registrations(there, both, threads, say, status=lambda: (time.monotonic(), amounts))

    def is_registered() -> bool:
        return looked(found).is_registered and there.healthy("example.com/a") == 1

    try:
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
        # Not all the time: the status takes its time.
        until(is_registered, "it is registered again")
        time.sleep(0.2)
        before = found.registered
        found.look()
        assert found.registered == before
    finally:
        found.close()
        threads.shutdown()
