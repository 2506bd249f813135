"""All facts about one container, as `xpu inspect --json` prints them.

Facts of one backend come from that backend (`details`), so that this code depends on none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict, cast

from xpu_runtime.config.defaults import Config
from xpu_runtime.ledger.grants import CORES, KINDS, MEMORY, Grant
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.limits import registry, unaccounted, unaccounted_time
from xpu_runtime.limits.backend import Detail
from xpu_runtime.limits.sharing import Shares
from xpu_runtime.limits.usage import Usage
from xpu_runtime.observe import containers, driver_questions, names
from xpu_runtime.observe.containers import SliceJson
from xpu_runtime.observe.names import Names
from xpu_runtime.request import quotas
from xpu_runtime.request.units import show
from xpu_runtime.vendors.inventory import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.limits.backends.library import PagesJson
    from xpu_runtime.limits.backends.mps import MpsJson


class ProcessJson(TypedDict):
    """A process of a container on a device."""

    #: On the host; null: it is not found there.
    pid: int | None
    #: In the container; null: not known.
    container_pid: int | None
    #: The name of the program.
    name: str
    #: Bytes by the container's account; null: it has no place there.
    used_bytes: int | None
    #: Bytes that the driver reports; null: it reports none.
    driver_used_bytes: int | None
    #: It has ended, or freed the memory, which is given back at the next request and is not in the total.
    ended: bool
    #: Bytes of an ended process that another process has open.
    kept_bytes: int
    #: Bytes by kind: `linear`, `managed`, `pool`, `vmm`, `array`, `graph`, `external`, `freed_exported` (open
    #: elsewhere) and `overhead` (contexts, modules).
    kinds: dict[str, int]


class InspectedSliceJson(SliceJson):
    """A slice, with the limits in force and the processes that use it."""

    #: Bytes that containers can have of the device; null: not known.
    device_memory_bytes: int | None
    #: Bytes, as the quota page or the driver says; null: no limit, or not known.
    limit_in_force_bytes: int | None
    #: Percent, where a backend holds a cap; null: none, or not known.
    cores_in_force: int | None
    #: Bytes that the driver reports for the container; null: not known.
    driver_used_bytes: int | None
    processes: list[ProcessJson]


class PodShareJson(TypedDict):
    """The part of a device that is reserved for a container of a pod."""

    uuid: str
    #: Null: all of the device.
    memory_bytes: int | None
    #: Percent of the device's time; null: no cap.
    cores: int | None


class PodJson(TypedDict):
    """The pod that a container is of."""

    uid: str
    #: Null: nothing is reserved for the pod any more.
    namespace: str | None
    #: Null: nothing is reserved for the pod any more.
    name: str | None
    #: Name of the container in the pod.
    container: str
    reserved: list[PodShareJson]


class QuotaJson(TypedDict):
    """A quota that the container counts towards, with the grants of all containers that do."""

    name: str
    #: The containers that the quota matches; null: it is not in the configuration any more.
    who: str | None
    slices: int
    memory_bytes: int
    #: Percent, summed over devices; a slice without a cap counts as 100.
    cores: int
    #: Null: no limit.
    max_slices: int | None
    #: Null: no limit.
    max_memory_bytes: int | None
    #: Null: no limit.
    max_cores: int | None


class DetailsJson(TypedDict):
    """The backends' facts about a container (limits/backend.py: Detail)."""

    #: Null: no page holds its limits, or it cannot be read.
    pages: PagesJson | None
    #: Null: MPS holds none of its limits.
    mps: MpsJson | None


class GrantJson(DetailsJson):
    """A container's grant at one start."""

    #: Its OCI bundle.
    bundle: str
    #: The process id of its first process, on the host.
    pid: int
    #: Its cgroup; null: it has none of its own, or none yet.
    cgroup: str | None
    #: `hook` or `spec`.
    mode: str
    #: `pending`, `running` or `dead`.
    state: str
    #: RFC 3339, UTC.
    created: str
    slices: list[InspectedSliceJson]
    #: Null: it is of no pod.
    pod: PodJson | None
    quotas: list[QuotaJson]


class InspectionJson(TypedDict):
    """A container."""

    container_id: str
    #: The engine's name of it; null: not known.
    name: str | None
    #: One, or several where runtimes with different --root have containers of one id.
    grants: list[GrantJson]
    #: Values that could not be read, with the reasons.
    problems: list[str]


def inspect(
    grants: list[Grant], config: Config, inventory: Inventory
) -> tuple[InspectionJson, list[list[Detail]]]:
    """The container that has these grants, and the backends' facts about each grant."""
    usage, beyond = driver_questions.usage_and_unaccounted(inventory, grants)
    problems: list[str] = unaccounted.warn(grants, beyond)
    shares = driver_questions.shares(inventory, grants)
    problems += unaccounted_time.warn(grants, shares)
    known = names.of(grants)
    details = [_details(grant) for grant in grants]
    with PodLedger() as ledger:
        counted = [(_pod(grant, ledger), _quotas(grant, config, ledger)) for grant in grants]
    found: list[GrantJson] = []
    for grant, told, (pod, of_quotas) in zip(grants, details, counted):
        problems += [str(each.problem) for each in told if each.problem]
        problems += _interrupted(grant, usage)
        found.append(
            {
                **cast("DetailsJson", {each.key: each.value for each in told}),
                "bundle": grant.bundle,
                "pid": grant.pid,
                "cgroup": grant.cgroup or None,
                "mode": grant.mode,
                "state": containers.state(grant),
                "created": containers.timestamp(grant.created),
                "slices": [
                    _slice(grant, position, usage, beyond, shares, known)
                    for position in range(len(grant.slices))
                ],
                "pod": pod,
                "quotas": of_quotas,
            }
        )
    problems += [f"memory in use is not known: {each}" for each in usage.problems]
    name = known.of_id(grants[0].container_id)
    return {
        "container_id": grants[0].container_id,
        "name": name,
        "grants": found,
        "problems": problems,
    }, details


def _interrupted(grant: Grant, usage: Usage) -> Iterator[str]:
    """A sentence for each limit in force that differs from the booked one."""
    for position, slice_ in enumerate(grant.slices):
        for kind in KINDS:
            held = usage.in_force(grant, position, kind)
            if held is not None and held.limit != slice_.limit(kind):
                told = f"{_amount(kind, held.limit)} in force and {_amount(kind, slice_.limit(kind))} booked"
                todo = "an `xpu set` was probably interrupted, repeat it"
                yield f"GPU {slice_.device_index}: {told}: {todo}"


def _slice(
    grant: Grant, position: int, usage: Usage, beyond: unaccounted.Amounts, shares: Shares, known: Names
) -> InspectedSliceJson:
    memory = usage.in_force(grant, position, MEMORY)
    cores = usage.in_force(grant, position, CORES)
    used = usage.in_use(grant, position)
    return {
        **containers.entry(grant, position, used, beyond.get((grant.id, position)), shares, known),
        "device_memory_bytes": usage.device_memory(grant, position),
        "limit_in_force_bytes": memory.limit if memory else None,
        "cores_in_force": cores.limit if cores else None,
        "driver_used_bytes": usage.by_driver(grant, position),
        "processes": [
            {
                "pid": each.pid,
                "container_pid": each.container_pid,
                "name": each.name,
                "used_bytes": each.used,
                "driver_used_bytes": each.driver,
                "ended": each.dead,
                "kept_bytes": each.kept,
                "kinds": each.kinds,
            }
            for each in usage.processes(grant, position)
        ],
    }


def _pod(grant: Grant, ledger: PodLedger) -> PodJson | None:
    """The container's pod, and the pod's allocation."""
    uid, container = ledger.pods_of_grants().get(grant.id, ("", ""))
    if not uid:
        return None
    allocation = ledger.allocation(uid)
    shares = allocation.of(container) if allocation is not None else ()
    return {
        "uid": uid,
        "namespace": allocation.namespace if allocation is not None else None,
        "name": allocation.pod if allocation is not None else None,
        "container": container,
        "reserved": [
            {"uuid": share.device_uuid, "memory_bytes": share.memory_bytes, "cores": share.cores}
            for share in shares
        ],
    }


def _quotas(grant: Grant, config: Config, ledger: PodLedger) -> list[QuotaJson]:
    """The granted part of each quota that the container counts to."""
    configured = {quota.name: quota for quota in quotas.every(config.policy_quotas)}
    found: list[QuotaJson] = []
    for name in ledger.quotas_of(grant):
        now, quota = ledger.counted(name), configured.get(name)
        found.append(
            {
                "name": name,
                "who": quota.who if quota else None,
                "slices": now.slices,
                "memory_bytes": now.memory_bytes,
                "cores": now.cores,
                "max_slices": quota.max_slices if quota else None,
                "max_memory_bytes": quota.max_memory if quota else None,
                "max_cores": quota.max_cores if quota else None,
            }
        )
    return found


def _details(grant: Grant) -> list[Detail]:
    """The backends' facts about the container, also of backends that hold none of its limits."""
    holding = registry.known(grant.slices)
    return [detail for each in registry.every() for detail in each.details(grant, holds=each in holding)]


def _amount(kind: str, limit: int | None) -> str:
    if limit is None:
        return "no limit is"
    return f"{show(limit)} is" if kind == MEMORY else f"a cap of {limit}% is"
