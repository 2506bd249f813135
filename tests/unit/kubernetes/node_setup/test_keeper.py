"""The reasons why a DaemonSet's pod ends, and its node's labels then; keys that are kept in step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import REPOSITORY
from support.kubernetes_api import ApiServer
from xpu_runtime.errors import ConfigError
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.node_setup import keeper, pod, removal_timer, setup, tree
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.request.assignment import Share

_DAEMONSET = "/apis/apps/v1/namespaces/xpu-system/daemonsets/xpu-node"
_NODE = "/api/v1/nodes/n1"


def answer(api_server: ApiServer, path: str, status: int, body: Any) -> None:
    """Has each request for that path answered so."""
    api_server.fault = lambda _, asked: (status, body) if asked == path else None


@pytest.mark.parametrize(
    "status, body, removed",
    [
        (200, {"metadata": {"name": "xpu-node"}}, False),
        # Removed, and its pods before it: --cascade=foreground.
        (200, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
        (404, {"reason": "NotFound"}, True),
        # The role is gone already, or the service account is: kubectl delete -k, helm uninstall without
        # hooks. Or the pod was deleted by force: test_what_another_pod_has_installed_...
        (403, {"reason": "Forbidden"}, True),
        (401, {"reason": "Unauthorized"}, True),
        (500, {"reason": "InternalError"}, False),
        (503, {"reason": "ServiceUnavailable"}, False),
    ],
)
def test_a_pod_tells_removal_from_update_and_takes_nothing_away_in_doubt(
    api_server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, status: int, body: Any, removed: bool
) -> None:
    monkeypatch.setattr(keeper, "_REPLACED_S", 0.0)
    answer(api_server, _DAEMONSET, status, body)
    api_server.put(_NODE, {"metadata": {"labels": {"yoyoworks.com/xpu": "enabled"}}})

    assert keeper.is_removed(api, "xpu-system", "xpu-node", "n1") is removed


@pytest.mark.parametrize(
    "node, removed",
    [
        ((200, {"metadata": {"labels": {"yoyoworks.com/xpu": "disabled"}}}), True),
        # One that has lost its label may be known by another tomorrow.
        ((200, {"metadata": {}}), False),
        ((503, {"reason": "ServiceUnavailable"}), False),
    ],
)
def test_a_node_that_somebody_keeps_us_off_loses_the_runtime(
    api_server: ApiServer, api: Api, node: tuple[int, Any], removed: bool
) -> None:
    text = (REPOSITORY / "packaging/kubernetes/chart/node-affinity.yaml").read_text()
    pod = {"spec": {"affinity": yaml.safe_load(text)}}
    api_server.put(_DAEMONSET, {"spec": {"template": pod}})
    answer(api_server, _NODE, *node)

    assert keeper.is_removed(api, "xpu-system", "xpu-node", "n1") is removed


def test_a_pod_that_somebodys_own_affinity_has_there_is_only_restarted(
    api_server: ApiServer, api: Api
) -> None:
    expression = {"key": "gpu", "operator": "In", "values": ["yes"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    for spec in ({"affinity": affinity}, {}):
        api_server.put(_DAEMONSET, {"spec": {"template": {"spec": spec}}})
        api_server.put(_NODE, {"metadata": {"labels": {"yoyoworks.com/xpu": "disabled"}}})

        assert keeper.is_removed(api, "xpu-system", "xpu-node", "n1") is False


def test_an_api_that_cannot_be_reached_takes_nothing_away(api: Api, api_server: ApiServer) -> None:
    api_server.down()

    assert keeper.is_removed(api, "xpu-system", "xpu-node", "n1") is False


def test_a_pod_that_was_deleted_does_not_install_after_the_one_in_its_place(
    api_server: ApiServer, api: Api
) -> None:
    path = "/api/v1/namespaces/xpu-system/pods"
    api_server.put(f"{path}/p", {"metadata": {"uid": "one"}, "spec": {"nodeName": "n1"}})
    api_server.put(f"{path}/q", {"metadata": {"uid": "two"}, "spec": {"nodeName": "n2"}})

    keeper.check_pod(api, "xpu-system", "n1", "one")
    with pytest.raises(ConfigError, match="this pod was deleted"):
        keeper.check_pod(api, "xpu-system", "n1", "two")
    answer(api_server, path, 401, {"reason": "Unauthorized"})
    with pytest.raises(ConfigError, match="this pod was deleted"):
        keeper.check_pod(api, "xpu-system", "n1", "one")
    # The old pod waits for it, and not for long.
    answer(api_server, path, 503, {"reason": "ServiceUnavailable"})
    keeper.check_pod(api, "xpu-system", "n1", "one")


def test_pods_reservations_end_with_the_runtime(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XPU_RUN_DIR", str(tmp_path))
    setup._end_reservations()
    # Where there is no ledger none is made.
    assert list(tmp_path.iterdir()) == []
    share = Share("GPU-a", 1 << 30, None)
    allocation = Allocation("u1", "ns", "p", 0.0, {"main": (share,)})
    with PodLedger() as ledger:
        ledger.allocate("u1", lambda *_: allocation, {"GPU-a": "0"})

    setup._end_reservations()

    with PodLedger() as ledger:
        assert ledger.allocations() == []
    (tmp_path / "ledger.db").write_bytes(b"none of ours" * 1000)
    setup._end_reservations()
    assert "stay until the next boot" in capfd.readouterr().err


def metadata(api_server: ApiServer) -> Any:
    """The node's."""
    return api_server.objects[_NODE]["metadata"]


def test_the_node_is_labelled_and_loses_only_our_entries(api_server: ApiServer, api: Api) -> None:
    ours = {"yoyoworks.com/xpu.runtime": "true", "yoyoworks.com/xpu.count": "4"}
    theirs = {
        "yoyoworks.com/xpu": "enabled",
        "yoyoworks.com/xpu.placement": "spread",
        "kubernetes.io/os": "linux",
    }
    notes = {"yoyoworks.com/xpu-devices": "{}", "theirs/note": "1"}
    before = {"yoyoworks.com/xpu.count": "4", "yoyoworks.com/xpu.removal": "pending", **theirs}
    api_server.put(_NODE, {"metadata": {"labels": before, "annotations": notes}})

    keeper.label(api, "n1")
    labelled = metadata(api_server)
    keeper.unlabel(api, "n1")
    unlabelled = metadata(api_server)

    assert (labelled["labels"], labelled["annotations"]) == ({**ours, **theirs}, notes)
    assert (unlabelled["labels"], unlabelled["annotations"]) == (theirs, {"theirs/note": "1"})


@pytest.mark.parametrize("has_systemd", [True, False])
def test_a_node_that_keeps_the_runtime_for_its_containers_can_be_found_where_nothing_else_removes_it(
    api_server: ApiServer, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_systemd: bool
) -> None:
    api_server.put(_NODE, {"metadata": {"labels": {"yoyoworks.com/xpu.runtime": "true"}}})
    monkeypatch.setenv("NODE_NAME", "n1")
    monkeypatch.setattr(setup, "_callers", lambda: ["container 4711"])
    monkeypatch.setattr(setup, "uninstall", lambda _: setup._finish())
    monkeypatch.setattr(setup, "_done", dict)
    monkeypatch.setattr(removal_timer, "has_systemd", lambda: has_systemd)
    monkeypatch.setattr(removal_timer, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(removal_timer, "run", Systemctl().run)

    pod.uninstall(os.getpid(), api)

    pending = {} if has_systemd else {"yoyoworks.com/xpu.removal": "pending"}
    assert metadata(api_server)["labels"] == pending
    assert (tmp_path / "xpu-node-removal.timer").exists() is has_systemd


class Systemctl:
    """systemctl for the timer, as on a node; the caller is killed before `dies_before`."""

    def __init__(self, dies_before: str = "") -> None:
        self.is_active = False
        self.dies_before = dies_before

    def run(self, program: str, verb: str, *_: str) -> str:
        assert program == "systemctl"
        if verb == self.dies_before:
            raise KeyboardInterrupt
        if verb == "is-active" and not self.is_active:
            raise ConfigError("inactive")
        self.is_active = (self.is_active or verb == "enable") and verb != "disable"
        return ""


@pytest.mark.parametrize("dies_before", ["daemon-reload", "enable"])
def test_a_removal_that_was_cut_short_is_scheduled_when_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_before: str
) -> None:
    systemctl = Systemctl(dies_before)
    monkeypatch.setattr(removal_timer, "has_systemd", lambda: True)
    monkeypatch.setattr(removal_timer, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(removal_timer, "run", systemctl.run)
    with pytest.raises(KeyboardInterrupt):
        removal_timer.schedule("/opt/xpu")

    systemctl.dies_before = ""

    assert removal_timer.schedule("/opt/xpu") is True
    assert systemctl.is_active


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of an installation by the pod `two`; the lock is its folder."""
    record = tmp_path / "installed.json"
    record.write_text('{"pod": "two", "configured": false}')
    monkeypatch.setattr(setup, "FOLDER", str(tmp_path))
    monkeypatch.setattr(setup, "_DONE", str(record))
    monkeypatch.setattr(setup, "_LOCKED", str(tmp_path))
    monkeypatch.setattr(setup, "_finish", lambda: 0)
    monkeypatch.setattr(setup, "_remove_section", lambda: None)
    monkeypatch.setattr(setup, "KEYS", str(tmp_path / "keys"))
    return record


@pytest.mark.parametrize("installer, is_kept", [("one", True), ("two", False), ("", False)])
def test_a_later_installation_by_another_pod_is_left_alone(
    installed: Path,
    api_server: ApiServer,
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    installer: str,
    is_kept: bool,
) -> None:
    """For a pod that was deleted by force it is not known whether its DaemonSet was removed."""
    monkeypatch.setenv("NODE_NAME", "n1")
    api_server.put(_NODE, {"metadata": {"labels": {keeper.LABEL: "true"}}})

    pod.uninstall(os.getpid(), api, installer)

    assert (keeper.LABEL in metadata(api_server)["labels"]) is is_kept
    assert ("removing" in json.loads(installed.read_text())) is not is_kept


def test_a_removal_that_was_killed_half_way_can_be_repeated_and_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, prefix = tmp_path / "source", tmp_path / "opt/xpu"
    (source / "bin").mkdir(parents=True)
    (source / tree.STAMP).write_text("{}")
    assert tree.copy(str(source), str(prefix)) is True

    def dies(path: str) -> None:
        if Path(path).exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", dies)
        with pytest.raises(KeyboardInterrupt):
            tree.remove(str(prefix))

    # The remaining files do not count as an installation.
    assert not prefix.exists()
    assert tree.copy(str(source), str(prefix)) is True
    tree.remove(str(prefix))
    assert list((tmp_path / "opt").iterdir()) == []


def test_an_uninstallation_waits_for_an_installation(installed: Path) -> None:
    removing = threading.Thread(target=setup.uninstall, args=("one",))
    with setup._lock():
        removing.start()
        removing.join(0.2)
        assert removing.is_alive()
    removing.join(20)
    assert not removing.is_alive()


def test_a_timer_that_comes_late_finishes_nothing_that_was_installed_anew(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[int] = []

    def finish() -> int:
        finished.append(1)
        return 0

    monkeypatch.setattr(setup, "_finish", finish)
    setup.finish()
    assert finished == []
    setup.uninstall()
    setup.finish()
    assert finished == [1, 1]


def test_a_node_whose_labels_may_not_be_changed_any_more_is_no_failure(
    api_server: ApiServer, api: Api, capfd: pytest.CaptureFixture[str]
) -> None:
    answer(api_server, _NODE, 403, {"reason": "Forbidden", "message": "no"})

    keeper.unlabel(api, "n1")

    assert "our labels stay on node n1" in capfd.readouterr().err


_KEEP = """
import sys
from xpu_runtime.kubernetes.node_setup import keeper
keeper._PAUSE_S = 0.02
refused = [b"second"]
def write(content):
    print(content.decode(), flush=True)
    if content in refused:
        refused.remove(content)
        return False
    return True
keeper.keep(sys.argv[1], write)
print("ended", flush=True)
"""


def test_keys_are_passed_on_until_the_node_has_them_and_the_pod_ends(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first")
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", _KEEP, keys], stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        # Then lines are empty.
        end = threading.Timer(20, process.kill)
        end.start()
        # The first ones too: they may be others than those that the installation has read.
        told = [process.stdout.readline()]
        for content, times in (("second", 2), ("third", 1)):
            keys.with_suffix(".new").write_text(content)
            keys.with_suffix(".new").rename(keys)
            # Again, where the node could not be written.
            told += [process.stdout.readline() for _ in range(times)]
        process.send_signal(signal.SIGTERM)
        last = process.stdout.readline()
        end.cancel()
    assert told == ["first\n", "second\n", "second\n", "third\n"]
    assert (last, process.returncode) == ("ended\n", 0)


def test_keys_that_are_none_are_tried_ever_more_rarely_and_others_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the clock and the signals of the test: an hour of looks, each 10 seconds after the last."""
    keys = tmp_path / "keys"
    keys.write_text("garbage")
    now: list[float] = [0.0]
    tried: list[tuple[float, bytes]] = []

    def pause(_: object, seconds: float) -> object:
        now[0] += seconds
        if now[0] == 3600:
            keys.write_text("good")
        return "SIGTERM" if now[0] > 3610 else None

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigtimedwait", pause)

    def write(content: bytes) -> bool:
        tried.append((now[0], content))
        return content == b"good"

    keeper.keep(str(keys), write)

    assert tried[0] == (0.0, b"garbage") and 5 < len(tried) < 15
    assert tried[-1] == (3600.0, b"good") and tried[-2][1] == b"garbage"


def test_the_keeper_is_told_whether_the_node_has_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "FOLDER", str(tmp_path / "kubernetes"))
    monkeypatch.setattr(setup, "KEYS", str(tmp_path / "kubernetes/keys"))
    good = f"k1 {'ab' * 32}\n".encode()

    # This process's mount namespace.
    assert pod.write_keys(os.getpid(), good) is True
    assert pod.write_keys(os.getpid(), good) is True
    assert pod.write_keys(os.getpid(), b"k2 short\n") is False

    assert (tmp_path / "kubernetes/keys").read_bytes() == good
    said = capfd.readouterr()
    assert said.out.count("the node has the Secret's new keys") == 1
    assert "the node keeps its old keys" in said.err
