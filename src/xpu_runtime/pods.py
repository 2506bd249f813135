"""What is reserved for pods: exact shares that a cluster's scheduler chose, or what this node places itself.

For whoever knows the pods of this node. A pod's container then gets its grant out of the reservation, at its
start (granting.py). Knows no Kubernetes: pods are a UID, names, and what their containers ask for.
"""

from __future__ import annotations

import time

from xpu_runtime import granting
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.claims import why_not, why_stale
from xpu_runtime.ledger.grants import Slice, Use
from xpu_runtime.ledger.placement import Candidate
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.ledger.reservations import Reservation
from xpu_runtime.limits import choose as limits
from xpu_runtime.limits import enforce
from xpu_runtime.request.assignment import Demand, Share
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import Memory
from xpu_runtime.value import Value
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors.inventory import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpu_runtime.config.defaults import Config


class Pod(Value):
    """A pod, and what its containers ask for, by their names; `init` and `sidecars` as in Reservation."""

    uid: str
    namespace: str
    name: str
    containers: dict[str, Demand]
    init: dict[str, Demand] = {}
    sidecars: dict[str, Demand] = {}
    #: binpack or spread; None: the configuration's.
    policy: str | None = None


class RefusedContainer(Refusal):
    """Why a pod gets nothing: this one of its containers has no place. The nearest request is of variables,
    as anywhere: how a pod asks is not known here."""

    container: str = ""


def reserve(inventory: Inventory, config: Config, reservation: Reservation) -> Refusal | None:
    """Reserves exactly these shares; why not, where they do not fit beside what others have.

    The same again changes nothing; a later one (`made`) takes an earlier one's place, and is refused if it is
    the earlier. A device that is drained, reserved or not healthy is no reason: a start tells that.
    """
    # Before the ledger is locked: the backends look at files.
    unheld = _not_held(inventory, config, reservation)

    def choose(uses: dict[str, Use], now: Reservation | None, _: PodLedger) -> Reservation | Refusal:
        stale = why_stale(reservation, now)
        is_new = now is None or not now.says_same(reservation)
        if stale is None and is_new and unheld is not None:
            return unheld
        return stale or why_not(inventory, config, reservation, uses) or reservation

    chosen = _reserve(inventory, reservation.uid, choose)
    return chosen if isinstance(chosen, Refusal) else None


def _not_held(inventory: Inventory, config: Config, reservation: Reservation) -> Refusal | None:
    """Why a device cannot hold what is asked of it, as the container's start would tell."""
    for group in (reservation.sidecars, reservation.containers, reservation.init):
        for name, shares in group.items():
            for share in shares:
                device = node.find(inventory, share.device_uuid)
                if device is None:
                    continue  # `why_not` tells that
                memory = () if share.memory_bytes is None else (Memory(share.memory_bytes),)
                request = Request(memory=memory, cores=share.cores, decided=True)
                _, reason = limits.holding(inventory, device, request, config)
                if reason is not None:
                    text = f"container {name} of {reservation.label} is assigned a part of {device.label}"
                    return Refusal("not-eligible", f"{text}: {reason}")
    return None


def place_for_pod(inventory: Inventory, config: Config, pod: Pod) -> Reservation | Refusal:
    """Chooses devices for a pod's containers as for docker's, and reserves them. All of its containers get
    theirs, or none.

    A pod that has a reservation keeps it; of two that say they have one UID the second gets none. Where the
    ledger was lost since, containers that run keep their devices if these still have what is asked for.
    """
    demands = {*pod.sidecars.values(), *pod.containers.values(), *pod.init.values()}
    # Before the ledger is locked: the backends look at files, and starts wait for the lock.
    requests = {demand: _request(demand, pod) for demand in demands}
    choices = {demand: granting.candidates(inventory, requests[demand], config) for demand in demands}
    for each in choices.values():
        if isinstance(each, Refusal):
            return each
    known = {demand: each for demand, each in choices.items() if not isinstance(each, Refusal)}

    def choose(uses: dict[str, Use], now: Reservation | None, ledger: PodLedger) -> Reservation | Refusal:
        if now is not None and now.key != (pod.uid, pod.namespace, pod.name):
            return Refusal("wrong-assignment", f"its UID, {pod.uid}, is that of {now.label} on this node")
        return now or _Placing(pod, requests, known, config, ledger.devices_of(pod.uid)).all(uses)

    return _reserve(inventory, pod.uid, choose)


def _request(demand: Demand, pod: Pod) -> Request:
    memory: tuple[Memory, ...] = ()
    if demand.memory_bytes is not None:
        memory = (Memory(demand.memory_bytes),)
    elif demand.memory_percent is not None:
        memory = (Memory(millionths=demand.memory_percent * 10_000),)
    return Request(count=demand.count, memory=memory, cores=demand.cores, policy=pod.policy, decided=True)


class _Placing:
    """Places a pod's containers one after the other."""

    def __init__(
        self,
        pod: Pod,
        requests: Mapping[Demand, Request],
        choices: Mapping[Demand, list[Candidate]],
        config: Config,
        running: Mapping[str, set[str]],
    ) -> None:
        """`running`: the devices of its containers that run, by name."""
        self._running = running
        self._pod = pod
        self._requests = requests
        self._choices = choices
        self._config = config

    def all(self, uses: dict[str, Use]) -> Reservation | Refusal:
        """The reservation of the whole pod, beside what `uses` says that others have."""
        sidecars = self._group(self._pod.sidecars, uses)
        if isinstance(sidecars, Refusal):
            return sidecars
        beside = _with(uses, sidecars)
        containers = self._group(self._pod.containers, beside)
        if isinstance(containers, Refusal):
            return containers
        # An init container has ended before the others start: it gets of their devices what it can.
        own = {share.device_uuid for shares in containers.values() for share in shares}
        init: dict[str, tuple[Share, ...]] = {}
        for name, demand in self._pod.init.items():
            found = self._one(name, demand, beside, own)
            if isinstance(found, Refusal):
                return found
            init[name] = found
        pod = self._pod
        return Reservation(pod.uid, pod.namespace, pod.name, time.time(), containers, init, sidecars)

    def _group(
        self, demands: Mapping[str, Demand], uses: dict[str, Use]
    ) -> dict[str, tuple[Share, ...]] | Refusal:
        """Containers that run at the same time; the largest is placed first, while there is most choice."""
        found: dict[str, tuple[Share, ...]] = {}
        for name, demand in sorted(demands.items(), key=lambda each: _size(each[1]), reverse=True):
            shares = self._one(name, demand, _with(uses, found))
            if isinstance(shares, Refusal):
                return shares
            found[name] = shares
        return found

    def _one(
        self, name: str, demand: Demand, uses: dict[str, Use], rather: set[str] | None = None
    ) -> tuple[Share, ...] | Refusal:
        """The shares of a container: of the devices that it has, else of those `rather`, else of any."""
        every = self._choices[demand]
        for uuids in (self._running.get(name), rather):
            choice = [each for each in every if uuids and each.device.uuid in uuids]
            found = granting.placed(choice, self._requests[demand], self._config, uses)
            if not isinstance(found, Refusal):
                return _shares(found)
        found = granting.placed(every, self._requests[demand], self._config, uses)
        return _of_container(name, found) if isinstance(found, Refusal) else _shares(found)


def _size(demand: Demand) -> tuple[bool, int, int, int, int]:
    """What orders demands."""
    memory, percent = demand.memory_bytes or 0, demand.memory_percent or 0
    return not (memory or percent), memory, percent, demand.cores or 0, demand.count


def _of_container(name: str, refusal: Refusal) -> Refusal:
    message = f"container {name}: {refusal.message}"
    return RefusedContainer(
        refusal.code, message, refusal.devices, refusal.nearest, refusal.is_full, container=name
    )


def _shares(slices: tuple[Slice, ...]) -> tuple[Share, ...]:
    return tuple(
        Share(each.device_uuid, each.memory_bytes if each.limited else None, each.cores) for each in slices
    )


def _with(uses: dict[str, Use], containers: Mapping[str, tuple[Share, ...]]) -> dict[str, Use]:
    """`uses` with what these containers have."""
    found = dict(uses)
    for share in (share for shares in containers.values() for share in shares):
        now = found.get(share.device_uuid, Use())
        found[share.device_uuid] = now.replace(
            memory_bytes=now.memory_bytes + (share.memory_bytes or 0),
            cores=now.cores + (share.cores or 0),
            slices=now.slices + 1,
            exclusive=now.exclusive or share.memory_bytes is None,
        )
    return found


def _reserve(
    inventory: Inventory,
    uid: str,
    choose: Callable[[dict[str, Use], Reservation | None, PodLedger], Reservation | Refusal],
) -> Reservation | Refusal:
    with PodLedger() as ledger:
        indexes = {device.uuid: device.index for device in inventory.devices}
        chosen, dead = ledger.reserve(uid, lambda uses, now: choose(uses, now, ledger), indexes)
    try:
        enforce.clear(inventory, dead)
    except XpuError:
        pass  # a limit of a container that has ended: no reason to have nothing reserved
    granting.end_unused(dead)
    return chosen
