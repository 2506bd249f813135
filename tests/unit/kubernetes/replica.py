"""A replica of the extender over HTTP, as kube-scheduler and Prometheus see it, and elections of several."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import REPOSITORY
from support.kubernetes_objects import Json
from support.scheduling_api import ApiServer
from xpu_runtime.kubernetes.api import Api, ApiError
from xpu_runtime.kubernetes.extender.certificate import Certificate
from xpu_runtime.kubernetes.extender.leader_election import LeaderElection, Times
from xpu_runtime.kubernetes.extender.service import Extender
from xpu_runtime.kubernetes.resources import Resources
from xpu_runtime.request.assignment import ANNOTATION, Assignment, read

KEYS = {"k": bytes(range(32))}
LOOPBACK = ("127.0.0.1", 0)
PEM = REPOSITORY / "tests/support/certificates"
QUICK = Times(lease=3, renew=2, retry=0.1, wait=0.05)
PATIENCE_S = 20.0


def until(holds: Callable[[], object], what: str) -> None:
    """Waits until the condition holds; the test fails if that takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.005)


class Door:
    """An extender by its ports, as kube-scheduler and Prometheus see it."""

    port: int
    status_port: int
    #: None: it is asked without TLS.
    client: ssl.SSLContext | None = None

    def ask(self, verb: str, body: object) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
            if self.client is None
            else http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE_S, context=self.client)
        )
        connection.request("POST", f"/{verb}", content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        assert answer.status == 200
        return found

    def status(self, page: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.status_port, timeout=PATIENCE_S)
        connection.request("GET", page)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode()
        connection.close()
        return found

    @property
    def is_ready(self) -> bool:
        return self.status("/readyz")[0] == 200

    def fits(self, asking: Json, *names: str) -> list[str]:
        found: list[str] = self.ask("filter", {"Pod": asking, "NodeNames": list(names or ("n1",))})[
            "NodeNames"
        ]
        return found

    def bind(self, bound: Json, to: str = "n1", **other: Any) -> str:
        metadata = bound["metadata"]
        args = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": to,
            **other,
        }
        error: str = self.ask("bind", args)["Error"]
        return error


class Alone(LeaderElection):
    """In the place of an election: it leads at once, and always."""

    def __init__(self) -> None:
        pass

    def start(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        pass

    @property
    def is_leading(self) -> bool:
        return True

    @property
    def leader_url(self) -> str:
        return ""


class Replica(Door):
    """An extender in this process."""

    def __init__(
        self,
        asks: Api,
        election: LeaderElection,
        certificate: Certificate | None = None,
        client: ssl.SSLContext | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.said: list[str] = []
        self.election = election
        self.extender = Extender(
            asks, Resources(), lambda: KEYS, "binpack", self.said.append, election, certificate, end
        )
        self.port, self.status_port = self.extender.start(LOOPBACK, LOOPBACK)
        self.client = client


class Process(Door):
    """An extender in a process of its own, which can be killed; it is ready."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        keys, config = folder / "keys", api.kubeconfig(folder / "config", "kube-system")
        keys.write_text(f"k {KEYS['k'].hex()}\n")
        command = [sys.executable, "-m", "xpu_runtime.cli.main", "kubernetes", "extender"]
        # Where no other replica looks for this one.
        options = ["--listen=127.0.0.1:0", "--status-listen=127.0.0.1:0", "--advertise=http://127.0.0.1:1"]
        self.process = subprocess.Popen(
            [*command, *options, f"--kubeconfig={config}", f"--keys={keys}"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "serves port" in line
        self.port, self.status_port = map(int, line.rsplit("port ", 1)[1].split(", "))
        until(lambda: self.is_ready, "it is ready")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class CutOff(Api):
    """A client that reaches no server while `event` is set."""

    def __init__(self, api: ApiServer, event: threading.Event) -> None:
        super().__init__(api.client().access)
        self._event = event

    def _ask(self, *args: Any, **kwargs: Any) -> Any:
        if self._event.is_set():
            raise ApiError("no route to host")
        return super()._ask(*args, **kwargs)


class ControlPlane(ApiServer):
    """An API server, and replicas of the extender on it, which end with it."""

    def __init__(self) -> None:
        super().__init__()
        self._replicas: list[Replica] = []

    def create(self, *things: Json) -> None:
        for thing in things:
            self.set("pods" if "spec" in thing else "nodes", thing["metadata"]["name"], thing)

    def replica(
        self,
        election: LeaderElection | None = None,
        *,
        asks: Api | None = None,
        is_awaited: bool = True,
        **options: Any,
    ) -> Replica:
        """One that leads at once, and always; or as this election says. It is ready if it is awaited."""
        found = Replica(asks or self.client(), election or Alone(), **options)
        self._replicas.append(found)
        until(lambda: not is_awaited or found.is_ready, "a replica is ready")
        return found

    def candidate(
        self,
        identity: str,
        cut_off: threading.Event | None = None,
        *,
        tls: bool = False,
        is_awaited: bool = True,
        **options: Any,
    ) -> Replica:
        """One of those that elect a leader; `cut_off`: while it is set, the election reaches no server."""
        client = CutOff(self, cut_off or threading.Event())
        one = LeaderElection(client, "kube-system", "xpu-extender", identity, "", print, QUICK)
        if tls:
            options |= {"certificate": certificate(), "client": trusting()}
        found = self.replica(one, is_awaited=False, **options)
        # It is known only now, as its port is.
        one._url = f"{'https' if tls else 'http'}://127.0.0.1:{found.port}"
        until(lambda: not is_awaited or found.is_ready, "a replica is ready")
        return found

    def leader(self, identity: str, cut_off: threading.Event | None = None, **options: Any) -> Replica:
        """The first candidate, once it leads."""
        found = self.candidate(identity, cut_off, **options)
        until(lambda: found.election.is_leading, f"{identity} leads")
        return found

    def close(self) -> None:
        for each in self._replicas:
            each.extender.stop()
        self.down()


def assigned(api: ApiServer, name: str) -> Assignment:
    """The pod's assignment, as its node reads it."""
    kept = api.get("pods", name)
    found = read(kept["metadata"]["annotations"][ANNOTATION], KEYS)
    assert (found.uid, found.node) == (kept["metadata"]["uid"], kept["spec"]["nodeName"])
    return found


def trusting(*, own: bool = True) -> ssl.SSLContext:
    """kube-scheduler's, with a certificate of its `own` unless it has none."""
    context = ssl.create_default_context(cafile=str(PEM / "ca.crt"))
    if own:
        context.load_cert_chain(str(PEM / "client.crt"), str(PEM / "client.key"))
    return context


def certificate() -> Certificate:
    return Certificate(str(PEM / "server.crt"), str(PEM / "server.key"), str(PEM / "ca.crt"))
