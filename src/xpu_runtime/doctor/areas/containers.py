"""Running containers with slices: whether their devices and pages are still those of their start.

A container keeps the libraries and pages of the version that it was started with, also after an upgrade.
"""

from __future__ import annotations

from collections.abc import Iterator

from xpu_runtime import finding
from xpu_runtime.doctor.machine import Machine, plural
from xpu_runtime.finding import Finding
from xpu_runtime.ledger import cgroup_records
from xpu_runtime.ledger.grants import KINDS, Grant
from xpu_runtime.limits import pages, per_device, registry

ORDER = 90
_CHECK = "containers"
#: In the path of each library of ours (paths.NATIVE_DIR).
_OURS = "/native/interposer"
_RESTART = "start the container again"


def look(machine: Machine) -> Iterator[Finding]:
    living = [
        grant
        for grant in machine.grants or ()
        if grant.state == "running" and cgroup_records.has_processes(grant)
    ]
    yield from _unneeded(machine)
    wrong = [each for grant in living for each in (*_devices(machine, grant), *_backends(grant))]
    yield from wrong
    if living and not wrong:
        older = sum(map(_has_older_libraries, living))
        more = (
            f"; {older} of them with our libraries of an earlier installation, until they end"
            if older
            else ""
        )
        yield finding.ok(
            _CHECK, f"{plural(len(living), 'container')} with slices, as they were started{more}"
        )


def _unneeded(machine: Machine) -> Iterator[Finding]:
    """Backends' state for devices that no container uses: the call that should have ended it was killed."""
    if machine.grants is None:
        return
    needed = per_device.needed(machine.grants)
    for kept in per_device.left():
        if kept not in needed:
            text = f"{per_device.of(*kept)} is kept for a device, and no container uses it any more"
            yield finding.warning(_CHECK, text, "run `xpu gc`")


def _has_older_libraries(grant: Grant) -> bool:
    """Whether a library of ours that the container has mounted was replaced since (proc(5), mountinfo)."""
    try:
        with open(f"/proc/{grant.pid}/mountinfo", encoding="utf-8", errors="replace") as lines:
            return any(f"{_OURS}/" in line and "//deleted " in line for line in lines)
    except OSError:
        return False  # it has ended


def _devices(machine: Machine, grant: Grant) -> Iterator[Finding]:
    if machine.inventory is None:
        return
    there = {device.uuid for device in machine.inventory.devices}
    for slice_ in grant.slices:
        if slice_.device_uuid not in there:
            text = f"{_name(grant)} has a slice of {slice_.device_uuid}, which is not on this node (any more)"
            yield finding.problem(_CHECK, text, f"see dmesg for a lost device; otherwise {_RESTART}")


def _backends(grant: Grant) -> Iterator[Finding]:
    there = {backend.NAME for backend in registry.every()}
    named = {slice_.holder(kind) for slice_ in grant.slices for kind in KINDS} - {None, registry.NONE}
    for name in sorted(str(each) for each in named - there):
        text = f"a limit of {_name(grant)} is held by {name}, which this version does not have"
        yield finding.warning(_CHECK, text, f"install the version that started it, or {_RESTART}")
    for backend in registry.known(grant.slices):
        for detail in backend.details(grant, holds=True):
            value = detail.value if isinstance(detail.value, dict) else {}
            if detail.problem:
                told = detail.problem
                yield finding.problem(_CHECK, f"{_name(grant)}: {told.what}", told.todo or _RESTART)
            elif value.get("abi", pages.ABI) != pages.ABI:
                text = f"{_name(grant)} has pages of ABI {value['abi']}, and this version's are {pages.ABI}: "
                text += "`xpu set` and `xpu inspect` do not serve it"
                yield finding.warning(_CHECK, text, _RESTART)


def _name(grant: Grant) -> str:
    return f"container {grant.container_id[:12]}"
