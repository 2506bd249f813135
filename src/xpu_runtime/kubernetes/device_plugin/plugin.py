"""The device plugin as a whole: its parts, the threads that they run in, and its end.

Threads, so that no part waits for another that can hang: registration with the kubelet (the main one), the
offer, the pods' watch, reservations, reports to the API server, the kubelet's calls, metrics.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable

from xpu_runtime.config.defaults import Config
from xpu_runtime.config.load import load
from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.device_plugin import kubelet, metrics
from xpu_runtime.kubernetes.device_plugin.allocated_ids import PodResourcesReader
from xpu_runtime.kubernetes.device_plugin.calls import KubeletCalls
from xpu_runtime.kubernetes.device_plugin.driver import DriverPoller
from xpu_runtime.kubernetes.device_plugin.offer import by_state
from xpu_runtime.kubernetes.device_plugin.offering import Offering
from xpu_runtime.kubernetes.device_plugin.pod import PodEvent, PodOnNode, resources_of
from xpu_runtime.kubernetes.device_plugin.pods import Pods
from xpu_runtime.kubernetes.device_plugin.reports import Reports
from xpu_runtime.kubernetes.device_plugin.server import Served, pool
from xpu_runtime.kubernetes.device_plugin.shared_ledger import SharedLedger
from xpu_runtime.kubernetes.outages import Outages
from xpu_runtime.kubernetes.threads import Threads
from xpu_runtime.value import Value

#: Seconds between two looks at the kubelet's folder, and at what is to be reserved.
_KUBELET_S, _RECONCILE_S = 1.0, 1.0
#: And between two glances at whether it is the same kubelet.
_GLANCE_S = 0.2
#: Seconds until reservations are checked though nothing has changed: unreported pods then lose theirs.
_RECONCILE_ANYWAY_S = 10.0
#: A thread that has not come round for this many seconds hangs. This holds for those that look again each
#: second: the pods' watch and the reports may wait for long, and each of their requests has a timeout.
_HANGS_S = 120.0
_PODS = "/api/v1/pods"

#: Between two looks at whether the drivers have told for the first time: the kubelet fails each pod that
#: comes before it has taken the plugin.
_FIRST_LOOK_S = 0.05
#: Looks between two times that unused memory is given back.
_TRIM_EVERY = 300
#: For how long one thread may keep the kubelet's call in another waiting; Python's own is 5 ms.
_SWITCH_S = 0.0005
_M_ARENA_MAX = -8  # malloc.h


class Settings(Value):
    node_name: str
    #: The kubelet's folder of plugins' sockets, and the socket of its PodResources.
    plugins: str = "/var/lib/kubelet/device-plugins"
    pod_resources: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    #: Seconds between two questions to the drivers, and for an answer.
    health_s: float = 15.0
    health_timeout_s: float = 20.0
    #: ADDRESS:PORT; None: no metrics are served.
    metrics: str | None = None


class Plugin:
    """Made once; `run` is its life."""

    def __init__(
        self,
        settings: Settings,
        api: Api,
        log: Callable[[str], None],
        is_default: Callable[[], bool | None] = lambda: None,
        is_sole: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_default`: whether our runtime starts a pod that names no RuntimeClass; None: not known.
        `is_sole`: whether no other plugin can run on the node: it ends where one can. ConfigError."""
        self._settings = settings
        self._is_sole = is_sole
        self._api = api
        self._log = log
        self._last = load()
        self._told = ""
        self._api_problem = "not asked yet"
        self._outages = Outages(log, lambda: log("the API server answers"), self._api_problem)
        self._stop = threading.Event()
        self._own_threads = Threads("the device plugin", self._stop.set)
        self._is_due = threading.Event()
        #: The last look at the kubelet's folder, and at the reservations (time.monotonic).
        self._registered_at = self._reconciled_at = time.monotonic()
        self._resources = resources = resources_of(self._last)
        self._ledger = SharedLedger()
        self._driver = DriverPoller(settings.health_s, settings.health_timeout_s)
        self._pod_resources = PodResourcesReader(settings.pod_resources, resources.names)
        self._pods = Pods(
            settings.node_name,
            resources,
            self._ledger,
            self._config,
            lambda: self._offering.inventory,
            is_default,
            self._tell,
        )
        self._reports = Reports(api, settings.node_name, log)
        served = {name: Served() for name in resources.names}
        self._offering = Offering(
            resources,
            self._config,
            self._ledger,
            self._driver,
            self._pod_resources,
            self._pods,
            served,
            self._reports.write_node,
            log,
        )
        calls = KubeletCalls(self._pods, self._pod_resources, api, self._listed, self._offering.wake)
        self._metrics = metrics.Metrics(self._snapshot)
        self._threads = pool()
        self._registrations = kubelet.Registrations(
            settings.plugins,
            served,
            calls,
            self._metrics.observe,
            self._threads,
            log,
            lambda: self._reports.allocatable,
        )

    def run(self) -> None:
        """Runs until `stop`; XpuError if it cannot go on."""
        server = None
        if self._settings.metrics is not None:
            server = metrics.server(self._settings.metrics, self._metrics, self.problem)
            self._own_threads.start(server.run, "metrics")
        kubelet.remove_sockets(self._settings.plugins)
        _keep_small()
        sys.setswitchinterval(_SWITCH_S)
        for run in (self._look, self._reconcile_pods, self._watch, self._reports.run):
            self._own_threads.start(run, run.__name__)
        looks = 0
        try:
            while not self._stop.is_set():
                if not self._is_sole():
                    what = "the lock of the node's one device plugin was removed: a second could run"
                    raise XpuError(what, "start it again (a DaemonSet does this by itself)")
                # The plugin registers only when the offer is known: the kubelet would take the devices for
                # removed.
                is_known, is_early = self._offering.inventory is not None, self._offering.is_about_to_tell
                if is_known:
                    self._registrations.look()
                    looks += 1
                self._registered_at = time.monotonic()
                if is_known:
                    self._wait()
                else:
                    self._stop.wait(_FIRST_LOOK_S if is_early else _KUBELET_S)
                if looks % _TRIM_EVERY == 3:
                    _give_back()
        finally:
            self.stop()
            self._registrations.close()
            self._driver.close()
            if server is not None:
                server.stop()
        if self._own_threads.failed is not None:
            raise self._own_threads.failed

    def _wait(self) -> None:
        """Before the next look at the kubelet's folder; no longer where another kubelet has started: that
        fails each pod for which it has no plugin yet."""
        until = time.monotonic() + _KUBELET_S
        while (left := until - time.monotonic()) > 0 and not self._registrations.has_another_kubelet:
            if self._stop.wait(min(left, _GLANCE_S)):
                return

    def stop(self) -> None:
        """Can be called by a signal's handler."""
        self._stop.set()
        self._is_due.set()
        self._offering.wake()
        self._reports.stop()

    def problem(self) -> str:
        """Why it is not well; "": it is."""
        since = time.monotonic() - _HANGS_S
        rounds = {
            "what is offered": self._offering.looked_at,
            "what is reserved": self._reconciled_at,
            "the kubelet's folder": self._registered_at,
        }
        hang = [what for what, looked_at in rounds.items() if looked_at < since]
        return f"without an answer for too long: {', '.join(hang)}" if hang else ""

    def _look(self) -> None:
        self._offering.run(self._stop)

    def _watch(self) -> None:
        selector = f"spec.nodeName={self._settings.node_name}"
        for change in self._api.follow(
            _PODS, self._pods.keep, self._stop, self._api_told, fieldSelector=selector
        ):
            self._pods.take(change)
            self._is_due.set()
            self._offering.wake()

    def _api_told(self, problem: str) -> None:
        self._api_problem = problem
        self._outages.told(problem)

    def _reconcile_pods(self) -> None:
        seen: tuple[int, ...] = ()
        done_at, problem = float("-inf"), ""
        while not self._stop.is_set():
            self._reconciled_at = time.monotonic()
            was_told = self._is_due.wait(_RECONCILE_S)
            self._is_due.clear()
            stamp, now = self._ledger.stamp(), time.monotonic()
            has_changed = stamp != seen or not stamp
            if has_changed:
                self._pods.look_again()  # somebody may have given back what they need
            is_time = now - done_at >= _RECONCILE_ANYWAY_S
            if not (was_told or is_time or has_changed or self._pods.is_due()):
                continue
            try:
                self._pods.reconcile(self._ledger.read(_RECONCILE_S).allocations)
                # The stamp from before the reading: a write in between is seen the next time.
                seen, done_at, problem = stamp, now, ""
            except (XpuError, OSError) as error:
                if str(error) != problem:
                    problem = str(error)
                    self._log(problem)
                self._stop.wait(_RECONCILE_S)

    def _listed(self, seconds: float) -> list[PodOnNode]:
        selector = f"spec.nodeName={self._settings.node_name}"
        pods, _ = self._api.list(_PODS, self._pods.keep, seconds=seconds, fieldSelector=selector)
        return pods

    def _tell(self, told: PodEvent) -> None:
        self._log(f"pod {told.pod.namespace}/{told.pod.name}: {told.message}")
        self._reports.tell(told)

    def _config(self) -> Config:
        """As it is now; where the file is wrong, as it was."""
        try:
            self._last, problem = load(), ""
        except ConfigError as error:
            problem = str(error)
        if problem != self._told:
            self._told = problem
            self._log(problem or "the configuration is valid again")
        return self._last

    def _snapshot(self) -> metrics.Snapshot:
        allocated = self._pod_resources.last
        resources = {}
        for name, offer in list(self._offering.offers.items()):
            ids = allocated.ids(name)
            resources[name] = by_state(name, offer, self._offering.cards, self._resources)
            resources[name].update({} if ids is None else {"given": len(ids)})
        return metrics.Snapshot(
            resources,
            self._pods.counts(),
            {each.uuid: (not each.fault, not (each.fault or each.withheld)) for each in self._offering.cards},
            self._registrations.registered,
            self._registrations.is_registered,
            not self._api_problem,
            self._offering.ledger_answers,
            self._offering.drivers_answer,
        )


def _keep_small() -> None:
    """Keeps memory small: glibc gives each thread an arena of its own, which grows to the thread's highest
    use."""
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except AttributeError:
        pass  # another C library


def _give_back() -> None:
    """Returns free memory to the system: most of it is from the start, when modules were loaded."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass
