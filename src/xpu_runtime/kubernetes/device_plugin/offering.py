"""Keeps the offer up to date: looks at drivers, marks, ledger and kubelet each second.

One thread. Each look is bounded, and if one of the four does not answer, its last answer still holds (for a
driver: all of its devices are unhealthy). The rest of the plugin reads the results.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator

from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes.device_plugin import node
from xpu_runtime.kubernetes.device_plugin.allocated_ids import ContainerName, PodResourcesReader
from xpu_runtime.kubernetes.device_plugin.cards import bare_cards, cards, strengths, with_known
from xpu_runtime.kubernetes.device_plugin.driver import DriverPoller
from xpu_runtime.kubernetes.device_plugin.kubelet import KubeletError
from xpu_runtime.kubernetes.device_plugin.offer import Card, Offer, check_size, offered
from xpu_runtime.kubernetes.device_plugin.pods import Pods
from xpu_runtime.kubernetes.device_plugin.server import Served
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger, Taken
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.request.assignment import AssignmentError, read_keys
from xpu_runtime.vendors.inventory import Inventory

#: Seconds: between two looks; for the ledger; until the kubelet is asked again though nothing has happened.
_LOOK_S, _LEDGER_S, _KUBELET_S = 1.0, 1.0, 10.0
#: Between two looks until the drivers have told for the first time, and nothing is offered before.
_FIRST_LOOK_S = 0.05
#: Seconds from a call of the kubelet until PodResources shows its result.
_SETTLED_S = 0.2


class Offering:
    """Passes the offer to `served`, and the node's labels and annotation to `write_node`."""

    def __init__(
        self,
        resources: Resources,
        config: Callable[[], Config],
        ledger: SharedLedger,
        driver: DriverPoller,
        pod_resources: PodResourcesReader,
        pods: Pods,
        served: dict[str, Served],
        write_node: Callable[[dict[str, object]], None],
        log: Callable[[str], None],
    ) -> None:
        self._resources = resources
        self._config = config
        self._ledger = ledger
        self._driver = driver
        self._pod_resources = pod_resources
        self._pods = pods
        self._served = served
        self._write_node = write_node
        self._log = log
        self._wake = threading.Event()
        self._seen: tuple[int, ...] | None = None
        self._asked_at = float("-inf")
        self._problems: dict[str, str] = {}
        self._strengths: list[tuple[str, str]] = []
        #: The input of each resource's offer.
        self._offered_of: dict[str, object] = {}
        #: The last results.
        self.inventory: Inventory | None = None
        self.cards: list[Card] = []
        self.taken = Taken()
        self.offers: dict[str, Offer] = {}
        self.ledger_answers = False
        #: When the last look ended (time.monotonic).
        self.looked_at = time.monotonic()

    @property
    def is_about_to_tell(self) -> bool:
        """Whether the drivers have been asked for the first time, and have not answered yet."""
        return self.inventory is None and not self._driver.problem

    @property
    def drivers_answer(self) -> bool:
        return self.inventory is not None and not self._driver.problem

    def wake(self) -> None:
        """Looks again soon, because something that the kubelet knows has changed."""
        self._asked_at = float("-inf")
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Runs until `stop`; ConfigError if the devices cannot be offered."""
        while not stop.is_set():
            self.look()
            if self._wake.wait(_FIRST_LOOK_S if self.is_about_to_tell else _LOOK_S):
                self._wake.clear()
                stop.wait(_SETTLED_S)

    def look(self) -> None:
        self._look_at_drivers()
        if self.inventory is not None:
            self._look_at_ledger()
            self._look_at_kubelet()
            config = self._config()
            self.cards = cards(self.inventory, self._driver.problem, config, self.taken)
            self._offer()
            value = node.annotation(
                self.inventory,
                self.cards,
                config.kubernetes_placement,
                self.taken.allocations,
                self._strengths,
                config.enforcement_allow_unenforced,
                self._resources,
                key_ids(config.kubernetes_keys),
            )
            self._write_node(node.patch(value, node.labels(self.inventory, self._strengths)))
        self.looked_at = time.monotonic()

    def _look_at_drivers(self) -> None:
        if not self._driver.step():
            return
        told = self._driver.inventory
        self._tell("drivers", self._driver.problem or "; ".join(told.problems if told is not None else ()))
        if told is None or told == self.inventory:
            return
        self.inventory = with_known(self.inventory, told)
        try:
            self._strengths = strengths(self.inventory)
            self._tell("limits", "")
        except XpuError as error:  # a backend that cannot be loaded: the node has no label of it
            self._strengths = []
            self._tell("limits", str(error))
        check_size(bare_cards(self.inventory, self._config()), self._resources)
        self._pods.look_again()

    def _look_at_ledger(self) -> None:
        stamp = self._ledger.stamp()
        if stamp == self._seen and stamp:
            return
        try:
            self.taken = self._ledger.read(_LEDGER_S)
            self._seen = stamp
            self.ledger_answers = True
            self._tell("ledger", "")
        except XpuError as error:
            self.ledger_answers = False
            self._tell("ledger", str(error))

    def _look_at_kubelet(self) -> None:
        have = {pod for each in self._resources.names for pod in self._pod_resources.last.by_pod(each)}
        now = time.monotonic()
        if not self._pods.are_new(have) and now - self._asked_at < _KUBELET_S:
            return
        self._asked_at = now
        try:
            self._pod_resources.ask()
            self._tell("kubelet", "")
        except KubeletError as error:
            self._tell("kubelet", str(error))

    def _offer(self) -> None:
        ids, requesting = self._pod_resources.last, self._pods.requesting()
        # Before the API has answered no pod is known, and all IDs in use count.
        active = requesting if self._pods.is_listed else None
        faulty = {card.uuid for card in self.cards if card.fault}
        sick = [name for each in self.taken.allocations.values() for name in _containers_on(faulty, each)]
        for resource, served in self._served.items():
            waiting = self._pods.waiting(resource, ids.by_pod(resource))
            seen = self.cards, ids.ids(resource, active), waiting, ids.ids_of(resource, sick)
            if self._offered_of.get(resource) == seen:
                continue
            self._offered_of[resource] = seen
            offer = offered(resource, self.cards, self._resources, *seen[1:])
            self.offers[resource] = offer
            if served.tell(offer):
                self._log(f"{resource}: {len(offer.healthy)} of {len(offer.ids)} available")

    def _tell(self, part: str, problem: str) -> None:
        if problem != self._problems.get(part, ""):
            self._problems[part] = problem
            self._log(problem or f"{part}: it works again")


def _containers_on(devices: Collection[str], allocation: Allocation) -> Iterator[ContainerName]:
    for group in (allocation.init, allocation.sidecars, allocation.containers):
        for name, shares in group.items():
            if any(share.device_uuid in devices for share in shares):
                yield allocation.namespace, allocation.pod, name


def key_ids(path: str) -> list[str]:
    """The ids of the keys in the file; none where it cannot be used: a pod's refusal says why."""
    try:
        return list(read_keys(path))
    except AssignmentError:
        return []
