"""The containers that hold slices: how commands find one, and its printed fields.

Reads the ledger, /proc, and the sharing of time, and asks engines for names if a text is no id; the callers
ask for the use.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cache
from typing import TypedDict, cast

from xpu_runtime.errors import XpuError
from xpu_runtime.ledger import cgroup_records
from xpu_runtime.ledger.allocations import Reserved
from xpu_runtime.ledger.grants import Grant, Slice
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.limits import registry, sharing
from xpu_runtime.limits.sharing import Shares
from xpu_runtime.observe import names as engine_names
from xpu_runtime.observe.names import Names

#: Fewer characters are more likely a device's index than the beginning of an id.
SHORTEST_START = 3
#: How a grant's states are drawn (screen.STYLES).
STATES = {"running": "green", "pending": "yellow", "dead": "red", "reserved": "yellow"}
#: A note on burst, weight and priorities, if `agent_status.ask` finds no agent.
NO_AGENT = "no agent runs: burst and weight hold as fixed, and priorities mean nothing (see `xpu agent`)"


def named(container: str) -> list[Grant]:
    """The grants of the container whose id is, or starts with, `container`, otherwise of the one with this
    name; XpuError if there is not exactly one.

    It has several grants if runtimes with different --root have containers with the same id. An id always
    wins: a chosen name must not hide another container's id.
    """
    with Ledger() as ledger:
        grants = ledger.grants()
    exact = [grant for grant in grants if grant.container_id == container]
    is_start = len(container) >= SHORTEST_START
    found = exact or [grant for grant in grants if is_start and grant.container_id.startswith(container)]
    what, todo = "begins several ids", "give more of it"
    if not found and container:
        names = engine_names.of(grants)
        found = [grant for grant in grants if names.of(grant) == container]
        what, todo = "is the name of several containers", "give the id of one"
    ids = sorted({grant.container_id for grant in found})
    if not found and not is_start:
        raise XpuError(
            f"{container!r} is not a container's id or name, and too short for the beginning of an id",
            f"give at least {SHORTEST_START} characters: see `xpu ps`",
        )
    if not found:
        todo = "give its id, the beginning of it or its name, or it has already ended: see `xpu ps`"
        raise XpuError(f"no container {container!r} holds a slice", todo)
    if len(ids) > 1:
        raise XpuError(f"{container!r} {what}: {', '.join(ids)}", todo)
    return found


@cache
def processes_are_known() -> bool:
    """Whether the ledger belongs to this PID namespace, so that its processes can be checked from here."""
    with Ledger() as ledger:
        return ledger.is_own()


def require_known_processes() -> None:
    """XpuError if not `processes_are_known`."""
    with Ledger() as ledger:
        ledger.require_own()


def state(grant: Grant) -> str:
    """The grant's state, `dead` where its container has ended."""
    return grant.state if not processes_are_known() or is_alive(grant) else "dead"


def is_alive(grant: Grant) -> bool:
    """Whether the grant's container still has a process."""
    return cgroup_records.has_processes(grant)


def problems(grant: Grant) -> list[str]:
    """The faults of the backends of a running container."""
    if not processes_are_known() or not is_alive(grant):
        return []
    told = (backend.problem(grant) for backend in registry.known(grant.slices))
    return [str(problem) for problem in told if problem]


class LimitsJson(TypedDict):
    """The limits of a slice, and what holds them."""

    device_uuid: str
    #: The limit in bytes, booked or asked for; null: the whole device.
    memory_bytes: int | None
    #: Cap in percent of the device's time; null: no cap.
    cores: int | None
    #: The sharing of the device's time: `cap`, `turns` or `side by side`; null: it is not shared.
    cores_shared: str | None
    #: The backend that holds the memory limit, or would; null: there is no limit.
    memory_backend: str | None
    #: `hard`, `soft` or `unenforced`; null: there is no limit.
    memory_strength: str | None
    #: The backend that holds the cap, or would; null: there is no cap.
    cores_backend: str | None
    #: `hard`, `soft` or `unenforced`; null: there is no cap.
    cores_strength: str | None


class SliceJson(LimitsJson):
    """A slice of a container, or a part of a device that is reserved for a pod and that no container has."""

    #: Null: no container has it.
    container_id: str | None
    #: The engine's name of the container, or NAMESPACE/POD of a reservation; null: not known.
    name: str | None
    #: A GPU's index is a number, a MIG device's is text (`"0:1"`); null: not known.
    device_index: int | str | None
    #: Bytes in use; null: not known.
    memory_used_bytes: int | None
    #: Bytes that the driver counts and the container's account does not; null: no such difference.
    memory_unaccounted_bytes: int | None
    #: Percent of the device's time in the last fraction of a second; null: not known, or no cap.
    cores_got_percent: float | None
    #: Percent that the driver counts and the account does not; null: no such difference.
    cores_unaccounted_percent: float | None
    #: `fixed`, `burst` or `weight`; null: no cap that shares time.
    cores_sched: str | None
    #: `low`, `normal` or `high`; null: no cap that shares time.
    cores_priority: str | None
    #: `hook` or `spec`; null: no container has it.
    mode: str | None
    #: `pending`, `running`, `dead` or `reserved`.
    state: str
    #: The process id of the container's first process, on the host; null: no container has it.
    pid: int | None
    #: RFC 3339, UTC; null: no container has it.
    created: str | None


def limits(slice_: Slice) -> LimitsJson:
    return {
        "device_uuid": slice_.device_uuid,
        "memory_bytes": slice_.memory_bytes if slice_.limited else None,
        "cores": slice_.cores,
        "cores_shared": sharing.shared(slice_),
        "memory_backend": slice_.holding.memory_backend,
        "memory_strength": slice_.holding.memory_strength,
        "cores_backend": slice_.holding.cores_backend,
        "cores_strength": slice_.holding.cores_strength,
    }


def entry(
    grant: Grant, position: int, used: int | None, unaccounted: int | None, shares: Shares, names: Names
) -> SliceJson:
    """The JSON object of a slice; `used` and the unaccounted part of it (unaccounted.py) are in bytes."""
    slice_ = grant.slices[position]
    policy = sharing.policy(grant, position)
    got = shares.get((grant.id, position))
    return {
        "container_id": grant.container_id,
        "name": names.of(grant),
        "device_index": plain_index(slice_.device_index),
        **limits(slice_),
        "memory_used_bytes": used,
        "memory_unaccounted_bytes": unaccounted,
        "cores_got_percent": None if got is None or got.percent is None else round(got.percent, 1),
        "cores_unaccounted_percent": None
        if got is None or got.unaccounted is None
        else round(got.unaccounted, 1),
        "cores_sched": policy.sched if policy is not None else None,
        "cores_priority": policy.priority if policy is not None else None,
        "mode": grant.mode,
        "state": state(grant),
        "pid": grant.pid,
        "created": timestamp(grant.created),
    }


def reserved(each: Reserved) -> SliceJson:
    """The same for a pod's reservation that no container holds, with the state `reserved`."""
    return {
        **cast("SliceJson", dict.fromkeys(SliceJson.__annotations__)),
        "name": each.pod,
        "device_index": plain_index(each.device_index) if each.device_index else None,
        "device_uuid": each.device_uuid,
        "memory_bytes": None if each.whole else each.memory_bytes,
        "cores": each.cores or None,
        "state": "reserved",
    }


def timestamp(seconds: float) -> str:
    """RFC 3339, UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
