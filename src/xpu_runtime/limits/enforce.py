"""Limits put into force and lifted, for whole grants, through the backends that its slices name.

The order in a container's life is prepare, contributions, impose; clear ends it, also after a call was
killed. This module names no backend, and imports only those that hold limits of a grant.
"""

from __future__ import annotations

from xpu_runtime.errors import XpuError
from xpu_runtime.ledger.grants import Grant
from xpu_runtime.limits import registry
from xpu_runtime.linux import cgroups, proc
from xpu_runtime.vendors.inventory import Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from xpu_runtime.delivery.contribution import Contribution
    from xpu_runtime.limits.backend import Backend
    from xpu_runtime.request.request import Request


def prepare(grant: Grant, request: Request, *, anew: bool = False) -> None:
    """Makes the backends' files before the container exists; XpuError, with nothing left behind, if that
    fails.

    `anew`: other backends have been chosen since; the files of the first ones are removed.
    """
    backends = registry.holding(grant.slices)
    size = sum(backend.folder_size(grant) for backend in backends)
    if not size:
        for backend in backends:
            backend.prepare(grant, request)
        return
    from xpu_runtime.limits import folders

    if not anew and folders.is_complete(folders.of(grant)):
        return  # the hook is called twice
    folders.create(grant, size)
    try:
        for backend in backends:
            backend.prepare(grant, request)
        folders.complete(grant)
    except BaseException:
        folders.remove(folders.of(grant))
        raise


def contributions(inventory: Inventory, grant: Grant) -> tuple[Contribution, ...]:
    """The backends' files for the grant's container."""
    made = [backend.contribution(inventory, grant) for backend in registry.holding(grant.slices)]
    return tuple(each for each in made if each is not None)


def needs_cgroup(grant: Grant) -> bool:
    """Whether a limit of the grant is to be held on the container's own folder in cgroup v2."""
    return any(backend.ON_CGROUP for backend in registry.holding(grant.slices))


def impose(inventory: Inventory, grant: Grant) -> None:
    """Puts every limit of the grant into force on its container; XpuError, and none is, if one cannot be."""
    done: list[Backend] = []
    try:
        for backend in registry.holding(grant.slices):
            backend.impose(inventory, grant)
            done.append(backend)
    except BaseException:
        for backend in done:
            backend.lift(inventory, grant, lambda: False)
        raise


def must_lift(grant: Grant) -> bool:
    """Whether limits of the grant may be in force that do not end by themselves."""
    return any(backend.must_lift(grant) for backend in registry.known(grant.slices))


def clear(inventory: Inventory | None, grants: list[Grant], starting: Grant | None = None) -> None:
    """Lifts the limits of grants that have ended, and removes their files.

    `inventory` may be None if `must_lift` is false for each. `starting` is the container that is about to get
    its limits: those of an earlier life are lifted for it. If one backend fails (XpuError), all others are
    called first.
    """
    failed: XpuError | None = None
    for grant in grants:
        if inventory is not None:
            earlier = starting is not None and _is_earlier_life(grant, starting)
            for backend in registry.known(grant.slices):
                try:
                    if backend.must_lift(grant):
                        backend.lift(inventory, grant, _never if earlier else _has_restarted(grant))
                except XpuError as error:
                    failed = error
        from xpu_runtime.limits import folders

        folders.remove(folders.of(grant))
    if failed is not None:
        raise failed


def _is_earlier_life(grant: Grant, starting: Grant) -> bool:
    return (grant.container_id, grant.bundle) == (starting.container_id, starting.bundle)


def _never() -> bool:
    return False


def _has_restarted(grant: Grant) -> Callable[[], bool]:
    """Asks whether the grant's cgroup is that of the container's next life by now."""

    def asked() -> bool:
        if proc.is_alive(grant.pid, grant.start_time):
            return False
        return cgroups.has_processes(grant.cgroup)

    return asked
