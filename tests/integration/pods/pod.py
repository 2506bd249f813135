"""Containers of Kubernetes pods as containerd makes them, with assignments as a scheduler signs them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.request.assignment import Assignment, Share, sign

from ..conftest import Node

GIB = 1 << 30
KEY = os.urandom(32)
NODE = "node-1"
SLEEP = ["sleep", "1000"]
ALLOCATED = "XPU_KUBERNETES=allocated"
Bundles = Callable[..., Path]
MODES = pytest.mark.parametrize("mode", ["hook", "spec"])
Shares = dict[str, tuple[Share, ...]]


def cluster(node: Node, topology: str = "2xT4", more: str = "", require: bool = True) -> list[str]:
    """Makes the node one of a cluster, which requires assignments; its devices' UUIDs."""
    keys = node.folder / "keys"
    keys.write_text(f"k1 {KEY.hex()}\n")
    keys.chmod(0o600)
    node.sim(topology)
    words = f"require_assignment: {str(require).lower()}, node_name: {NODE}, keys: {keys}"
    node.configure(f"{more}\nkubernetes: {{{words}}}\n")
    return [each["uuid"] for each in node.json("devices")]


def share(uuid: str, gib: int | None = 4, cores: int | None = 30) -> Share:
    return Share(uuid, None if gib is None else gib * GIB, cores)


class Pod:
    """A pod with a UID of its own."""

    def __init__(self, name: str, uid: str = "") -> None:
        self.name = name
        self.uid = uid or f"uid-of-{name}"

    def assignment(
        self,
        node: str = NODE,
        made: float = 0.0,
        init: Shares | None = None,
        sidecars: Shares | None = None,
        **containers: tuple[Share, ...],
    ) -> Assignment:
        return Assignment(self.uid, node, made or time.time(), containers, init or {}, sidecars or {})

    def container(
        self, name: str = "main", kind: str = "container", **annotations: str
    ) -> Callable[[dict[str, Any]], None]:
        """A change of a spec: containerd's CRI annotations of a container, and the pod's `annotations`."""
        ours = {f"yoyoworks.com/xpu-{key.replace('_', '-')}": value for key, value in annotations.items()}
        of_cri = {
            "container-type": kind,
            "container-name": name,
            "image-name": "example.com/image:1",
            "sandbox-id": f"sandbox-of-{self.name}",
            "sandbox-name": self.name,
            "sandbox-namespace": "default",
            "sandbox-uid": self.uid,
        }

        def change(spec: dict[str, Any]) -> None:
            spec["annotations"] = {**{f"io.kubernetes.cri.{key}": of_cri[key] for key in of_cri}, **ours}

        return change


def signed(assignment: Assignment, key: bytes = KEY, key_id: str = "k1") -> str:
    return sign(assignment, key_id, key)


def privileged(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def both(spec: dict[str, Any]) -> None:
        change(spec)
        for capabilities in spec["process"]["capabilities"].values():
            capabilities.append("CAP_SYS_ADMIN")

    return both


def allocations(node: Node) -> list[Allocation]:
    with PodLedger(str(node.run_dir / "ledger.db")) as ledger:
        return ledger.allocations()


def allocated(node: Node, allocation: Allocation) -> None:
    """The work of the installed device plugin."""
    from xpu_runtime import allocating, paths
    from xpu_runtime.config.load import load
    from xpu_runtime.vendors import discovery

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XPU_RUN_DIR", str(node.run_dir))
        patch.setenv("XPU_CONFIG", str(node.config))
        patch.setattr(paths, "NATIVE_DIR", str(node.prefix / "lib" / "xpu-container-runtime" / "native"))
        config = load()
        refusal = allocating.enter(discovery.load(config), config, allocation)
    assert refusal is None, refusal.line()


def deallocate(node: Node, *uids: str) -> None:
    with PodLedger(str(node.run_dir / "ledger.db")) as ledger:
        ledger.deallocate(uids)


def granted(node: Node) -> dict[str, tuple[int, int]]:
    """GiB and percent that are granted or reserved of each device, by `xpu devices`."""
    return {
        each["uuid"]: (each["memory_granted_bytes"] // GIB, each["cores_granted"])
        for each in node.json("devices")
    }


def events(node: Node, kind: str) -> list[str]:
    found = [json.loads(line) for line in node.xpu("events", "--json").stdout.splitlines()]
    return [each["reason"] or "" for each in found if each["event"] == kind]


def output(bundle: Path) -> str:
    return (bundle / "output").read_text()
