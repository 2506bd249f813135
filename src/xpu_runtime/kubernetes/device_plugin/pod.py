"""One pod of this node for the plugin, from the API's JSON; and its share, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from xpu_runtime.allocating import RefusedContainer
from xpu_runtime.config.defaults import Config
from xpu_runtime.errors import XpuError
from xpu_runtime.kubernetes import resources as names
from xpu_runtime.kubernetes.resources import DemandError, Resources, gib, whole_number
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.placement.demand import Demand, PodDemand
from xpu_runtime.request.assignment import ANNOTATION, Assignment, AssignmentError, Share
from xpu_runtime.request.units import parse_memory, show_exactly
from xpu_runtime.value import Value
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors.inventory import Inventory

#: The UID that the kubelet gave a pod of its own folder (static pods); the API's object of it has another.
_MIRROR = "kubernetes.io/config.mirror"
#: The kubelet's UID is an MD5 (kubernetes, pkg/kubelet/config/common.go, applyDefaults). Anybody can write
#: the annotation, but a UID with dashes is the API's, and would name another pod.
_HASH = re.compile(r"[0-9a-f]{32}")

#: An amount as units.py shows it. Names in the API have no capitals: none of a container or pod is one.
_AMOUNT = re.compile(r"(?<![\w.=-])\d+(?:\.\d+)?[BKMG](?![\w.-])", re.ASCII)
#: Reasons of events on pods. The list of docs/reference/kubernetes.md is made from the comments.
REASONS = (
    #: The pod has its place on the node: `main: 4 GiB of GPU 0 and 30% of its cores`.
    "XPUReserved",
    #: The pod has no `runtimeClassName`, and the plugin cannot tell whether the node's default runtime is
    #: ours. If it is not, the pod runs without a GPU.
    "XPUNoRuntimeClass",
    #: The pod has no place on the node; the message says why. Its container waits with
    #: `CreateContainerConfigError`, `... PreStartContainer rpc failed ...`.
    "XPURefused",
)
RESERVED, NO_CLASS, REFUSED = REASONS


def resources_of(config: Config) -> Resources:
    return Resources(parse_memory(config.kubernetes_memory_unit).on(0), config.kubernetes_aliases)


class PodOnNode(Value):
    #: Its UID for the kubelet and the engine. A static pod has it in an annotation.
    uid: str
    namespace: str
    name: str
    node: str
    created: str
    #: Its containers have ended for good.
    is_over: bool
    #: The annotation with the scheduler's signature, as it is; "": it has none.
    assignment: str
    #: The name of its RuntimeClass; "": it has none, and the node's default runtime starts it.
    runtime_class: str
    demand: PodDemand
    #: The fault of its request; "": none.
    problem: str
    #: The kubelet's amount for it at one time, by resource; and each container's demand.
    units: Mapping[str, int]
    by_container: Mapping[str, Mapping[str, int]]
    #: Whether it asks by a name that this node offers; False: by an alias that it does not offer (any more).
    is_offered: bool = True

    @property
    def key(self) -> tuple[str, str, str]:
        """Its key, as Allocation.key: two objects may claim to be one static pod."""
        return self.uid, self.namespace, self.name

    @property
    def is_static(self) -> bool:
        """Whether the kubelet has it from its own folder: no scheduler places it, and it has no
        assignment."""
        return _HASH.fullmatch(self.uid) is not None

    @classmethod
    def of(cls, item: Mapping[str, Any], known: Resources) -> PodOnNode | None:
        """None for a pod that asks for no device by any name; a pod that has one by an alias that was turned
        off since keeps it."""
        metadata, spec = item.get("metadata") or {}, item.get("spec") or {}
        annotations = metadata.get("annotations") or {}
        mirrored = str(annotations.get(_MIRROR))
        demand, problem = PodDemand(), ""
        try:
            demand = known.of_pod(item)
        except DemandError as error:
            problem = str(error)
        is_offered = bool(problem) or not demand.is_empty
        if not is_offered and not _asks(spec, known.replace(aliases=tuple(names.ALIASES)).names):
            return None
        by_container = {
            str(each.get("name")): _limits(each, known.names)
            for each in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        }
        return cls(
            mirrored if _HASH.fullmatch(mirrored) else str(metadata.get("uid")),
            str(metadata.get("namespace")),
            str(metadata.get("name")),
            str(spec.get("nodeName") or ""),
            str(metadata.get("creationTimestamp")),
            (item.get("status") or {}).get("phase") in ("Succeeded", "Failed"),
            str(annotations.get(ANNOTATION) or ""),
            str(spec.get("runtimeClassName") or ""),
            demand,
            problem,
            _at_one_time(spec, by_container, known.names),
            by_container,
            is_offered,
        )


class PodEvent(Value):
    """The content of a Kubernetes event on a pod."""

    pod: PodOnNode
    reason: str
    message: str
    warning: bool


def _asks(spec: Mapping[str, Any], resources: Iterable[str]) -> bool:
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return any(_limits(each, resources) for each in containers)


def _limits(container: Mapping[str, Any], resources: Iterable[str]) -> dict[str, int]:
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: number for name in resources if (number := whole_number(limits.get(name, 0)))}


def _at_one_time(
    spec: Mapping[str, Any], asked: Mapping[str, Mapping[str, int]], resources: Iterable[str]
) -> dict[str, int]:
    """As the scheduler counts it (kubernetes.io, "Init containers", resource sharing; KEP-753)."""
    found = {}
    for name in resources:
        beside = most = 0
        for each in spec.get("initContainers") or ():
            amount = asked[str(each.get("name"))].get(name, 0)
            most = max(most, beside + amount)
            beside += amount if each.get("restartPolicy") == "Always" else 0
        together = sum(asked[str(each.get("name"))].get(name, 0) for each in spec.get("containers") or ())
        if amount := max(most, beside + together):
            found[name] = amount
    return found


def no_class(pod: PodOnNode, *, is_sure: bool) -> XpuError:
    """The error for a pod that names no RuntimeClass. `is_sure`: our runtime does not start it, as far as is
    known."""
    comes = (
        "this node's default runtime is not ours, and starts it without a GPU"
        if is_sure
        else "unless this node's default runtime is ours, it runs without a GPU"
    )
    what = f"the pod asks for {next(iter(pod.units), names.WHOLE)} and has no runtimeClassName: {comes}"
    return XpuError(what, "add runtimeClassName: xpu")


def check_assignment(assigned: Assignment, pod: PodOnNode, node: str) -> None:
    """AssignmentError if it is another pod's, or for another node."""
    todo = "only the scheduler extender writes it: delete the pod, and create it again without it"
    if assigned.uid != pod.uid:
        raise AssignmentError(f"{ANNOTATION} is of another pod ({assigned.uid})", todo)
    if assigned.node != node:
        raise AssignmentError(f"{ANNOTATION} is for the node {assigned.node}, not {node}", todo)


def not_assigned(pod: PodOnNode) -> XpuError:
    """The error for a pod without an assignment where the node places none itself."""
    if pod.is_static:
        return XpuError(
            "no scheduler places a static pod, and this node gives devices by the scheduler "
            "extender's assignments only (kubernetes.placement: extender)",
            "make it a pod of the API, such as a DaemonSet's, or have nodes place pods themselves "
            "(kubernetes.placement: node; docs/kubernetes.md, Variants)",
        )
    return XpuError(
        "the pod has no assignment, and this node gives devices by assignments only "
        "(kubernetes.placement: extender)",
        "does kube-scheduler's configuration have the extender, with these names in its managedResources? "
        "(docs/kubernetes.md, The scheduler) If so, leave out nodeName, and check schedulerName",
    )


def refusal_text(refusal: Refusal, pod: PodOnNode, known: Resources, inventory: Inventory | None) -> str:
    """The refusal in the words of a pod's author, with amounts as in limits and in the scheduler's messages:
    `4 GiB`."""
    return _AMOUNT.sub(lambda amount: gib(amount[0]), _refusal_line(refusal, pod, known, inventory))


def _refusal_line(refusal: Refusal, pod: PodOnNode, known: Resources, inventory: Inventory | None) -> str:
    found = refusal.nearest
    if not isinstance(refusal, RefusedContainer) or not found or inventory is None:
        return refusal.line()
    memory, cores = parse_memory(found.get("XPU_MEM", "0B")).bytes or 0, int(found.get("XPU_CORES", 0))
    count = int(found.get("XPU_COUNT", 1))
    asked = pod.demand.of(refusal.container)
    if asked is not None and asked.memory_percent is not None:
        # The same percentage of a smaller device is less.
        percent = memory * 100 // max(device.memory_bytes for device in inventory.devices)
        percent = min(percent, cores or 100)
        nearest = Demand(count, None, percent, percent) if percent else None
    else:
        memory = memory // known.memory_unit * known.memory_unit
        nearest = Demand(count, memory, cores or None) if memory else None
    if nearest is None:  # less than one unit
        return refusal.replace(nearest=None).line()
    return refusal.line(nearest=known.as_limits(nearest, pod.by_container[refusal.container]))


def shares_text(allocation: Allocation, inventory: Inventory) -> str:
    """The reservation, for an event: "main: 4 GiB of GPU 0 and 30% of its cores"."""
    groups = (allocation.init, allocation.sidecars, allocation.containers)
    return "; ".join(
        f"{name}: {', '.join(_share(share, inventory) for share in shares)}"
        for group in groups
        for name, shares in group.items()
    )


def _share(share: Share, inventory: Inventory) -> str:
    device = node.find(inventory, share.device_uuid)
    label = device.label if device is not None else share.device_uuid
    memory = "all of it" if share.memory_bytes is None else gib(show_exactly(share.memory_bytes, "G"))
    return f"{memory} of {label}" + ("" if share.cores is None else f" and {share.cores}% of its cores")
