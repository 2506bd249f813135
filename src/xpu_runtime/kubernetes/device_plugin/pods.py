"""The pods bound to this node, and the reservation of each in the ledger.

A pod with a signed assignment gets the assigned share. One without gets a fitting share if this node places
pods itself, and otherwise nothing. Pods come from the API's watch, and the kubelet may be ahead of us: so a
start of a container (`ensure`) has its pod looked up and reserved at once. The looked-up pod may be older
than the watch's changes since: the data of a pod that is gone is ignored. While the API server is away,
everything stays as it is. Knows no gRPC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from xpu_runtime.allocating import Pod, allocate, enter
from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import DeviceError, XpuError
from xpu_runtime.kubernetes.api import Api, ApiError, Change
from xpu_runtime.kubernetes.device_plugin.offer import Waiting
from xpu_runtime.kubernetes.device_plugin.pod import (
    NO_CLASS,
    REFUSED,
    RESERVED,
    PodEvent,
    PodOnNode,
    check_assignment,
    no_class,
    not_assigned,
    refusal_text,
    shares_text,
)
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.ledger.allocations import Allocation, of_assignment
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.messages import line_of
from xpu_runtime.request import assignment
from xpu_runtime.vendors.inventory import Inventory

#: Seconds that a turn with the ledger may take: less than the kubelet waits for PreStartContainer (30).
_LEDGER_S = 15.0
#: Seconds until a refused pod is tried again without a change.
_AGAIN_S = 10.0
#: Seconds between two refusal events of a pod, twice as long each time: its author can cause a different
#: refusal by each change of its annotations.
_TELL_S, _MOST_TELL_S = 1.0, 300.0
#: Seconds that an allocation of a pod unknown to the watch is kept: the hook may have entered it ahead of the
#: watch.
_UNKNOWN_S = 30.0
#: Seconds after which a pod counts as old: it has its IDs, or a call of the kubelet will wake us.
_NEW_S = 60.0
#: Seconds that drivers have after the plugin's start, before pods are refused for want of an answer.
_FIRST_S = 20.0
#: Seconds that a deleted pod is remembered: longer than any request that may have read it before.
_GONE_S = 60.0

#: PodOnNode.key.
_Key = tuple[str, str, str]


class _NotToldYetError(DeviceError):
    """The drivers have not told which devices there are: soon after the start no reason to refuse a pod."""


class _State:
    def __init__(self, pod: PodOnNode) -> None:
        self.pod = pod
        #: It is in the ledger.
        self.allocation: Allocation | None = None
        #: Why it is not; "": it was not tried yet.
        self.refused = ""
        self.is_told = False
        #: The refusal that was last told in an event, when (time.monotonic) another one may be, and how long
        #: it is from that to the next.
        self.told, self.tell_at, self.tell_pause = "", 0.0, _TELL_S
        self.again_at = 0.0
        self.known_since = time.monotonic()
        #: The watch has reported it; otherwise it was only read (`ensure`).
        self.is_watched = False

    @property
    def lacks(self) -> bool:
        """Whether it should have an allocation and has none. No new one is given for a name that is not
        offered here: such a pod may belong to another device plugin."""
        return self.allocation is None and self.pod.is_offered


class Pods:
    """Thread-safe. `reconcile` and `ensure` decide about reservations, in any thread."""

    def __init__(
        self,
        node_name: str,
        resources: Resources,
        ledger: SharedLedger,
        config: Callable[[], Config],
        inventory: Callable[[], Inventory | None],
        is_default: Callable[[], bool | None],
        tell: Callable[[PodEvent], None],
    ) -> None:
        """`is_default`: whether our runtime starts a pod that names no RuntimeClass; None: not known."""
        self._node = node_name
        self._resources = resources
        self._ledger = ledger
        self._config = config
        self._inventory = inventory
        self._is_default = is_default
        self._tell = tell
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._states: dict[_Key, _State] = {}
        #: Whether the API server has listed the pods.
        self.is_listed = False
        #: Since when (time.monotonic) pods that the API does not list have been in the ledger.
        self._unknown: dict[_Key, float] = {}
        #: Pods that are gone, and until when (time.monotonic) that is remembered.
        self._gone_until: dict[_Key, float] = {}

    # From the API

    def take(self, change: Change[PodOnNode]) -> None:
        with self._lock:
            if change.kind == "listed":
                named = {pod.key for pod in change.objects}
                missing = [key for key in self._states if key not in named]
                self._remember_gone(missing)
                # Deleted during an outage: all of the watch's changes are older than this list, so that
                # nothing needs to be waited for. One that was only read may be newer.
                self._unknown.update((key, float("-inf")) for key in missing if self._states[key].is_watched)
                self._states = {key: each for key, each in self._states.items() if key in named}
                self.is_listed = True
            for pod in change.objects:
                self._put(pod, is_gone=change.kind == "deleted")
                if pod.key in self._states:
                    self._states[pod.key].is_watched = True

    def _put(self, pod: PodOnNode, is_gone: bool) -> None:
        if is_gone or pod.is_over:
            self._states.pop(pod.key, None)
            self._remember_gone([pod.key])
            # Seen to have ended: nothing needs to be waited for.
            self._unknown[pod.key] = float("-inf")
            return
        self._gone_until.pop(pod.key, None)
        if pod.key in self._states:
            self._states[pod.key].pod = pod
        else:
            self._states[pod.key] = _State(pod)
            self._unknown.pop(pod.key, None)

    def _put_read(self, pod: PodOnNode) -> None:
        """A pod that was read by a request of its own."""
        with self._lock:
            if time.monotonic() >= self._gone_until.get(pod.key, 0.0):
                self._put(pod, is_gone=False)

    def _remember_gone(self, keys: Iterable[_Key]) -> None:
        now = time.monotonic()
        self._gone_until = {key: until for key, until in self._gone_until.items() if until > now}
        self._gone_until.update(dict.fromkeys(keys, now + _GONE_S))

    # Reservations

    def reconcile(self, allocations: Mapping[str, Allocation], until: float | None = None) -> bool:
        """Makes reservations that are due, and ends those that are over. `allocations`: the ledger's; `until`
        (time.monotonic): the deadline. Returns whether anything changed. LedgerError if the ledger cannot be
        used now."""
        gone = self._gone(allocations)
        if gone:
            self._ledger.deallocate([uid for uid, _, _ in gone], _left(until))
            with self._lock:
                for key in gone:
                    self._unknown.pop(key, None)
        now, changed = time.monotonic(), bool(gone)
        with self._lock:
            due = []
            for key, state in self._states.items():
                there = allocations.get(state.pod.uid)
                state.allocation = there if there is not None and there.key == key else None
                state.is_told |= state.allocation is not None
                if state.lacks and now >= state.again_at:
                    due.append(state)
        for state in due:
            changed |= self._allocate(state, until)
        return changed

    def is_due(self) -> bool:
        """Whether there is a pod that `reconcile` would try."""
        now = time.monotonic()
        with self._lock:
            return any(each.lacks and now >= each.again_at for each in self._states.values())

    def look_again(self) -> None:
        """Refused pods may fit now: the next `reconcile` tries them."""
        with self._lock:
            for state in self._states.values():
                state.again_at = 0.0

    def _gone(self, allocations: Mapping[str, Allocation]) -> list[_Key]:
        """The pods that have an allocation, and are not on this node any more."""
        now = time.monotonic()
        with self._lock:
            if not self.is_listed:
                return []
            unknown = [each.key for each in allocations.values() if each.key not in self._states]
            self._unknown = {key: self._unknown.get(key, now) for key in unknown}
            return [key for key in unknown if now - self._unknown[key] >= _UNKNOWN_S]

    def _allocate(self, state: _State, until: float | None) -> bool:
        """Returns whether the pod has got an allocation. LedgerError."""
        pod = state.pod
        try:
            found = self._decide(pod, until)
            refusal, is_early = "", False
            if isinstance(found, Refusal):
                refusal = refusal_text(found, pod, self._resources, self._inventory())
        except LedgerError:
            raise
        except (XpuError, OSError) as error:  # for example of a file that decides about backends
            found, refusal = None, str(error)
            is_early = isinstance(error, _NotToldYetError) and time.monotonic() - self._began < _FIRST_S
        except Exception as error:  # one pod must not end the plugin for all others
            found, refusal, is_early = None, line_of(error), False
        with self._lock:
            now = time.monotonic()
            state.again_at = now + _AGAIN_S
            news = refusal not in ("", state.told) and now >= state.tell_at and not is_early
            if news:
                state.told, state.tell_at = refusal, now + state.tell_pause
                state.tell_pause = min(2 * state.tell_pause, _MOST_TELL_S)
            state.refused = refusal
            state.allocation = found if isinstance(found, Allocation) else None
            state.told = "" if state.allocation is not None else state.told
            is_first, state.is_told = not state.is_told, state.is_told or state.allocation is not None
        if isinstance(found, Allocation):
            inventory = self._inventory()
            if is_first and inventory is not None:
                self._tell(PodEvent(pod, RESERVED, shares_text(found, inventory), False))
                if not pod.runtime_class and self._is_default() is None:
                    self._tell(PodEvent(pod, NO_CLASS, str(no_class(pod, is_sure=False)), True))
            return True
        if news:
            self._tell(PodEvent(pod, REFUSED, refusal, True))
        return False

    def _decide(self, pod: PodOnNode, until: float | None) -> Allocation | Refusal:
        """Reserves the pod's share; XpuError, or a Refusal, if it gets none."""
        if pod.problem:
            raise XpuError(pod.problem)
        # Another runtime would start it without its devices: it would run, see no GPU, and keep its share
        # from other pods. For a RuntimeClass that the pod names, only the API knows the runtime.
        if not pod.runtime_class and self._is_default() is False:
            raise no_class(pod, is_sure=True)
        inventory, config = self._inventory(), self._config()
        if inventory is None:
            raise _NotToldYetError(
                "the drivers have not yet reported the devices of this node", "see `xpu doctor`"
            )
        if pod.assignment:
            assigned = assignment.read(pod.assignment, assignment.read_keys(config.kubernetes_keys))
            check_assignment(assigned, pod, self._node)
            key_id = assignment.key_id(pod.assignment)
            allocation = of_assignment(assigned, pod.namespace, pod.name, key_id)
            with self._ledger.turn(_left(until)):
                return enter(inventory, config, allocation) or allocation
        if config.kubernetes_placement != "node":
            raise not_assigned(pod)
        with self._ledger.turn(_left(until)):
            return allocate(inventory, config, Pod(pod.uid, pod.namespace, pod.name, pod.demand))

    # Starts

    def ensure(self, namespace: str, name: str, api: Api, until: float) -> None:
        """Returns when the pod of that name has an allocation; XpuError says why it has none, at `until`
        (time.monotonic) at the latest."""
        problem, pause = f"pod {namespace}/{name} is not known at the API server yet", 0.1
        while True:
            state = self._named(namespace, name)
            try:
                if state is not None:
                    if self._ledger.is_allocated(state.pod.key, _left(until)) or self._allocate(state, until):
                        return
                    raise XpuError(f"refused: {state.refused}")
                # Reserved before this plugin was started; the hook looks at the UID.
                allocations = self._ledger.read(_left(until)).allocations.values()
                if any((each.namespace, each.pod) == (namespace, name) for each in allocations):
                    return
            except LedgerError as error:
                problem = str(error)
            if state is None:
                try:
                    self._look_up(namespace, name, api, until)
                    if self._named(namespace, name) is not None:
                        continue
                except ApiError as error:
                    if error.status != 404:  # a static pod's is made when that starts
                        problem = str(error)
            if time.monotonic() >= until:
                raise XpuError(problem)
            time.sleep(min(pause, max(until - time.monotonic(), 0)))
            pause = min(2 * pause, 2.0)

    def ensure_all(self, listed: Callable[[float], Iterable[PodOnNode]], until: float) -> None:
        """The same for all pods of the node, for a start whose pod is unknown; `listed` gets the number of
        seconds that it may take. A refused pod is no error: the hook refuses its container (except for one
        without our RuntimeClass, whose event has the reason). XpuError if the pods are not known."""
        while True:
            try:
                for pod in self._listed(listed, until):
                    self._put_read(pod)
                self.look_again()
                self.reconcile(self._ledger.read(_left(until)).allocations, until)
                return
            except XpuError:
                if time.monotonic() >= until:
                    raise
            time.sleep(0.25)

    def _listed(self, listed: Callable[[float], Iterable[PodOnNode]], until: float) -> Iterable[PodOnNode]:
        """None if the API server does not answer, and all known pods have their allocations: the known ones
        stay as they are, and the hook refuses an unknown one."""
        try:
            return listed(_left(until))
        except ApiError:
            with self._lock:
                if not self.is_listed or any(each.lacks for each in self._states.values()):
                    raise
            return ()

    def _named(self, namespace: str, name: str) -> _State | None:
        with self._lock:
            found = [
                each
                for each in self._states.values()
                if (each.pod.namespace, each.pod.name) == (namespace, name)
            ]
        # Another pod may already have the name of one that is about to go.
        return max(found, key=lambda each: each.pod.created, default=None)

    def _look_up(self, namespace: str, name: str, api: Api, until: float) -> None:
        left = max(min(until - time.monotonic(), 5.0), 0.1)
        pod = self.keep(api.get(f"/api/v1/namespaces/{namespace}/pods/{name}", seconds=left))
        if pod is not None and pod.node == self._node:
            self._put_read(pod)

    def keep(self, item: Mapping[str, Any]) -> PodOnNode | None:
        """The needed part of a pod of the API; None for one that asks for no device."""
        return PodOnNode.of(item, self._resources)

    # For others

    def requesting(self) -> dict[tuple[str, str], PodOnNode]:
        """The pods that ask for devices and have not ended, by namespace and name."""
        with self._lock:
            return {(each.pod.namespace, each.pod.name): each.pod for each in self._states.values()}

    def waiting(self, resource: str, allocated: Mapping[tuple[str, str], int]) -> Waiting:
        """Pods' requests for a resource beyond the kubelet's report of given IDs (`allocated`, by namespace
        and name). The kubelet never reports an init container's surplus over the others: the pod has it for
        its whole life, and kube-scheduler and the ledger count it so."""
        units = not_allocated = 0
        with self._lock:
            for state in self._states.values():
                asked = state.pod.units.get(resource, 0)
                lacks = max(asked - allocated.get((state.pod.namespace, state.pod.name), 0), 0)
                units += lacks
                not_allocated += 0 if state.allocation is not None else lacks
        return Waiting(units, not_allocated)

    def are_new(self, allocated: Collection[tuple[str, str]]) -> bool:
        """Whether a recent pod has no IDs of the kubelet yet (`allocated`: the pods with IDs)."""
        since = time.monotonic() - _NEW_S
        with self._lock:
            return any(
                state.known_since >= since
                and state.pod.is_offered
                and (state.pod.namespace, state.pod.name) not in allocated
                for state in self._states.values()
            )

    def counts(self) -> dict[str, int]:
        """How many pods have an allocation, and how many were refused or are waiting for one."""
        with self._lock:
            states = [each for each in self._states.values() if each.lacks or each.allocation is not None]
        reserved = sum(each.allocation is not None for each in states)
        refused = sum(bool(each.refused) and each.allocation is None for each in states)
        return {"reserved": reserved, "refused": refused, "waiting": len(states) - reserved - refused}


def _left(until: float | None) -> float:
    """Seconds that a turn with the ledger, or an answer, may take."""
    return _LEDGER_S if until is None else max(min(until - time.monotonic(), _LEDGER_S), 0.1)
