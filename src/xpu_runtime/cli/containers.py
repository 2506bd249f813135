"""The containers that hold slices: how commands find one, and how they tell of it."""

from __future__ import annotations

from functools import cache
from typing import Any

from xpu_runtime.cli.table import timestamp
from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant, Slice
from xpu_runtime.ledger.refusal import plain_index
from xpu_runtime.ledger.store import Ledger
from xpu_runtime.linux import cgroups, proc

#: Fewer characters are more likely a device's index than the start of an id.
_SHORTEST_START = 3


def named(container: str) -> list[Grant]:
    """The grants of the container whose id is, or starts with, `container`; XpuError if that names not one.

    More than one where runtimes with roots of their own have containers of the same id.
    """
    with Ledger() as ledger:
        grants = [grant for grant in ledger.grants() if grant.container_id.startswith(container)]
    exact = [grant for grant in grants if grant.container_id == container]
    if not exact and len(container) < _SHORTEST_START:
        raise XpuError(
            f"{container!r} is no container's id, and too short for the start of one",
            f"give at least {_SHORTEST_START} characters of it: see `xpu ps`",
        )
    found = exact or grants
    names = sorted({grant.container_id for grant in found})
    if not found:
        todo = "give its id or the start of it, no name: see `xpu ps`"
        raise XpuError(f"no container {container!r} holds a slice", todo)
    if len(names) > 1:
        raise XpuError(f"{container!r} is the start of {', '.join(names)}", "give more of the id")
    return found


@cache
def processes_are_known() -> bool:
    """Whether the ledger's processes are of this PID namespace: elsewhere nobody can tell who runs."""
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
    return proc.is_alive(grant.pid, grant.start_time) or (
        bool(grant.cgroup) and cgroups.has_processes(grant.cgroup)
    )


def entry(grant: Grant, part: Slice, used: int | None, unaccounted: int | None = None) -> dict[str, Any]:
    """A slice as scripts see it; `used` and what its account lacks of that (unaccounted.py) in bytes."""
    return {
        "container_id": grant.container_id,
        "device_index": plain_index(part.device_index),
        "device_uuid": part.device_uuid,
        "memory_bytes": part.memory_bytes if part.limited else None,
        "memory_used_bytes": used,
        "memory_unaccounted_bytes": unaccounted,
        "cores": part.cores,
        **part.holding.as_dict(),
        "mode": grant.mode,
        "state": state(grant),
        "pid": grant.pid,
        "created": timestamp(grant.created),
    }


def enforced(entry: dict[str, Any]) -> str:
    """`memory: driver (hard), cores: unenforced`; a dash where there is no limit."""
    parts = []
    for kind in ("memory", "cores"):
        strength, backend = entry[f"{kind}_strength"], entry[f"{kind}_backend"]
        if strength:
            parts.append(f"{kind}: {strength if strength == 'unenforced' else f'{backend} ({strength})'}")
    return ", ".join(parts) or "-"
