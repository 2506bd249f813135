"""A pod's allocation or assignment on this node: whether it fits, and is still valid.

Imported only for pods. Chooses nothing: devices and amounts were decided before.
"""

from __future__ import annotations

from xpu_runtime.ledger.allocations import Allocation, of_assignment
from xpu_runtime.ledger.grants import Holding, Use
from xpu_runtime.ledger.refusal import Refusal
from xpu_runtime.placement.available import Candidate
from xpu_runtime.placement.container import place
from xpu_runtime.request import assignment, pod
from xpu_runtime.request.amounts import Amount
from xpu_runtime.request.request import Request
from xpu_runtime.request.units import Memory
from xpu_runtime.value import Value
from xpu_runtime.vendors import inventory as node
from xpu_runtime.vendors.inventory import Device, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.config.defaults import Config
    from xpu_runtime.ledger.pod_ledger import PodLedger
    from xpu_runtime.request.pod_container import PodContainer


def resolved(request: Request, ledger: PodLedger) -> Request:
    """The request of a pod's container without an assignment, completed by its pod's allocation; RequestError
    if there is none."""
    container = request.of_pod
    assert container is not None
    allocation = _allocation(container, ledger)
    shares = allocation.of(container.container) if allocation is not None else ()
    if not shares:
        raise pod.not_allocated(container)
    return pod.complete(request, shares)


def _allocation(container: PodContainer, ledger: PodLedger) -> Allocation | None:
    """The allocation of the container's pod. The UID of a static pod comes from an annotation that anyone may
    write; the engine tells the container's pod."""
    found = ledger.allocation(container.uid)
    key = container.uid, container.namespace, container.pod
    return found if found is not None and found.key == key else None


class Place(Value):
    """The place of a pod's container, beside `uses`. `enter`: the pod's allocation, to be entered with it;
    None: it is in the ledger already."""

    uses: dict[str, Use]
    enter: Allocation | None


def place_of(request: Request, inventory: Inventory, config: Config, ledger: PodLedger) -> Place | Refusal:
    """The place of a container whose request is `resolved`; within the transaction of its grant."""
    container = request.of_pod
    assert container is not None
    now, wanted = _allocation(container, ledger), None
    if container.assignment is not None:
        wanted = of_assignment(container.assignment, container.namespace, container.pod, container.key_id)
        if now is not None and now.says_same(wanted):
            wanted = wanted if wanted.key_id != now.key_id else None
        else:
            others = ledger.uses_without(container.uid)
            refusal = why_stale(wanted, now) or why_not(inventory, config, wanted, others)
            if refusal is not None:
                return refusal
    elif now is None or request.selectors != tuple(each.device_uuid for each in now.of(container.container)):
        return Refusal("wrong-assignment", f"the reservation of pod {container.pod} has just changed")
    elif now.key_id and now.key_id not in assignment.read_keys(config.kubernetes_keys):
        # Its author may take the assignment off the pod, and would keep what a stolen key has signed.
        text = f"the reservation of {now.label} was assigned with the key {now.key_id!r}, which this node"
        return Refusal("wrong-assignment", f"{text} does not have any more: delete the pod")
    return Place(ledger.uses_for_pod(container.uid), wanted)


def why_stale(wanted: Allocation, now: Allocation | None) -> Refusal | None:
    """Why `wanted` does not replace the allocation of the same pod; None: it does, or is the same."""
    if now is None or now.says_same(wanted) or now.made < wanted.made:
        return None
    text = f"the assignment of {wanted.label} is stale: a later one is in force"
    if now.made == wanted.made:
        text = f"the assignment of {wanted.label} says something else than the one in force"
    return Refusal("wrong-assignment", f"{text}; delete the pod, and create it again")


def why_not(inventory: Inventory, config: Config, wanted: Allocation, uses: dict[str, Use]) -> Refusal | None:
    """Why an allocation does not fit beside the shares of others (`uses`); None: it fits."""
    refusals = []
    for uuid, amount in wanted.amounts().items():
        device = next((each for each in inventory.devices if each.uuid == uuid), None)
        if device is None:
            told = node.why_not_found(inventory, uuid)
            return Refusal("unknown-device", f"{wanted.label} is assigned {uuid!r}, {told}")
        refusal = _lacks(device, amount, uses, config)
        if refusal is not None:
            refusals.append(refusal)
    if not refusals:
        return None
    text = f"the share assigned to {wanted.label} is not free on this node"
    statuses = tuple(status for refusal in refusals for status in refusal.devices)
    return Refusal(refusals[0].code, text, statuses)


def _lacks(device: Device, amount: Amount, uses: dict[str, Use], config: Config) -> Refusal | None:
    if amount.clash:
        uses = {**uses, device.uuid: uses.get(device.uuid, Use()).replace(slices=1)}
    request = Request(
        choice="list",
        selectors=(device.uuid,),
        count=1,
        memory=() if amount.whole else (Memory(amount.memory_bytes),),
        cores=amount.cores or None,
    )
    found = place(
        request,
        [Candidate(device, None, Holding())],
        uses,
        oversubscribe=config.oversubscribe_memory,
        step=config.cores_step,
    )
    return found if isinstance(found, Refusal) else None
