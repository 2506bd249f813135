"""The client of the Kubernetes API, on a server of the tests' own over real HTTP."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.kubernetes_api import ApiServer
from support.stand_in_kubelet import until
from xpu_runtime.kubernetes.access import Access
from xpu_runtime.kubernetes.api import Api, ApiError, Change

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def api(api_server: ApiServer) -> Api:
    return Api(Access(api_server.url))


def name(item: Any) -> str:
    return str(item["metadata"]["name"])


def pod(number: int, node: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": f"p{number:03}"}, "spec": {"nodeName": node}}


def test_objects_are_created_read_changed_replaced_and_removed(api: Api) -> None:
    made = api.post(PODS, pod(1))
    assert api.get(f"{PODS}/p001") == made
    changed = api.patch(f"{PODS}/p001", {"metadata": {"annotations": {"a": "1"}}})
    assert changed["metadata"]["annotations"] == {"a": "1"}
    with pytest.raises(ApiError) as stale:
        api.put(f"{PODS}/p001", made)
    assert (stale.value.status, stale.value.reason) == (409, "Conflict")
    api.put(f"{PODS}/p001", changed)
    api.delete(f"{PODS}/p001")
    with pytest.raises(ApiError, match=r"p001 not found \(404\)") as gone:
        api.get(f"{PODS}/p001")
    assert gone.value.reason == "NotFound"


def test_requests_one_after_the_other_use_one_connection(api: Api, api_server: ApiServer) -> None:
    for _ in range(5):
        api.list(PODS, name)
    assert api_server._server is not None
    assert len(api_server._server.connections) == 1


def test_a_list_is_read_in_pages_and_begun_anew_when_the_server_has_forgotten_it(
    api: Api, api_server: ApiServer
) -> None:
    for number in range(7):
        api.post(PODS, pod(number))
    found, version = api.list(PODS, name, page=3)
    assert found == [f"p{number:03}" for number in range(7)]
    assert version == str(api_server.version)
    assert sum("continue=" in url for _, url in api_server.requests) == 2

    pages = iter(range(100))

    def forget(method: str, path: str) -> None:
        if method == "GET" and next(pages) == 1:
            api_server.put(f"{PODS}/p100", pod(100))
            api_server.forget()

    api_server.fault = forget
    found, _ = api.list(PODS, name, page=3)
    assert len(found) == 8 and len(set(found)) == 8


class Follower:
    """Follows in a thread, and passes the changes on."""

    def __init__(self, api: Api, path: str, **query: Any) -> None:
        self.stop = threading.Event()
        self.told: queue.Queue[Change[str]] = queue.Queue()
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run, args=(api, path, query), daemon=True)
        self._thread.start()

    def _run(self, api: Api, path: str, query: dict[str, Any]) -> None:
        for change in api.follow(path, name, self.stop, self.problems.append, **query):
            self.told.put(change)

    def next(self) -> tuple[str, tuple[str, ...]]:
        change = self.told.get(timeout=20)
        return change.kind, change.objects


@pytest.fixture
def follow(api: Api) -> Iterator[Callable[..., Follower]]:
    started: list[Follower] = []

    def start(path: str = "/api/v1/pods", **query: Any) -> Follower:
        started.append(Follower(api, path, **query))
        return started[-1]

    yield start
    for each in started:
        each.stop.set()


def test_changes_of_one_node_are_followed(follow: Callable[..., Follower], api: Api) -> None:
    api.post(PODS, pod(1))
    api.post(PODS, pod(2, "n2"))
    follower = follow(fieldSelector="spec.nodeName=n1")
    assert follower.next() == ("listed", ("p001",))
    api.post(PODS, pod(3, "n2"))
    api.post(PODS, pod(4))
    assert follower.next() == ("changed", ("p004",))
    api.patch(f"{PODS}/p004", {"metadata": {"labels": {"a": "b"}}})
    assert follower.next() == ("changed", ("p004",))
    api.delete(f"{PODS}/p001")
    assert follower.next() == ("deleted", ("p001",))


def test_a_watch_goes_on_where_it_was_after_the_server_was_away(
    follow: Callable[..., Follower], api: Api, api_server: ApiServer
) -> None:
    follower = follow()
    assert follower.next() == ("listed", ())
    api_server.put(f"{PODS}/p001", pod(1))
    assert follower.next() == ("changed", ("p001",))
    api_server.down()
    api_server.put(f"{PODS}/p002", pod(2))
    until(lambda: any(follower.problems), "it is noticed")
    assert any("cannot be reached" in each or "broke off" in each for each in follower.problems)
    api_server.up()
    # It is not listed again: the missed change is reported.
    assert follower.next() == ("changed", ("p002",))


def test_all_is_listed_again_when_the_server_has_forgotten_what_was_missed(
    follow: Callable[..., Follower], api: Api, api_server: ApiServer
) -> None:
    follower = follow()
    assert follower.next() == ("listed", ())
    api_server.down()
    api_server.put(f"{PODS}/p001", pod(1))
    api_server.forget()
    api_server.up()
    assert follower.next() == ("listed", ("p001",))
    until(lambda: follower.problems[-1] == "", "it is followed again")


def test_a_collection_that_can_be_listed_and_not_watched_is_a_problem(
    follow: Callable[..., Follower], api_server: ApiServer
) -> None:
    def refuse(*_: str) -> tuple[int, dict[str, Any]] | None:
        watches = "watch=true" in api_server.requests[-1][1]
        return (403, {"kind": "Status", "code": 403, "message": "no watch"}) if watches else None

    api_server.fault = refuse
    follower = follow()
    until(lambda: len(follower.problems) > 1, "it has tried again")
    assert all("no watch" in each for each in follower.problems)


def test_a_server_that_refuses_everything_is_not_asked_without_end(
    follow: Callable[..., Follower], api_server: ApiServer
) -> None:
    api_server.fault = lambda *_: (410, {"kind": "Status", "code": 410, "reason": "Expired"})
    began = time.monotonic()
    follow()
    while len(api_server.requests) < 4:
        time.sleep(0.01)
    assert time.monotonic() - began > 0.25 + 0.5 + 1


class Waits(threading.Event):
    """Is never set, and waits for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return False


def test_a_failure_after_a_watch_has_begun_is_retried_as_soon_as_a_first_one(api: Api) -> None:
    begins = iter([False] * 6 + [True, False])

    def watch(*args: Any, **_: Any) -> Iterator[dict[str, Any]]:
        if next(begins):
            args[3]()
        raise ApiError("away")
        yield {}

    api.list = lambda *_, **__: ([], "1")  # type: ignore[method-assign]
    api.watch = watch  # type: ignore[method-assign, assignment]
    waits = Waits()
    with pytest.raises(RuntimeError):  # of the iterator's end
        for _ in api.follow(PODS, name, waits, lambda _: None, longest_pause_s=5.0):
            pass
    # The pauses double up to the longest; each is at least half of its bound.
    assert 2.5 <= waits.seconds[5] <= 5.0
    assert waits.seconds[6] <= 0.5


def test_a_server_that_does_not_answer_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = Api(Access(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        began = time.monotonic()
        with pytest.raises(ApiError, match=r"no answer in time|timed out|took too long"):
            api.get("/api/v1/nodes/n1", seconds=0.3)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("before, seconds", [(30.0, 0.3), (0.3, 2.0)])
def test_a_connection_that_is_used_again_has_the_limit_of_this_request(before: float, seconds: float) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with socket.create_server(("127.0.0.1", 0)) as slow:
        api = Api(Access(f"http://127.0.0.1:{slow.getsockname()[1]}"))

        def serve() -> None:
            connection, _ = slow.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)
                connection.recv(1 << 16)
                time.sleep(0.8)
                with contextlib.suppress(OSError):
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert api.get("/api", seconds=before) == {}
        began = time.monotonic()
        if seconds > 0.8:
            assert api.post("/api", {}, seconds=seconds) == {}
        else:
            with pytest.raises(ApiError):
                api.post("/api", {}, seconds=seconds)
            assert time.monotonic() - began < 0.8
        thread.join()


def test_a_connection_that_the_server_has_closed_meanwhile_is_not_used(
    api: Api, api_server: ApiServer
) -> None:
    api.post(PODS, pod(1))
    api_server.down()
    api_server.up()
    api.post(PODS, pod(2))
    assert api.list(PODS, name)[0] == ["p001", "p002"]


def test_fifty_threads_share_a_client(api: Api, api_server: ApiServer) -> None:
    threads = [threading.Thread(target=api.post, args=(PODS, pod(number))) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(api_server.under(PODS)) == 50


def test_a_token_that_was_renewed_is_read_again_when_the_old_one_is_refused(
    api_server: ApiServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    api = Api(Access(api_server.url, token_file=str(file)))
    api_server.token = "one"
    api.list(PODS, name)
    api_server.token = "two"
    with pytest.raises(ApiError) as refused:
        api.list(PODS, name)
    assert refused.value.status == 401
    file.write_text("two")
    api.list(PODS, name)
