"""The values of the cluster's state: pods that ask for devices, those that are being bound, and nodes.

There are ten thousand of each: classes with slots, and equal values are one object. accounting.py adds them
up, cluster.py changes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xpu_runtime.kubernetes.extender.devices import Held, NodeDevices
from xpu_runtime.kubernetes.extender.groups import Member
from xpu_runtime.placement.demand import PodDemand
from xpu_runtime.placement.pod import PodShape
from xpu_runtime.request.assignment import Assignment
from xpu_runtime.value import Value


class Pod:
    __slots__ = (
        "demand", "failure", "held", "name", "namespace", "node", "priority", "shape", "stamp", "uid",
    )  # fmt: skip

    def __init__(self, uid: str, namespace: str, name: str, demand: PodDemand, shape: PodShape) -> None:
        self.uid, self.namespace, self.name = uid, namespace, name
        self.demand, self.shape = demand, shape
        self.priority = 0
        #: kube-scheduler's last word on it, for a pod that is not bound (groups.failure).
        self.failure = ""
        #: The node that it is bound to; "": none.
        self.node = ""
        #: Its share there; None: not known.
        self.held: Held | None = None
        #: The API object's stamp at the last reading.
        self.stamp = 0


class Assumed(Value):
    """A pod that is being bound, or that waits for its group: it counts on the node regardless of the
    watch."""

    uid: str
    node: str
    held: Held
    assignment: Assignment
    #: Clock's seconds until which it counts; None: the API has bound it, and the watch will say so.
    until: float | None
    #: Its place is held for its group as yet; None: it is being bound.
    hold: Member | None = None


class Decided(Value):
    """In the place of Assumed: the pod needs no place any more."""

    #: The node that it is bound to; "": it is gone.
    node: str


class NodeSummary(Value):
    """A node at the moment, for people."""

    name: str
    #: Why no pod can be placed there; "": pods can.
    why_not: str
    devices: NodeDevices = NodeDevices()
    #: The free part of each device.
    memory: Sequence[int] = ()
    cores: Sequence[int] = ()


class NodePods(Value):
    """A node with the pods that hold a share there."""

    devices: NodeDevices
    #: UID, priority (None: it cannot be ended), and share.
    members: tuple[tuple[str, int | None, Held], ...]
    binpack: bool


class Node:
    """A node, with the pods that count there."""

    __slots__ = (
        "cores", "devices", "is_stale", "lowest", "memory", "most", "number", "pods", "policy", "stamp",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        #: Its index in the cached verdicts.
        self.number = number
        self.devices = NodeDevices("unknown")
        self.policy: str | None = None
        self.stamp = 0
        #: UIDs of those that count here.
        self.pods: set[str] = set()
        self.memory: Sequence[int] = ()
        self.cores: Sequence[int] = ()
        #: The most that is free of one device.
        self.most = -1
        #: The lowest priority of the pods that are bound here; None: there are none.
        self.lowest: int | None = None
        #: Whether this and the above must be counted again.
        self.is_stale = True
