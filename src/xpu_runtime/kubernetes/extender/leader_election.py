"""Leader election of replicas by a Lease (coordination.k8s.io/v1), as in client-go: the holder decides.

A replica that cannot renew stops deciding ten seconds after the last renewal that it knows of, and another
takes over fifteen after it has seen the Lease change last, by its own clock: clocks are never compared. A
bind that was begun in time ends in between (binding.BIND_S). A new leader reads the other's bindings before
it decides, as its watch may be behind, or broken. A replica that does not know enough to decide takes no
Lease, and gives its own up.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.kubernetes.threads import Threads
from xpu_runtime.value import Value

#: The leader's URL, for the replicas that do not lead.
URL = "yoyoworks.com/xpu-extender"
#: Seconds for each request.
_REQUEST_S = 3.0
#: Seconds between two looks, at the start, at whether enough is known.
_LOOK_S = 0.1


class Times(Value):
    """Seconds; the values of kube-scheduler's own election."""

    #: After which another takes over.
    lease: int = 15
    #: In which the leader must have renewed; and BIND_S are less than `lease`.
    renew: float = 10.0
    #: Between two tries.
    retry: float = 2.0
    #: Until the new leader reads earlier decisions.
    wait: float = 1.0


class LeaderElection:
    """Tries to lead, from `start` to `stop`."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        url: str,
        log: Callable[[str], None],
        times: Times = Times(),  # noqa: B008 - a value
    ) -> None:
        """`identity` is that of no other process that runs; `url` is where other replicas reach this one."""
        self._api = api
        words = (quote(each, safe="") for each in (namespace, name))
        self._path = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}".format(*words)
        self._name = name
        self._identity, self._url = identity, url
        self._log = log
        self._times = times
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        #: Between which times of time.monotonic it leads.
        self._since, self._until = 0.0, 0.0
        #: Changes with each Lease that is got, or lost.
        self._term = 0
        #: The holder as it was seen last, and when that was seen first.
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = time.monotonic()
        self._leader_url = ""
        self._problem = ""

    def start(self, threads: Threads, may_lead: Callable[[], bool], read: Callable[[], object]) -> None:
        """Begins. `may_lead`: whether the replica knows enough to decide; `read` reads another's decisions
        (ApiError)."""
        self._threads.append(threads.start(functools.partial(self._run, threads, may_lead, read), "lease"))

    def stop(self) -> None:
        """Gives the Lease back, so that another need not wait. Work begun as a leader must have ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_REQUEST_S)
        was_ours, self._until = time.monotonic() < self._until, 0.0
        if was_ours:
            try:
                lease = self._api.get(self._path, seconds=_REQUEST_S)
                if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                    self._put(lease, "")
            except ApiError as error:
                self._log(f"the lease {self._name} could not be given back: {error}")

    @property
    def is_leading(self) -> bool:
        """Whether this replica may decide now."""
        return self._since <= time.monotonic() < self._until

    @property
    def leader_url(self) -> str:
        """The URL of the leader, if another replica leads; "": not known."""
        return self._leader_url

    def _run(self, threads: Threads, may_lead: Callable[[], bool], read: Callable[[], object]) -> None:
        while not may_lead() and not self._stop.wait(_LOOK_S):
            pass
        while not self._stop.is_set():
            try:
                if self._try(may_lead()):
                    # In a thread of its own: all pods may take longer to read than the Lease may wait.
                    threads.start(functools.partial(self._begin, self._term, read), "lease begins")
            except ApiError as error:
                # The extender may not create it: that would be a right to create any Lease of the namespace.
                todo = "it is tried again"
                if error.status == 404:
                    todo = "apply the manifests again, it is one of them (Argo CD leaves Leases out)"
                self._tell(f"the lease {self._name} cannot be taken: {error}; {todo}")
            self._stop.wait(self._times.retry)

    def _begin(self, term: int, read: Callable[[], object]) -> None:
        """Reads earlier decisions, and decides from then on."""
        self._stop.wait(self._times.wait)
        said = ""
        while not self._stop.is_set() and term == self._term:
            try:
                read()
            except ApiError as error:
                if str(error) != said:
                    self._log(f"the earlier bindings cannot be read: {error}; it is tried again")
                said = str(error)
                self._stop.wait(self._times.retry)
                continue
            with self._lock:
                if term == self._term:
                    self._since = time.monotonic()
            self._log(f"this replica leads now ({self._identity})")
            return

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._log(problem)
        self._problem = problem

    def _try(self, may_lead: bool) -> bool:
        """Whether it has the Lease now, and had it not before. ApiError."""
        began = time.monotonic()
        lease = self._api.get(self._path, seconds=_REQUEST_S)
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        seen = holder, str(spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, time.monotonic()
        is_ours = holder == self._identity
        lasts_s = float(spec.get("leaseDurationSeconds") or self._times.lease)
        is_free = not holder or began - self._seen_at >= lasts_s
        if (is_ours or is_free) and not may_lead:
            self._tell("this replica does not see the cluster's changes: it does not lead")
            return False
        if is_ours:
            self._put(lease, self._identity)
            # The Lease is of an earlier process if this one has not led yet. Or a request whose answer was
            # lost has got it, after another replica has led.
            return self._leads(began, is_new=began >= self._until)
        if is_free:
            try:
                self._put(lease, self._identity)
            except ApiError as error:
                if error.status == 409:
                    return False  # another was faster
                raise
            return self._leads(began, is_new=True)
        if self._until:
            self._log(f"{holder} leads now")
        with self._lock:
            self._since = self._until = 0.0
            self._term += 1
        annotations = (lease.get("metadata") or {}).get("annotations") or {}
        self._leader_url = str(annotations.get(URL) or "")
        self._problem = ""
        return False

    def _leads(self, began: float, *, is_new: bool) -> bool:
        """The Lease is ours, by requests that were begun at that time; `is_new`, as is returned: it was not
        before."""
        if is_new:
            with self._lock:
                self._since = float("inf")
                self._term += 1
        self._leader_url = self._problem = ""
        self._until = began + self._times.renew
        return is_new

    def _put(self, lease: dict[str, Any], holder: str) -> None:
        """ApiError with status 409 if the Lease has changed meanwhile."""
        self._api.put(self._path, self._lease(lease, holder), seconds=_REQUEST_S)

    def _lease(self, old: dict[str, Any], holder: str) -> dict[str, Any]:
        spec, metadata = dict(old.get("spec") or {}), dict(old["metadata"])
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != holder:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + ("renewTime" in spec)
            spec["acquireTime"] = now
        spec.update(holderIdentity=holder, leaseDurationSeconds=self._times.lease, renewTime=now)
        metadata["annotations"] = {**(metadata.get("annotations") or {}), URL: self._url if holder else ""}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
