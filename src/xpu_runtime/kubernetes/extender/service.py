"""The extender as it runs: state, election, verbs and pages, put together, and their start and end.

A replica that does not lead passes all that it is asked on to the one that does, so that it does not matter
which of them kube-scheduler's connection ends at. Where the leader cannot be reached, filter and prioritize
are answered here: they promise nothing; a bind is refused, and kube-scheduler tries the pod again.
"""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from xpu_runtime.errors import ConfigError, XpuError
from xpu_runtime.http_message import JSON, METRICS, Answer, Request, text
from xpu_runtime.http_server import Listener, Server, threaded
from xpu_runtime.kubernetes.api import Api
from xpu_runtime.kubernetes.extender.binding import Binder
from xpu_runtime.kubernetes.extender.certificate import Certificate
from xpu_runtime.kubernetes.extender.cluster import Cluster
from xpu_runtime.kubernetes.extender.forwarding import PASSED_ON, Forwarder, LeaderUnreachable
from xpu_runtime.kubernetes.extender.in_flight import InFlight
from xpu_runtime.kubernetes.extender.informer import Informer
from xpu_runtime.kubernetes.extender.leader_election import LeaderElection
from xpu_runtime.kubernetes.extender.metrics import Metrics
from xpu_runtime.kubernetes.extender.verbs import Verbs, WrongRequest, encoded, without_percent
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.kubernetes.threads import Threads
from xpu_runtime.linux import address

#: Seconds that requests under way have when it is to end; a Pod has 30 by default.
_END_S = 15.0
_EXPIRE_S = 1.0
#: Seconds that a question waits for a leader or for the first reading of nodes and pods. An error is
#: expensive: kube-scheduler tries a pod again only when something changes in the cluster, or after minutes.
_PATIENCE_S, _LOOK_S = 4.0, 0.1


#: Connections of kube-scheduler's at once, and seconds for the whole of a request.
_MOST_CONNECTIONS, _REQUEST_S = 256, 10.0
#: Seconds that a connection may lie idle. Go's client gives one up after 90: it must not use one at the
#: moment at which it is closed here, as it does not repeat a POST.
_IDLE_S = 150.0
#: The length of a request. 10,000 names take half a megabyte, 2.6 at their longest; whole nodes, which are
#: sent without nodeCacheCapable, take 10 to 40 kB each. In memory nodes take 5 times their size, and the
#: worst JSON 26 times: with the data of the cluster (120 MiB) this must stay below the manifests' limit (512
#: MiB).
_LONGEST_BODY = 8 << 20


def _bound(where: tuple[str, int]) -> socket.socket:
    try:
        return address.bound(*where)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None


def _is_refused(value: Any) -> bool:
    """Whether a verb's answer refuses everything: in a busy cluster some node fails nearly each filter."""
    if not isinstance(value, dict):
        return False
    fitting = value.get("NodeNames") or (value.get("Nodes") or {}).get("items")
    return bool(value.get("Error") or (value.get("FailedNodes") and not fitting))


class Extender:
    """One replica."""

    def __init__(
        self,
        api: Api,
        resources: Resources,
        keys: Callable[[], Mapping[str, bytes]],
        policy: str,
        log: Callable[[str], None],
        election: LeaderElection,
        certificate: Certificate | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """`end` is called when it cannot go on: it is to be stopped then, and `failed` says why."""
        self._log = log
        self._election = election
        self._cluster = Cluster(resources, keys, policy, time.monotonic)
        self._informer = Informer(api, self._cluster, log)
        self._metrics = Metrics(self._cluster.counts, self._state)
        in_flight = InFlight()
        binder = Binder(
            api, self._cluster, keys, lambda: election.is_leading, self._metrics.bound, in_flight.end
        )
        verbs = Verbs(self._cluster, resources, binder, in_flight, lambda: election.is_leading)
        #: By path: the handler, and the form of an error for kube-scheduler.
        self._verbs: dict[str, tuple[Callable[[Any], Any], Callable[[str], Any]]] = {
            "/filter": (verbs.filter, lambda text: {"Error": text}),
            # There is no Error in a list of scores: without any, the other priorities decide.
            "/prioritize": (verbs.prioritize, lambda text: []),
            # This answer has no Error either: no node is offered, and no pod ends.
            "/preempt": (verbs.preempt, lambda text: {"NodeNameToMetaVictims": {}}),
            "/bind": (verbs.bind, lambda text: {"Error": text}),
        }
        self._forwarder = Forwarder(certificate.files if certificate else None)
        self._certificate = certificate
        self._server = Server()
        self._ended = threading.Event()
        self._threads = Threads("xpu's extender", end)
        #: The leader that could not be asked last, and why.
        self._unreachable = "", ""

    def start(self, listen: tuple[str, int], status: tuple[str, int] | None) -> list[int]:
        """Serves kube-scheduler at `listen` and probes and Prometheus at `status`; the ports. ConfigError."""
        listeners = [
            Listener(
                _bound(listen),
                threaded(self._answer, _MOST_CONNECTIONS),
                connections=_MOST_CONNECTIONS,
                request_s=_REQUEST_S,
                idle_s=_IDLE_S,
                longest_body=_LONGEST_BODY,
                advice="; is kube-scheduler told nodeCacheCapable: true?",
                tls=self._certificate,
            )
        ]
        if status is not None:
            listeners.append(Listener(_bound(status), threaded(self._page)))
        for listener in listeners:
            self._server.listen(listener)
        self._informer.start(self._threads)
        self._election.start(self._threads, lambda: self._informer.is_well, self._informer.read_pods)
        self._threads.start(self._expire, "expire")
        self._threads.start(self._server.run, "HTTP")
        return self._server.ports

    def stop(self) -> None:
        """Ends in order: open questions are answered first, then another replica may lead."""
        self._ended.set()
        self._server.stop(_END_S)
        self._election.stop()
        self._informer.stop()

    @property
    def is_ready(self) -> bool:
        """Whether it can answer, itself or through the replica that leads."""
        return self.failed is None and self._informer.is_well and self._knows_leader

    @property
    def failed(self) -> XpuError | None:
        """Why it cannot go on; None: it can."""
        return self._threads.failed

    @property
    def _knows_leader(self) -> bool:
        return self._election.is_leading or bool(self._election.leader_url)

    def _answer(self, request: Request) -> Answer:
        path, body = request.path, request.body
        is_passed_on = PASSED_ON.lower() in request.fields
        verb = self._verbs.get(path)
        if verb is None or not body:
            return text(404, "there are POST /filter, /prioritize, /preempt and /bind")
        began = time.monotonic()
        self._informer.wait(_PATIENCE_S)
        while not is_passed_on and not self._election.is_leading:
            answer = self._by_leader(path, body)
            if answer is not None:
                return Answer(200, JSON, answer)
            # A filter's answer promises nothing; only the leader binds.
            if path != "/bind" or time.monotonic() - began >= _PATIENCE_S or self._ended.wait(_LOOK_S):
                break
        if is_passed_on and path == "/bind" and not self._election.is_leading:
            # It did when it was last heard of, as one whose container has been started again: an answer would
            # be the last word, and the replica that passed this on can wait.
            return text(503, "this replica does not lead")
        result, value = self._decide(path, *verb, body)
        content = encoded(value)
        self._metrics.asked(path[1:], result, time.monotonic() - began)
        return Answer(200, JSON, content)

    def _by_leader(self, path: str, body: bytes) -> bytes | None:
        """The leader's answer; None if there is no leader to ask."""
        url = self._election.leader_url
        if not url:
            return None
        try:
            answer = self._forwarder.ask(url, path, body)
        except LeaderUnreachable as error:
            self._metrics.passed_on(is_answered=False)
            if (url, str(error)) != self._unreachable:
                self._log(f"the replica that leads cannot be asked ({url}): {error}")
            self._unreachable = url, str(error)
            return None
        self._metrics.passed_on(is_answered=True)
        self._unreachable = "", ""
        return answer

    def _decide(
        self, path: str, verb: Callable[[Any], Any], refused: Callable[[str], Any], body: bytes
    ) -> tuple[str, Any]:
        """The result (ok, refused, error), and the answer."""
        if not self._informer.is_complete:
            problems = "; ".join(sorted({text for text in self._informer.problems.values() if text}))
            return "error", refused(f"xpu's extender has not read nodes and pods yet ({problems})")
        if path == "/bind" and not self._election.is_leading:
            why = "this replica does not lead, and the one that does cannot be asked"
            return "error", refused(f"xpu's extender: {why}")
        try:
            arguments = json.loads(body)
            if not isinstance(arguments, dict):
                raise WrongRequest("the request is not a JSON object")
            value = verb(arguments)
        except WrongRequest as error:
            return "error", refused(str(error))
        except Exception as error:  # kube-scheduler must get an answer that it can show, after any error
            self._log(f"{path}: {traceback.format_exc()}")
            why = without_percent(f"{type(error).__name__}: {error}")
            return "error", refused(f"xpu's extender failed: {why}"[:1000])
        return "refused" if _is_refused(value) else "ok", value

    def _page(self, request: Request) -> Answer:
        if request.path == "/metrics":
            return Answer(200, METRICS, self._metrics.text())
        if request.path == "/healthz":
            return text(200, "ok")
        if request.path == "/readyz":
            problems = [f"{kind}: {text}" for kind, text in self._informer.problems.items() if text]
            problems += [] if self._knows_leader else ["no replica is known to lead"]
            problems += [str(self.failed)] if self.failed is not None else []
            return text(200 if self.is_ready else 503, "\n".join(problems or ["ok"]))
        return text(404, "there are /metrics, /healthz and /readyz")

    def _state(self) -> dict[str, bool]:
        problems = self._informer.problems
        return {
            "leads": self._election.is_leading,
            "follows_nodes": not problems["nodes"],
            "follows_pods": not problems["pods"],
        }

    def _expire(self) -> None:
        is_frozen = False
        while not self._ended.wait(_EXPIRE_S):
            if not is_frozen and self._informer.is_complete:
                # The data of the cluster stays, and is freed without cycles. A collection that looks at all
                # of it again delays a filter by a tenth of a second with 10,000 nodes.
                gc.collect()
                gc.freeze()
                is_frozen = True
            if not self._election.is_leading:
                self._cluster.let_go()
            held: dict[str, int] = {}
            for each in self._cluster.expire():
                if each.hold is None:
                    self._log(
                        f"it is not known whether the pod {each.uid} was bound: its place is free again"
                    )
                elif not each.hold.failure:  # of the others that is nothing new
                    held[each.hold.group] = held.get(each.hold.group, 0) + 1
            for group, count in held.items():
                self._log(f"group {group}: {count} held places are free again, because no bind came")
