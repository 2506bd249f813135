"""Allocations of pods: exact shares that a cluster's scheduler chose, or that this node chose itself.

The device plugin, which knows the pods of this node, calls this. A pod's container gets its grant out of the
allocation when it starts (granting.py). Nothing here knows Kubernetes: a pod is a UID, names, and its
containers' requests.
"""

from __future__ import annotations

import time

from xpu_runtime import candidates, granting
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Slice, Use
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.limits import choose as limits
from xpu_runtime.limits import enforce
from xpu_runtime.placement import card_capacity
from xpu_runtime.placement.allocation import why_not, why_stale
from xpu_runtime.placement.available import Candidate
from xpu_runtime.placement.cards import Cards, Shape
from xpu_runtime.placement.demand import Demand, PodDemand
from xpu_runtime.placement.pod import Places, PodShape, StepBudget, place
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import Memory
from xpu_runtime.value import Value
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors.inventory import Device, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xpu_runtime.config.defaults import Config


class Pod(Value):
    """A pod and its containers' requests."""

    uid: str
    namespace: str
    name: str
    demand: PodDemand


class RefusedContainer(Refusal):
    """Why a pod gets nothing: this one of its containers has no place. The nearest request is of variables,
    as anywhere: how a pod asks is not known here."""

    container: str = ""


def enter(inventory: Inventory, config: Config, allocation: Allocation) -> Refusal | None:
    """Reserves exactly these shares; returns the reason if they do not fit beside those of others.

    The same assignment again changes nothing. A later one (`made`) replaces an earlier one; an earlier one is
    refused. A drained, reserved or unhealthy device is no reason to refuse here: the start refuses it.
    """
    # Before the ledger is locked: the backends look at files.
    unheld = _not_held(inventory, config, allocation)

    def choose(uses: dict[str, Use], now: Allocation | None, _: PodLedger) -> Allocation | Refusal:
        stale = why_stale(allocation, now)
        is_new = now is None or not now.says_same(allocation)
        if stale is None and is_new and unheld is not None:
            return unheld
        return stale or why_not(inventory, config, allocation, uses) or allocation

    chosen = _allocate(inventory, allocation.uid, choose)
    return chosen if isinstance(chosen, Refusal) else None


def _not_held(inventory: Inventory, config: Config, allocation: Allocation) -> Refusal | None:
    """Why a device cannot hold the requested limits, in the words of a container's start."""
    for group in (allocation.sidecars, allocation.containers, allocation.init):
        for name, shares in group.items():
            for share in shares:
                device = node.find(inventory, share.device_uuid)
                if device is None:
                    continue  # `why_not` reports that
                memory = () if share.memory_bytes is None else (Memory(share.memory_bytes),)
                request = Request(memory=memory, cores=share.cores, decided=True)
                _, reason = limits.holding(inventory, device, request, config)
                if reason is not None:
                    text = f"container {name} of {allocation.label} is assigned a part of {device.label}"
                    return Refusal("not-eligible", f"{text}: {reason}")
    return None


def allocate(inventory: Inventory, config: Config, pod: Pod) -> Allocation | Refusal:
    """Chooses devices for a pod's containers as the scheduler extender does, and reserves them, for all
    containers or for none.

    A pod that has an allocation keeps it. Of two pods with the same UID the second gets none. If the ledger
    was lost since, running containers keep their devices as long as these still have enough free.
    """
    requests = {demand: _request(demand, pod) for _, demand in pod.demand.every}
    # Before the ledger is locked: the backends look at files, and starts wait for the lock.
    choices = {}
    for demand, request in requests.items():
        choice = candidates.of(inventory, request, config)
        if isinstance(choice, Refusal):
            return choice
        choices[demand] = choice

    def choose(uses: dict[str, Use], now: Allocation | None, ledger: PodLedger) -> Allocation | Refusal:
        if now is not None and now.key != (pod.uid, pod.namespace, pod.name):
            return Refusal("wrong-assignment", f"its UID, {pod.uid}, belongs to {now.label} on this node")
        return now or _Placing(pod, requests, choices, config, uses).all(ledger.devices_of(pod.uid))

    return _allocate(inventory, pod.uid, choose)


def _request(demand: Demand, pod: Pod) -> Request:
    memory: tuple[Memory, ...] = ()
    if demand.memory_bytes is not None:
        memory = (Memory(demand.memory_bytes),)
    elif demand.memory_percent is not None:
        memory = (Memory(millionths=demand.memory_percent * 10_000),)
    policy = pod.demand.policy
    return Request(count=demand.count, memory=memory, cores=demand.cores, policy=policy, decided=True)


class _Able:
    """The devices that may serve each container, by their positions (cards.CardGroups)."""

    def __init__(self, able: Mapping[Shape, tuple[int, ...]], number: int) -> None:
        """`number`: how many devices there are."""
        self._able = able
        sets = [frozenset(positions) for positions in able.values()]
        alike = [tuple(position in each for each in sets) for position in range(number)]
        self.of = tuple(alike.index(each) for each in alike)

    def groups(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        return (self._able[shape],)


class _Placing:
    """Places a pod's containers beside the shares of others (`uses`)."""

    def __init__(
        self,
        pod: Pod,
        requests: Mapping[Demand, Request],
        choices: Mapping[Demand, list[Candidate]],
        config: Config,
        uses: dict[str, Use],
    ) -> None:
        self._pod = pod
        self._requests = requests
        self._choices = choices
        self._config = config
        self._uses = uses

    def all(self, running: Mapping[str, set[str]]) -> Allocation | Refusal:
        """The allocation of the whole pod. `running`: the devices of its containers that run, by name."""
        shape, asked = PodShape(self._pod.demand), self._pod.demand
        names = dict(zip((*shape.containers, *shape.init, *shape.sidecars), asked.every))
        able: dict[Shape, list[Candidate]] = {}
        for each, (name, demand) in names.items():
            left = candidates.eligible(self._choices[demand], self._requests[demand], self._config)
            if isinstance(left, Refusal):
                return _of_container(name, left)
            able[each] = left
        # Devices of one vendor, the same for each container.
        devices = [each.device for each in next(iter(able.values()), [])]
        may = {
            each: tuple(position for position, one in enumerate(found) if one.reason is None)
            for each, found in able.items()
        }
        keep = {
            each: tuple(n for n in may[each] if devices[n].uuid in running[name])
            for each, (name, _) in names.items()
            if name in running
        }
        steps = StepBudget()
        found = self._search(devices, shape, {**may, **keep}, steps)
        while found is None and keep:
            keep.popitem()
            found = self._search(devices, shape, {**may, **keep}, steps)
        return self._why(shape, names) if found is None else self._allocation(devices, found)

    def _search(
        self, devices: list[Device], shape: PodShape, able: Mapping[Shape, tuple[int, ...]], steps: StepBudget
    ) -> Places | None:
        totals = [device.memory_bytes for device in devices]
        capacities = [card_capacity.grantable(total, self._config.oversubscribe_memory) for total in totals]
        uses = [self._uses.get(device.uuid, Use()) for device in devices]
        memory = [
            card_capacity.left(most, use.memory_bytes, use.exclusive) for most, use in zip(capacities, uses)
        ]
        cards = Cards(totals, capacities, _Able(able, len(devices)))
        binpack = (shape.policy or self._config.placement_policy) == "binpack"
        return place(cards, memory, [max(100 - use.cores, 0) for use in uses], shape, binpack, steps)

    def _allocation(self, devices: list[Device], places: Places) -> Allocation:
        uuids = [device.uuid for device in devices]
        totals = [device.memory_bytes for device in devices]
        shares = self._pod.demand.shares(places, uuids, totals)
        return Allocation(self._pod.uid, self._pod.namespace, self._pod.name, time.time(), *shares)

    def _why(self, shape: PodShape, names: Mapping[Shape, tuple[str, Demand]]) -> Refusal:
        """Why not all containers have a place: the reason of the first one without a place, in order of size,
        largest first."""
        sidecars = [each for is_sidecar, _, each in shape.order if is_sidecar]
        containers = [each for is_sidecar, _, each in shape.order if not is_sidecar]
        beside = self._uses
        for group, are_together in ((sidecars, True), (shape.init, False), (containers, True)):
            for name, demand in (names[each] for each in group):
                found = granting.placed(self._choices[demand], self._requests[demand], self._config, beside)
                if isinstance(found, Refusal):
                    return _of_container(name, found)
                if are_together:
                    beside = _with(beside, found)
        return Refusal("not-enough", "each container fits alone, but no place for all was found")


def _of_container(name: str, refusal: Refusal) -> Refusal:
    message = f"container {name}: {refusal.message}"
    return RefusedContainer(
        refusal.code, message, refusal.devices, refusal.nearest, refusal.is_full, container=name
    )


def _with(uses: dict[str, Use], slices: tuple[Slice, ...]) -> dict[str, Use]:
    """`uses` with these slices."""
    found = dict(uses)
    for each in slices:
        use = Use(each.memory_bytes, each.cores or 0, 1, not each.limited)
        found[each.device_uuid] = found.get(each.device_uuid, Use()).plus(use)
    return found


def _allocate(
    inventory: Inventory,
    uid: str,
    choose: Callable[[dict[str, Use], Allocation | None, PodLedger], Allocation | Refusal],
) -> Allocation | Refusal:
    with PodLedger() as ledger:
        indexes = {device.uuid: device.index for device in inventory.devices}
        chosen, dead = ledger.allocate(uid, lambda uses, now: choose(uses, now, ledger), indexes)
    try:
        enforce.clear(inventory, dead)
    except XpuError:
        pass  # a limit of a container that has ended: no reason to have nothing reserved
    granting.end_unused(dead)
    return chosen
