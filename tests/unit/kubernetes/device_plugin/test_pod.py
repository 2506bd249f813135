"""A pod of the API in the plugin's form, and the handling of pods."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support.inventories import node, nvidia
from xpu_runtime.allocating import RefusedContainer
from xpu_runtime.config.defaults import DEFAULTS
from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes.api import ApiError, Change
from xpu_runtime.kubernetes.device_plugin.offer import Waiting
from xpu_runtime.kubernetes.device_plugin.pod import (
    PodEvent,
    PodOnNode,
    refusal_text,
    resources_of,
    shares_text,
)
from xpu_runtime.kubernetes.device_plugin.pods import Pods
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.kubernetes.resources import CORES, MEMORY
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.refusal import DeviceStatus, Refusal
from xpu_runtime.request.assignment import Share
from xpu_runtime.vendors.inventory import Device

from .made_pods import GIB, KNOWN, container, kept, pod


@pytest.mark.parametrize(
    ("init", "containers", "memory"),
    [
        ((), ("2", "3"), 5),
        (("4",), ("2",), 4),
        (("4",), ("3", "3"), 6),
        (("4", "1"), ("2",), 4),
    ],
)
def test_units_at_one_time_are_the_larger_of_init_and_all(
    init: tuple[str, ...], containers: tuple[str, ...], memory: int
) -> None:
    found = kept(
        pod(
            *(container(f"c{n}", mem=each) for n, each in enumerate(containers)),
            init=tuple(container(f"i{n}", mem=each) for n, each in enumerate(init)),
        )
    )
    assert found.units == {MEMORY: memory}


def test_sidecars_count_beside_later_containers() -> None:
    before, side, after = container("i", mem="5"), container("s", True, mem="2"), container("j", mem="4")
    found = kept(pod(container("main", mem="3"), init=(before, side, after)))
    assert found.units == {MEMORY: 6}
    assert [name for name, _ in found.demand.sidecars] == ["s"]


def test_the_unit_is_the_configurations() -> None:
    assert resources_of(DEFAULTS.replace(kubernetes_memory_unit="256MiB")).memory_unit == 256 << 20


def test_a_reservation_in_words() -> None:
    inventory = node(nvidia("1"), Device("3", "GPU-a", "T4", 15 * GIB, (), "nvidia"))
    allocation = Allocation(
        "u", "ns", "p", 0.0, {"main": (Share("GPU-a", 4 * GIB, 30), Share("GPU-b", None, None))}
    )
    assert (
        shares_text(allocation, inventory) == "main: 4 GiB of GPU 3 and 30% of its cores, all of it of GPU-b"
    )


@pytest.mark.parametrize(
    ("asked", "count", "variables", "limits"),
    [
        (
            container("main", mem="9", cores="30"),
            None,
            {"XPU_MEM": "7680M", "XPU_CORES": "20"},
            "yoyoworks.com/xpu-mem: 7, yoyoworks.com/xpu-cores: 20",
        ),
        (
            container("main", mem="16"),
            "2",
            {"XPU_MEM": "7G", "XPU_COUNT": "2"},
            'yoyoworks.com/xpu-mem: 14, annotation yoyoworks.com/xpu-count: "2"',
        ),
        (
            container("main", shares="60"),
            None,
            {"XPU_MEM": "7G", "XPU_CORES": "50"},
            "yoyoworks.com/xpu-shares: 46",
        ),
        (container("main", mem="9"), None, {"XPU_MEM": "900M"}, None),
    ],
)
def test_the_nearest_request_is_said_as_limits(
    asked: dict[str, Any], count: str | None, variables: dict[str, str], limits: str | None
) -> None:
    annotations = {} if count is None else {"yoyoworks.com/xpu-count": count}
    inventory = node(nvidia("1"), Device("0", "GPU-a", "T4", 15 * GIB, (), "nvidia"))
    refusal = RefusedContainer("not-enough-memory", "no", (), variables, True, container="main")

    text = refusal_text(refusal, kept(pod(asked, annotations=annotations)), KNOWN, inventory)

    nothing = "nothing smaller fits now either: `xpu ps` lists the holders"
    assert text == (f"no; the nearest request that fits now: {limits}" if limits else f"no; {nothing}")


def test_a_refusal_says_amounts_as_the_scheduler_does() -> None:
    devices = (DeviceStatus("0", 5 * GIB, 50, "5.5G free, 10G requested, 30% of its cores free"),)
    told = "container 4g: no device has 10G of memory free, held by pod ns/a-7G, 512M of it"
    refusal = Refusal("not-enough-memory", told, devices)

    text = refusal_text(refusal, kept(pod(container("4g", mem="10"))), KNOWN, None)

    assert text == (
        "container 4g: no device has 10 GiB of memory free, held by pod ns/a-7G, 512 MiB of it (GPU 0: "
        "5.5 GiB free, 10 GiB requested, 30% of its cores free)"
    )


# Ends of pods


@pytest.fixture
def pods(run_dir: Path, told: list[PodEvent]) -> Pods:
    """With no device on the node: nothing can be reserved."""
    return Pods("n1", KNOWN, SharedLedger(), lambda: DEFAULTS, lambda: None, lambda: None, told.append)


@pytest.fixture
def told() -> list[PodEvent]:
    """The events of its pods."""
    return []


def listed(*found: PodOnNode) -> Change[PodOnNode]:
    return Change("listed", found)


def reserved(uid: str, name: str = "p") -> dict[str, Allocation]:
    return {uid: Allocation(uid, "ns", name, 0.0, {"main": (Share("GPU-a", GIB, None),)})}


@pytest.fixture
def deallocated(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The UIDs whose allocation was ended."""
    found: list[str] = []
    end: Callable[[list[str], float], None] = lambda uids, _: found.extend(uids)  # noqa: E731
    monkeypatch.setattr(pods._ledger, "deallocate", end)
    return found


def test_before_the_server_has_told_nothing_is_ended(pods: Pods, deallocated: list[str]) -> None:
    pods.reconcile(reserved("u1"))
    assert deallocated == []


def test_a_pod_that_is_gone_loses_its_allocation_at_once(pods: Pods, deallocated: list[str]) -> None:
    here = kept(pod(container("main", mem="1")))
    pods.take(listed(here))
    pods.reconcile(reserved("u1"))
    assert deallocated == []
    pods.take(Change("deleted", (here,)))
    pods.reconcile(reserved("u1"))
    assert deallocated == ["u1"]


def test_a_pod_that_is_gone_when_the_server_is_back_loses_it_at_once(
    pods: Pods, deallocated: list[str]
) -> None:
    here = kept(pod(container("main", mem="1")))
    just_read = kept(pod(container("main", mem="1"), uid="u2", name="q"))
    pods.take(listed())
    pods.take(Change("changed", (here,)))
    pods.ensure_all(lambda _: [just_read], time.monotonic() + 20)
    both = {**reserved("u1"), **reserved("u2", "q")}
    pods.reconcile(both)
    assert deallocated == []
    pods.take(listed())
    pods.reconcile(both)
    assert deallocated == ["u1"]  # the other one may be newer than the list


def test_an_unreported_pod_loses_its_reservation_only_after_a_while(
    pods: Pods, deallocated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pods.take(listed())
    pods.reconcile(reserved("u9"))
    assert deallocated == []
    monkeypatch.setattr("xpu_runtime.kubernetes.device_plugin.pods._UNKNOWN_S", 0.0)
    pods.reconcile(reserved("u9"))
    assert deallocated == ["u9"]


def test_a_pod_with_an_alias_that_was_turned_off_keeps_what_it_has_and_gets_nothing_new(
    pods: Pods, told: list[PodEvent], deallocated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpu_runtime.kubernetes.device_plugin.pods._UNKNOWN_S", 0.0)
    asks = {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "4"}}}
    pods.take(listed(kept(pod(asks)), kept(pod(asks, uid="u2", name="another-plugins"))))
    pods.reconcile(reserved("u1"))
    assert (deallocated, told, pods.is_due()) == ([], [], False)
    assert pods.counts() == {"reserved": 1, "refused": 0, "waiting": 0}
    assert PodOnNode.of(pod({**asks, "resources": {"limits": {"aliyun.com/gpu-count": "4"}}}), KNOWN) is None


#: The UID of a static pod, and the metadata of its object in the API.
STATIC = "0123456789abcdef0123456789abcdef"
MIRROR: Any = {"annotations": {"kubernetes.io/config.mirror": STATIC}}


def test_the_uid_of_a_static_pod_is_the_kubelets_and_no_annotation_makes_it_that_of_another() -> None:
    assert kept(pod(container("main", mem="1"), **MIRROR)).uid == STATIC
    for said in ("6f1c3e0e-5e0b-4a7e-9d8b-0a2f6f3d2c11", STATIC[1:], STATIC + "\n", ""):
        forger: Any = {"annotations": {"kubernetes.io/config.mirror": said}}
        assert kept(pod(container("main", mem="1"), **forger)).uid == "u1"


def test_a_pod_that_claims_to_be_a_static_pod_neither_replaces_nor_ends_it(
    pods: Pods, deallocated: list[str]
) -> None:
    forger = kept(pod(container("main", mem="9"), uid="u2", name="forger", **MIRROR))
    pods.take(listed(kept(pod(container("main", mem="1"), **MIRROR))))
    pods.take(Change("changed", (forger,)))
    pods.reconcile(reserved(STATIC))
    assert pods.counts()["reserved"] == 1
    pods.take(Change("deleted", (forger,)))
    pods.reconcile(reserved(STATIC))
    assert deallocated == []
    assert set(pods.requesting()) == {("ns", "p")}


def test_a_forgers_reservation_goes_with_the_forger(pods: Pods, deallocated: list[str]) -> None:
    forger = kept(pod(container("main", mem="9"), uid="u2", name="p", **MIRROR))
    real = kept(pod(container("main", mem="1"), name="real", **MIRROR))
    pods.take(listed(forger, real))
    pods.reconcile(reserved(STATIC))
    pods.take(Change("deleted", (forger,)))
    pods.reconcile(reserved(STATIC))
    assert deallocated == [STATIC]
    assert set(pods.requesting()) == {("ns", "real")}


def test_a_pod_that_we_fail_on_is_refused_and_no_other(
    pods: Pods, told: list[PodEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "_decide", lambda *_: 1 // 0)
    pods.take(listed(kept(pod(container("main", mem="1")))))
    pods.reconcile({})
    assert [each.reason for each in told] == ["XPURefused"]
    assert "internal error in test_pod.py" in told[0].message and "ZeroDivisionError" in told[0].message


def test_drivers_that_have_not_told_yet_refuse_no_pod_before_they_had_time(
    pods: Pods, told: list[PodEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    pods.take(listed(kept(pod(container("main", mem="1")))))
    pods.reconcile({})
    assert (told, pods.counts()["refused"]) == ([], 1)
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 30)
    pods.reconcile({})
    (event,) = told
    assert event.message == "the drivers have not yet reported the devices of this node: see `xpu doctor`"


def test_an_author_who_changes_the_reason_of_a_refusal_makes_few_events(
    pods: Pods, told: list[PodEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def refuse(*_: object) -> NoReturn:
        raise XpuError(f"no {now[0]:.1f}")

    monkeypatch.setattr(pods, "_decide", refuse)
    pods.take(listed(kept(pod(container("main", mem="1")))))
    for _ in range(6000):  # ten minutes
        now[0] += 0.1
        pods.look_again()
        pods.reconcile({})
    assert 5 <= len(told) <= 12
    # The last state is reported too, but later.
    monkeypatch.setattr(pods, "_decide", lambda *_: 1 // 0)
    now[0] += 300
    pods.look_again()
    pods.reconcile({})
    assert "ZeroDivisionError" in told[-1].message


def test_a_late_reading_does_not_revive_a_pod_that_is_gone(pods: Pods) -> None:
    one, other = (
        kept(pod(container("main", mem="1"))),
        kept(pod(container("main", mem="1"), uid="u2", name="q")),
    )
    pods.take(listed(one, other))
    pods.take(Change("deleted", (one,)))
    pods.take(listed())  # and the deletion of the other was not reported
    pods.ensure_all(lambda _: [one, other], time.monotonic() + 20)
    assert pods.requesting() == {}
    # The watch is right, even if it reported something else before.
    pods.take(Change("changed", (one,)))
    pods.ensure_all(lambda _: [one], time.monotonic() + 20)
    assert set(pods.requesting()) == {("ns", "p")}


def test_while_the_api_server_is_away_only_known_pods_start(pods: Pods) -> None:
    def away(seconds: float) -> list[PodOnNode]:
        raise ApiError("away")

    # The devices are not known yet.
    with pytest.raises(ApiError):
        pods.ensure_all(away, time.monotonic())
    pods.take(listed(kept(pod(container("main", mem="1")))))
    with pytest.raises(ApiError):
        pods.ensure_all(away, time.monotonic())

    pods.reconcile(reserved("u1"))

    pods.ensure_all(away, time.monotonic())


def test_units_that_the_kubelet_has_not_given_are_waited_for(pods: Pods) -> None:
    pods.take(
        listed(
            kept(pod(container("main", mem="4"), uid="u1", name="a")),
            kept(pod(container("main", mem="3"), uid="u2", name="b")),
            kept(pod(container("main", mem="2"), uid="u3", name="c", phase="x")),
        )
    )
    pods.reconcile(reserved("u1", "a"))
    assert pods.waiting(MEMORY, {("ns", "c"): 2}) == Waiting(7, 3)
    # The kubelet does not report an init container's surplus over the others.
    assert pods.waiting(MEMORY, {("ns", "a"): 1, ("ns", "b"): 2, ("ns", "c"): 2}) == Waiting(4, 1)
    assert pods.waiting(CORES, {}) == Waiting()
    assert pods.counts() == {"reserved": 1, "refused": 2, "waiting": 0}
