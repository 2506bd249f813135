"""Which of several replicas decides: the one that holds a Lease (coordination.k8s.io/v1), as client-go
elects.

A replica that cannot renew stops deciding ten seconds after the last renewal that it knows of, and another
takes over fifteen after it has seen the Lease change last, by its own clock: clocks are never compared. A
bind that was begun in time has its end in between (binding.BIND_S). Who takes over waits for a moment, so
that the watch brings what the other has bound. What a leader does is not known here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.value import Value

#: The leader's URL, for the replicas that do not lead.
URL = "yoyoworks.com/xpu-extender"
#: Seconds for each request.
_REQUEST_S = 3.0


class Times(Value):
    """Seconds; those of kube-scheduler's own election."""

    #: After which another takes over.
    lease: int = 15
    #: In which the leader must have renewed; and BIND_S are less than `lease`.
    renew: float = 10.0
    #: Between two tries.
    retry: float = 2.0
    #: Before who takes over decides.
    wait: float = 1.0


class Leadership:
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
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
        self._namespace, self._name = namespace, name
        self._identity, self._url = identity, url
        self._log = log
        self._times = times
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        #: Between which times of time.monotonic it leads.
        self._since, self._until = 0.0, 0.0
        #: The holder as it was seen last, and when that was seen first.
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = time.monotonic()
        self._leader_url = ""
        self._problem = ""

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Gives the Lease back, so that another need not wait. What was begun as a leader must have ended."""
        self._stop.set()
        self._thread.join(_REQUEST_S)
        was_leading, self._until = self.is_leading, 0.0
        if was_leading:
            try:
                lease = self._api.get(f"{self._path}/{self._name}", seconds=_REQUEST_S)
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
        """Where the leader is reached, where it is another; "": not known."""
        return self._leader_url

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._try()
                self._problem = ""
            except ApiError as error:
                if str(error) != self._problem:
                    self._log(f"the lease {self._name} cannot be had: {error}; it is tried again")
                self._problem = str(error)
            self._stop.wait(self._times.retry)

    def _try(self) -> None:
        began = time.monotonic()
        try:
            lease = self._api.get(f"{self._path}/{self._name}", seconds=_REQUEST_S)
        except ApiError as error:
            if error.status != 404:
                raise
            self._api.post(self._path, self._lease({}, self._identity), seconds=_REQUEST_S)
            self._leads(began, is_new=True)
            return
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        seen = holder, str(spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, time.monotonic()
        if holder == self._identity:
            self._put(lease, self._identity)
            # Of a process before this one, where it has not led yet.
            self._leads(began, is_new=not self._until)
        elif not holder or began - self._seen_at >= float(
            spec.get("leaseDurationSeconds") or self._times.lease
        ):
            try:
                self._put(lease, self._identity)
            except ApiError as error:
                if error.status == 409:
                    return  # another was faster
                raise
            self._leads(began, is_new=True)
        else:
            if self._until:
                self._log(f"{holder} leads now")
            self._since = self._until = 0.0
            annotations = (lease.get("metadata") or {}).get("annotations") or {}
            self._leader_url = str(annotations.get(URL) or "")

    def _leads(self, began: float, *, is_new: bool) -> None:
        """The Lease is ours, by requests that were begun at that time."""
        if is_new:
            self._since = began + self._times.wait
            self._log(f"this replica leads now ({self._identity})")
        self._leader_url = ""
        self._until = began + self._times.renew

    def _put(self, lease: dict[str, Any], holder: str) -> None:
        """ApiError with status 409 where the Lease has changed meanwhile."""
        path = f"{self._path}/{self._name}"
        self._api.put(path, self._lease(lease, holder), seconds=_REQUEST_S)

    def _lease(self, old: dict[str, Any], holder: str) -> dict[str, Any]:
        spec, metadata = dict(old.get("spec") or {}), dict(old.get("metadata") or {})
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != holder:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(old)
            spec["acquireTime"] = now
        spec.update(holderIdentity=holder, leaseDurationSeconds=self._times.lease, renewTime=now)
        metadata.update(name=self._name, namespace=self._namespace)
        metadata["annotations"] = {**(metadata.get("annotations") or {}), URL: self._url if holder else ""}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }


class Alone:
    """In the place of Leadership where there is one replica."""

    is_leading = True
    leader_url = ""

    def start(self) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to give back."""
