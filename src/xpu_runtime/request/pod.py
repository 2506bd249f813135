"""The request of a container of a Kubernetes pod: its assigned shares, and no amount of its author's.

The engine writes the container's identity into annotations last, over those of the author. The amounts come
from an assignment, which must be signed for this pod and this node. Without one they come from the pod's
allocation in the ledger: placement/allocation.py completes such a request. The author may still choose how
the limits are held.
"""

from __future__ import annotations

from xpu_runtime.errors import RequestError
from xpu_runtime.oci import spec as oci_spec
from xpu_runtime.request import assignment
from xpu_runtime.request.assignment import ANNOTATION, AssignmentError
from xpu_runtime.request.parse import (
    ALLOCATED,
    AMOUNTS,
    is_annotation,
    refuse,
    variable_of,
)
from xpu_runtime.request.pod_container import PodContainer
from xpu_runtime.request.request import FOR_PROGRAMS
from xpu_runtime.request.units import Memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.request.assignment import Assignment, Share
    from xpu_runtime.request.request import Request

#: The annotations of a container's identity: UID, namespace and name of its pod, its own name.
_CONTAINERD = tuple(
    f"io.kubernetes.cri.{name}"
    for name in ("sandbox-uid", "sandbox-namespace", "sandbox-name", "container-name")
)
_CRI_O = (
    "io.kubernetes.pod.uid",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.name",
    "io.kubernetes.container.name",
)
#: A pod's annotations for its scheduler. Engines copy them to each of its containers; they have no meaning
#: here.
_FOR_SCHEDULERS = ("XPU_ASSIGNMENT", "XPU_COUNT", "XPU_POLICY")
_TODO = "give amounts in resources.limits, such as yoyoworks.com/xpu-mem: 4 and yoyoworks.com/xpu-cores: 30"


def who(annotations: dict[str, str]) -> PodContainer | None:
    """The container with these annotations; None if they do not identify one.

    An engine overwrites its own names and leaves another engine's names to the pod's author. cri-o copies all
    of a pod's annotations into the spec; containerd copies those that `pod_annotations` allows. If the names
    of both engines are there, one of them is the author's, and neither counts.
    """
    if oci_spec.BY_CONTAINERD in annotations and oci_spec.BY_CRI_O in annotations:
        return None
    names = _CRI_O if oci_spec.BY_CRI_O in annotations else _CONTAINERD
    values = [annotations.get(name, "") for name in names]
    uid, namespace, pod, container = values
    return PodContainer(uid, namespace, pod, container) if all(values) else None


def is_plain(environment: dict[str, str], annotations: dict[str, str], config: Config) -> bool:
    """Whether a pod's container asks like any other container."""
    asks_by_pod = ANNOTATION in annotations or ALLOCATED in environment
    return not (config.kubernetes_require_assignment or asks_by_pod)


def asks_by_pod(
    environment: dict[str, str], annotations: dict[str, str], config: Config
) -> tuple[bool, PodContainer | None]:
    """Whether a pod's container asks by its pod's assignment, and the container (None: it asks for nothing).

    RequestError if it asks for more than its assignment, or if the assignment is not valid.
    """
    if is_plain(environment, annotations, config):
        return False, None
    container = who(annotations)
    asked = _asked(environment, annotations)
    if container is None:
        if asked or ANNOTATION in annotations:
            raise RequestError(
                "the pod of this container is not known: its annotations do not say, or are of two engines",
                "update the engine (containerd 1.6 or newer, or cri-o); write no io.kubernetes annotations",
            )
        return True, None
    assigned = None
    if ANNOTATION in annotations:
        assigned = _verified(annotations[ANNOTATION], container, config)
        if not assigned.of(container.container):
            if not (config.kubernetes_require_assignment or ALLOCATED in environment):
                return False, None
            refuse(amounts_outside_limits(environment, annotations))
            if asked:
                raise AssignmentError(
                    f"{asked[0]} asks for devices, and {container.label} was assigned none", _TODO
                )
            return True, None
    elif not asked:
        return True, None
    refuse(amounts_outside_limits(environment, annotations))
    about_cores = tuple(
        f"{name}={environment[name]}" for name in ("XPU_SCHED", "XPU_PRIORITY") if name in environment
    )
    key_id = assignment.key_id(annotations[ANNOTATION]) if assigned is not None else ""
    return True, container.replace(assignment=assigned, about_cores=about_cores, key_id=key_id)


def _asked(environment: dict[str, str], annotations: dict[str, str]) -> list[str]:
    """The variables of a container that ask for devices. An annotation holds for each container of the pod,
    so one about how a slice is held asks for no device. NVIDIA's variables ask for none either: CUDA images
    set them, and a sidecar or init container of such an image must run without devices."""
    found = [name for name in environment if name.startswith("XPU_") and name not in FOR_PROGRAMS]
    return found + [key for key, name in of_containers(annotations).items() if name in AMOUNTS]


def of_containers(annotations: dict[str, str]) -> dict[str, str]:
    """Our annotations that are not for schedulers, with the variables that they stand for."""
    named = {key: variable_of(key) for key in annotations if is_annotation(key)}
    return {key: name for key, name in named.items() if name not in _FOR_SCHEDULERS}


def _verified(text: str, container: PodContainer, config: Config) -> Assignment:
    """The assignment in an annotation, if it is for this pod and this node; otherwise AssignmentError."""
    found = assignment.read(text, assignment.read_keys(config.kubernetes_keys))
    if found.uid != container.uid:
        raise AssignmentError(
            f"{ANNOTATION} is that of another pod (its UID is {found.uid}, this one's {container.uid})",
            "it cannot be copied: delete the pod, and create it again without it",
        )
    if found.node != config.kubernetes_node_name:
        here = config.kubernetes_node_name or "not set: see kubernetes.node_name"
        raise AssignmentError(
            f"{ANNOTATION} is for the node {found.node}, and this node's name is {here}",
            "delete the pod: it is scheduled again",
        )
    return found


def amounts_outside_limits(environment: dict[str, str], annotations: dict[str, str]) -> list[str]:
    """A problem for each amount that the container's author has set besides resources.limits."""
    found = [f"{name}={environment[name][:60]}" for name in AMOUNTS if name in environment]
    ours = of_containers(annotations)
    found += [f"{key}: {annotations[key][:60]}" for key, name in ours.items() if name in AMOUNTS]
    return [f"{each} is not for a container of a pod: {_TODO}" for each in found]


def complete(request: Request, shares: tuple[Share, ...]) -> Request:
    """A pod's request with the shares that its container was assigned, of exactly these devices."""
    container = request.of_pod
    assert container is not None and shares
    memory = tuple(Memory(share.memory_bytes) for share in shares if share.memory_bytes is not None)
    source = "allocation" if container.assignment is None else "assignment"
    request = request.replace(
        choice="list",
        selectors=tuple(share.device_uuid for share in shares),
        choice_from=f"the {source} of {container.label}",
        count=len(shares),
        memory=memory,
        cores=shares[0].cores,
    )
    if not request.caps_cores and container.about_cores:
        raise RequestError(
            f"{container.about_cores[0]} needs a cap on cores, and {container.label} was assigned none",
            "give its cores in resources.limits, such as yoyoworks.com/xpu-cores: 30",
        )
    return request


def not_allocated(container: PodContainer) -> AssignmentError:
    """The error for a container without an assignment and without an allocation."""
    return AssignmentError(
        f"nothing is reserved on this node for {container.label}, and it has no assignment",
        f"{_TODO}; if it has them, see that `xpu kubernetes device-plugin` runs on this node, and its log",
    )
