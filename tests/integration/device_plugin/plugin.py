"""`xpu kubernetes device-plugin` as a process, with a node and pods for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.kubernetes_api import ApiServer, Object
from support.stand_in_kubelet import Kubelet, needed, until
from xpu_runtime.config.defaults import Config
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Grant, Holding, Slice
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.linux import proc
from xpu_runtime.vendors import discovery

GIB = 1 << 30
MEMORY, CORES, SHARES, WHOLE = (f"yoyoworks.com/xpu{each}" for each in ("-mem", "-cores", "-shares", ""))
NODE = "n1"
NODE_PATH = f"/api/v1/nodes/{NODE}"
KEY = "k1", bytes(range(32))
MAIN = "from xpu_runtime.cli.main import main; main()"


class Plugin:
    """The process, started and ended by the test."""

    def __init__(self, folder: Path, installed: Path, kubelet: Kubelet, api: ApiServer) -> None:
        library = installed / "lib" / "xpu-container-runtime"
        self.environ = {**os.environ, "PYTHONPATH": f"{library}/python:{library}/vendor"}
        self.log_file = folder / "log"
        self.config = folder / "config.yaml"
        self.environ["XPU_CONFIG"] = str(self.config)
        self.kubelet, self.api = kubelet, api
        self._kubeconfig = api.kubeconfig(folder / "kubeconfig")
        self.keys = folder / "keys"
        self.keys.write_text(f"{KEY[0]} {KEY[1].hex()}\n")
        self.process: subprocess.Popen[bytes] | None = None
        self.code = MAIN
        self.configure()

    def configure(self, **kubernetes: Any) -> None:
        keys = {"keys": str(self.keys), **kubernetes}
        self.config.write_text(json.dumps({"kubernetes": keys}))

    def command(self, *options: str) -> list[str]:
        where = ("--plugins", str(self.kubelet.plugins), "--pod-resources", str(self.kubelet.pod_resources))
        how = ("--node-name", NODE, "--kubeconfig", str(self._kubeconfig), "--health-every", "1")
        engine = ("--containerd-config", "/none")
        words = ("kubernetes", "device-plugin", *where, *how, *engine, *options)
        return [sys.executable, "-c", self.code, *words]

    def start(self, *options: str, offers: int = 60) -> None:
        """Starts it, and waits until it offers so many units of memory."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(self.command(*options), env=self.environ, stderr=log)
        needed[self.process] = self.log_file
        until(lambda: self.kubelet.healthy(MEMORY) == offers, f"{offers} units are offered")

    def refused(self) -> str:
        """The error with which the command ends."""
        done = subprocess.run(self.command(), env=self.environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        return done.stderr

    def may_end(self) -> None:
        """The plugin may end by itself: the awaited state does not need it."""
        assert self.process is not None
        needed.pop(self.process)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.may_end()
        self.process.send_signal(number)
        status = self.process.wait(30)
        self.process = None
        return status

    def log(self) -> str:
        return self.log_file.read_text()


def pod(api: ApiServer, name: str, limits: Object, **meta: Any) -> Object:
    """A pod of our RuntimeClass with one container, on our node."""
    containers = [{"name": "main", "resources": {"limits": limits}}]
    spec = {"containers": containers, "runtimeClassName": "xpu", "nodeName": NODE}
    body = {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
    return api.put(f"/api/v1/namespaces/default/pods/{name}", body)


def allocations() -> dict[str, Allocation]:
    with PodLedger() as ledger:
        return {each.pod: each for each in ledger.allocations()}


def devices() -> list[str]:
    """Their UUIDs, in their order."""
    return [each.uuid for each in discovery.refresh(*discovery.driver_root(Config())).devices]


def events(api: ApiServer, name: str) -> list[tuple[str, str]]:
    found = api.under("/api/v1/namespaces/default/events")
    return [(each["reason"], each["message"]) for each in found if each["involvedObject"]["name"] == name]


def described(api: ApiServer) -> Object:
    """The node's annotation."""
    annotations = api.objects[NODE_PATH]["metadata"].get("annotations") or {}
    found: Object = json.loads(annotations.get("yoyoworks.com/xpu-devices", "{}"))
    return found


def taken_by_docker(uuid: str, gib: int, cores: int | None = None) -> Grant:
    """A grant of a container of no pod, with this process as its first."""
    started = proc.start_time(os.getpid()) or 0
    slice_ = Slice("0", uuid, gib * GIB, True, cores, Holding("none", "unenforced"))
    wanted = Grant(0, uuid[-12:], f"/bundles/{uuid}", os.getpid(), started, "", "running", "hook", 0.0, ())
    with PodLedger() as ledger:
        granted, _ = ledger.grant(wanted, lambda _: (slice_,))
    assert granted is not None
    return granted
