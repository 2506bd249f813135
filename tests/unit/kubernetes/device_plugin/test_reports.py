"""The device plugin's reports to the API server: its node's state, and events of its pods."""

from __future__ import annotations

import threading
import time
from calendar import timegm
from collections.abc import Iterator
from typing import Any

import pytest

from support.kubernetes_api import ApiServer
from support.stand_in_kubelet import until
from xpu_runtime.kubernetes.access import Access
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.device_plugin.pod import PodEvent
from xpu_runtime.kubernetes.device_plugin.reports import Reports
from xpu_runtime.kubernetes.resources import MEMORY

from .made_pods import container, kept, pod

POD = kept(pod(container("c", mem="1")))


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


def test_the_node_is_written_when_it_changes_and_others_entries_stay(
    reports: Reports, api_server: ApiServer
) -> None:
    reports.write_node({"metadata": {"labels": {"a": "1", "b": "2"}}})
    until(lambda: labels(api_server) == {"old": "x", "a": "1", "b": "2"}, "it is written")
    for _ in range(3):
        reports.write_node({"metadata": {"labels": {"a": "2", "b": None}}})
    until(lambda: labels(api_server) == {"old": "x", "a": "2"}, "it is written again")
    assert sum(method == "PATCH" for method, _ in api_server.requests) == 2


def test_changes_of_the_node_are_written_with_a_pause_between_them(
    reports: Reports, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpu_runtime.kubernetes.device_plugin.reports._APART_S", 0.5)
    written: list[float] = []

    def note(method: str, _: str) -> None:
        if method == "PATCH":
            written.append(time.monotonic())

    api_server.fault = note
    reports.write_node({"metadata": {"labels": {"a": "0"}}})
    until(lambda: labels(api_server).get("a") == "0", "it is written")
    for number in range(1, 10):
        reports.write_node({"metadata": {"labels": {"a": str(number)}}})
        time.sleep(0.02)  # each would be written separately
    until(lambda: labels(api_server).get("a") == "9", "the last is written")
    first, second = written
    assert second - first >= 0.5


def test_a_node_whose_kubelet_is_silent_tells_of_nothing(reports: Reports, api_server: ApiServer) -> None:
    """Its status may be from before the plugin was registered."""

    def told() -> dict[str, str] | None:
        return reports.allocatable[1] if reports.allocatable else None

    for ready, expected in (("True", {MEMORY: "0"}), ("Unknown", None), ("False", {MEMORY: "0"})):
        conditions = [{"type": "MemoryPressure", "status": "Unknown"}, {"type": "Ready", "status": ready}]
        status = {"allocatable": {MEMORY: "0"}, "conditions": conditions}
        api_server.put("/api/v1/nodes/n1", {"metadata": {}, "status": status})
        reports.write_node({"metadata": {"labels": {"ready": ready}}})
        until(lambda: told() == expected, f"it is so where Ready is {ready}")  # noqa: B023 - called here
    # The status from before an outage does not count either.
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
    for number in range(1000):
        reports.tell(PodEvent(POD, "XPURefused", str(number), True))
    assert len(reports._events) <= 200
    api_server.up()
    until(lambda: labels(api_server).get("a") == "1", "it is written")


def test_an_event_is_an_object_that_the_server_takes(reports: Reports, api_server: ApiServer) -> None:
    before = time.time()
    reports.tell(PodEvent(POD, "XPURefused", "x" * 5000, True))
    until(lambda: api_server.under(f"/api/v1/namespaces/{POD.namespace}/events"), "it is written")
    (told,) = api_server.under(f"/api/v1/namespaces/{POD.namespace}/events")
    who = {"namespace": POD.namespace, "name": POD.name, "uid": POD.uid}
    assert told["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", **who}
    assert (told["type"], told["reason"], len(told["message"])) == ("Warning", "XPURefused", 1000)
    assert told["firstTimestamp"] == told["lastTimestamp"]
    when = timegm(time.strptime(told["firstTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    assert before - 2 < when <= time.time() + 1  # whole seconds, of a coarser clock


@pytest.mark.parametrize(("status", "posts"), [(503, 2), (429, 2), (404, 1)])
def test_an_event_that_could_not_be_written_is_written_later(
    reports: Reports, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch, status: int, posts: int
) -> None:
    """An event that the API server refuses is dropped: its pod's namespace may be gone."""
    monkeypatch.setattr("xpu_runtime.kubernetes.device_plugin.reports._AGAIN_S", 0.3)
    times: list[float] = []

    def fail_once(method: str, path: str) -> tuple[int, dict[str, Any]] | None:
        if method != "POST":
            return None
        times.append(time.monotonic())
        if len(times) > 1:
            return None
        return status, {"kind": "Status", "code": status}

    api_server.fault = fail_once
    reports.tell(PodEvent(POD, "XPURefused", "first", True))
    reports.tell(PodEvent(POD, "XPURefused", "second", True))

    def posted() -> int:
        return sum(method == "POST" for method, _ in api_server.requests)

    until(lambda: posted() == posts + 1, "each was posted")
    # The server has a pause, and so it has where the other event was there first.
    assert posts == 1 or times[1] - times[0] >= 0.3


def test_a_refresh_that_failed_is_tried_again_soon(
    reports: Reports, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "xpu_runtime.kubernetes.device_plugin.reports"
    for name, seconds in (("_AGAIN_S", 0.05), ("_APART_S", 0.05), ("REFRESH_S", 0.3)):
        monkeypatch.setattr(f"{module}.{name}", seconds)
    reports.write_node({"metadata": {"labels": {"a": "1"}}})
    until(lambda: labels(api_server).get("a") == "1", "it is written")

    failed: list[bool] = []

    def fail_once(*_: str) -> tuple[int, dict[str, Any]] | None:
        if failed:
            return None
        monkeypatch.setattr(f"{module}.REFRESH_S", 600.0)
        api_server.put("/api/v1/nodes/n1", {"metadata": {"labels": {}}})
        failed.append(True)
        return 503, {"kind": "Status", "code": 503}

    api_server.fault = fail_once
    until(lambda: failed, "somebody has removed the label, and the refresh fails")
    until(lambda: labels(api_server).get("a") == "1", "it is written again")
