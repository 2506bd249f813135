"""The plugin as a whole: its page reports a thread that hangs, and the kubelet's probe ends it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.inventories import node, nvidia
from support.kubernetes_api import ApiServer
from support.stand_in_kubelet import until
from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes.access import Access
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.device_plugin import offering, plugin
from xpu_runtime.kubernetes.device_plugin.plugin import Plugin, Settings
from xpu_runtime.kubernetes.resources import MEMORY
from xpu_runtime.vendors.inventory import Device

from .made_pods import GIB, container, pod

#: Nobody answers there.
_API = Api(Access("http://127.0.0.1:1"))


Make = Callable[..., Plugin]


@pytest.fixture
def make(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a plugin of the node n1, whose driver root is empty; its threads end before the test does."""
    (tmp_path / "root").mkdir()
    (tmp_path / "config.yaml").write_text(f"driver: {{root: {tmp_path}/root}}\n")
    monkeypatch.setenv("XPU_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setattr(plugin, "_keep_small", lambda: None)
    interval, before = sys.getswitchinterval(), set(threading.enumerate())
    made: list[Plugin] = []

    def one(api: Api = _API, log: Callable[[str], None] = print, **options: Any) -> Plugin:
        settings = Settings("n1", str(tmp_path), str(tmp_path / "none.sock"))
        made.append(Plugin(settings, api, log, **options))
        return made[-1]

    yield one
    for each in made:
        each.stop()
    # One that is in the middle of a look would go on in the machine's own run folder.
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(30)
    sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in left)


@pytest.mark.parametrize(
    ("part", "call", "what"),
    [
        ("_offering", "look", "what is offered"),
        ("_pods", "reconcile", "what is reserved"),
        ("_registrations", "look", "the kubelet's folder"),
    ],
)
def test_a_thread_that_hangs_is_told_of(
    make: Make, monkeypatch: pytest.MonkeyPatch, part: str, call: str, what: str
) -> None:
    for module, seconds in ((offering, "_LOOK_S"), (plugin, "_RECONCILE_S"), (plugin, "_KUBELET_S")):
        monkeypatch.setattr(module, seconds, 0.01)
    monkeypatch.setattr(plugin, "_HANGS_S", 3.0)
    one, goes_on = make(), threading.Event()
    monkeypatch.setattr(getattr(one, part), call, lambda *_: goes_on.wait())
    threading.Thread(target=one.run).start()
    try:
        assert one.problem() == ""
        until(lambda: one.problem() == f"without an answer for too long: {what}", "it is told")
    finally:
        goes_on.set()


def test_pods_are_looked_at_again_while_the_ledger_changes_all_the_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_RECONCILE_S", 0.01)
    monkeypatch.setattr(plugin, "_RECONCILE_ANYWAY_S", 3600.0)
    one = make()
    # As in the second after a change.
    monkeypatch.setattr(one._ledger, "stamp", tuple)
    looks: list[float] = []
    monkeypatch.setattr(one._pods, "look_again", lambda: looks.append(time.monotonic()))
    reconciled: list[object] = []
    monkeypatch.setattr(one._pods, "reconcile", reconciled.append)
    threading.Thread(target=one._reconcile_pods).start()
    until(lambda: len(looks) > 3 and len(reconciled) > 3, "it looks again")


def test_a_plugin_beside_which_another_could_run_ends(make: Make) -> None:
    with pytest.raises(XpuError, match="the lock of the node's one device plugin was removed"):
        make(is_sole=lambda: False).run()


def test_while_the_drivers_do_not_answer_all_is_unhealthy(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    one = make(log=log.append)
    inventory = node(nvidia("1"), Device("0", "GPU-0", "T4", 15 * GIB, (), "nvidia"))
    drivers = SimpleNamespace(inventory=inventory, problem="", step=lambda: True)
    monkeypatch.setattr(one._offering, "_driver", drivers)
    for problem, healthy in (("", 15), ("the driver does not answer", 0), ("", 15)):
        drivers.problem = problem
        one._offering.look()
        offer = one._offering.offers[MEMORY]
        assert (len(offer.healthy), len(offer.ids)) == (healthy, 15)
        assert one._offering.drivers_answer is not bool(problem)
    said = [line for line in log if line in ("the driver does not answer", "drivers: it works again")]
    assert said == ["the driver does not answer", "drivers: it works again"]


def test_of_the_pods_of_all_nodes_those_of_this_one_are_asked_for(make: Make, api_server: ApiServer) -> None:
    for name, where in (("here", "n1"), ("elsewhere", "n2")):
        item = pod(container("main", mem="1"), name=name)
        item["spec"]["nodeName"] = where
        api_server.put(f"/api/v1/namespaces/ns/pods/{name}", item)
    api_server.put("/api/v1/namespaces/ns/pods/asks-nothing", pod(container("main"), name="asks-nothing"))
    one = make(Api(Access(api_server.url)))
    assert [each.name for each in one._listed(5)] == ["here"]
