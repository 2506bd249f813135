"""The ledger: whether it opens, is whole, is free, and matches the running containers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from xpu_runtime import finding, paths
from xpu_runtime.doctor.machine import Machine, listed, plural
from xpu_runtime.finding import Finding, printable
from xpu_runtime.ledger import cgroup_records, layout, waiting
from xpu_runtime.ledger.allocations import Allocation
from xpu_runtime.ledger.grants import Grant, Slice
from xpu_runtime.ledger.pod_ledger import PodLedger
from xpu_runtime.ledger.sqlite import sqlite
from xpu_runtime.ledger.waiting import LedgerError
from xpu_runtime.linux import files, proc
from xpu_runtime.request.amounts import Amount
from xpu_runtime.request.units import show

ORDER = 80
_CHECK = "ledger"
_WAIT_S = 3.0
#: Bytes and files: some tens of starts, and the files of an agent that lends time.
_LITTLE, _FEW_FILES = 1 << 20, 256
#: Bytes of one start; with half of them the ledger is full.
_ONE_START = 32 << 10
#: Seconds that no start takes, not even behind a hundred others.
_LONG_PENDING_S = 300


def look(machine: Machine) -> Iterator[Finding]:
    path = paths.in_run_dir("ledger.db")
    if machine.is_root:
        yield from _of_others(machine, path)
    if not os.path.lexists(path):
        if os.path.isdir(paths.run_dir()) or not os.path.lexists(paths.run_dir()):
            yield finding.ok(_CHECK, f"{path} is not there: nothing was granted since the node started")
        else:
            todo = "remove it: the folder is made by the next start"
            yield finding.problem(_CHECK, f"{paths.run_dir()} is not a folder", todo)
        return
    if os.statvfs(paths.run_dir()).f_flag & os.ST_RDONLY:
        text = f"the file system of {paths.run_dir()} is read-only: no container with a slice can start"
        yield finding.problem(_CHECK, text, f"make it writable (`findmnt -T {paths.run_dir()}`)")
        return
    if not os.access(path, os.R_OK | os.W_OK):
        yield finding.unknown(_CHECK, f"{path} can be read by root only", "run it as root")
        return
    yield from _space(paths.run_dir())
    waiting.allow(_WAIT_S)
    yield from _locked(path)
    try:
        with PodLedger(path, as_is=True) as ledger:
            damage = _damage(path)
            if damage:
                todo = "remove the file: it is made anew from the containers that run, without its events"
                yield finding.problem(_CHECK, f"the ledger {path} is damaged ({damage})", todo)
                return
            grants, is_own, of_pods = ledger.grants(), ledger.is_own(), ledger.pods_of_grants()
            allocations = ledger.allocations()
    except LedgerError as error:
        if not isinstance(error, waiting.LedgerBusy):  # _locked reports that
            yield finding.problem(_CHECK, error.what, error.todo or None)
        return
    if not is_own:
        text = f"{path} belongs to another PID namespace: its running containers cannot be seen from here"
        yield finding.warning(_CHECK, text, "run it on the host itself (in a pod: hostPID: true)")
        return
    yield from of_grants(path, grants, len(allocations))
    yield from of_pods_containers(grants, of_pods, allocations)


def _of_others(machine: Machine, path: str) -> Iterator[Finding]:
    """Slices of this node's devices that another ledger granted, as by an engine with another XPU_RUN_DIR. A
    simulated device is its run folder's own."""
    if machine.inventory is None or machine.inventory.simulated:
        return
    here = {device.uuid: device.index for device in machine.inventory.devices}
    theirs: dict[str, list[Grant]] = {}
    for folder, grant in cgroup_records.of_other_ledgers(path):
        if any(each.device_uuid in here for each in grant.slices):
            theirs.setdefault(folder, []).append(grant)
    for folder, grants in theirs.items():
        gpus = {here.get(each.device_uuid) for grant in grants for each in grant.slices} - {None}
        text = f"the ledger in {printable(folder)} has granted slices of GPU {listed(sorted(gpus, key=str))} "
        text += f"({listed([_name(grant) for grant in grants])}), which {path} does not count: "
        text += "memory can be granted twice"
        todo = "have both use one XPU_RUN_DIR, or divide the devices among them by policy.devices"
        yield finding.problem(_CHECK, text, todo)


def _space(folder: str) -> Iterator[Finding]:
    """Whether a start has room for its files there."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    todo = f"free space on the file system of {folder} (`df {folder}`, `df -i {folder}`)"
    # A file system may count no inodes: it has what it needs then (statvfs(3) gives 0 for both).
    if free < _ONE_START or (found.f_files and not found.f_favail):
        what = f"{free >> 10} KiB" if free < _ONE_START else "no inodes"
        text = f"the file system of {folder} has {what} left: no container with a slice can start"
        yield finding.problem(_CHECK, text, todo)
    elif free < _LITTLE or (found.f_files and found.f_favail < _FEW_FILES):
        text = f"the file system of {folder} has {free >> 10} KiB and {found.f_favail} inodes left"
        yield finding.warning(_CHECK, f"{text}: starts will be refused when it is full", todo)


def _locked(path: str) -> Iterator[Finding]:
    lock = f"{path}.lock"
    if not os.path.exists(lock):
        return
    try:
        with files.Lock(lock, _WAIT_S):
            return
    except TimeoutError:
        error = waiting.busy(path, _WAIT_S)
        yield finding.problem(_CHECK, error.what, error.todo)


def _damage(path: str) -> str:
    """The damage that SQLite finds in the file (PRAGMA quick_check); "" if it is whole."""
    db = sqlite.connect(path, timeout=_WAIT_S, isolation_level=None)
    try:
        found = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite.DatabaseError as error:
        return str(error)
    finally:
        db.close()
    return "" if found == "ok" else " ".join(found.split())


def of_grants(path: str, grants: list[Grant], pods: int = 0) -> Iterator[Finding]:
    """Findings about grants of the ledger at `path`, which has allocations of so many pods, that do not match
    the running containers."""
    dead = [grant for grant in grants if not cgroup_records.has_processes(grant)]
    living = [grant for grant in grants if grant not in dead]
    if dead:
        names = listed([_name(grant) for grant in dead])
        text = f"{plural(len(dead), 'grant')} of ended containers: {names}"
        yield finding.warning(_CHECK, text, "xpu gc (the next start that needs it does this too)")
    for grant in living:
        if grant.state == "pending" and time.time() - grant.created > _LONG_PENDING_S:
            minutes = int(time.time() - grant.created) // 60
            text = f"{_name(grant)} has been starting for {minutes} minutes: process {grant.pid} "
            text += f"({proc.name(grant.pid)}) hangs"
            yield finding.problem(_CHECK, text, f"find out why it waits; to end it: kill -9 {grant.pid}")
    if _unknown(path, grants):
        # By now the ledger has the containers that have started since it was read.
        with PodLedger(path, as_is=True) as ledger:
            later = ledger.grants()
        for grant in _unknown(path, later):
            text = f"{_name(grant)} runs with a slice that the ledger does not have: it can be granted twice"
            yield finding.problem(_CHECK, text, "stop that container and start it again")
    text = f"{path}: layout {layout.VERSION}, whole, {plural(len(living), 'running container')}"
    reserved = f", {plural(pods, 'pod with an allocation', 'pods with allocations')}" if pods else ""
    yield finding.ok(_CHECK, text + reserved)


def of_pods_containers(
    grants: list[Grant], of_pods: Mapping[int, tuple[str, str]], allocations: list[Allocation]
) -> Iterator[Finding]:
    """Findings about slices of pods' containers that nobody can use, and about slices beyond their pod's
    allocation. `of_pods`: the pod's UID and the container's name, by the number of its grant."""
    living = [grant for grant in grants if grant.id in of_pods and cgroup_records.has_processes(grant)]
    labels = {each.uid: each.label for each in allocations}
    for grant in living:
        age = time.time() - grant.created
        if age > _LONG_PENDING_S and grant.state != "pending" and proc.awaits_start(grant.pid):
            uid, name = of_pods[grant.id]
            text = (
                f"container {name} of {labels.get(uid, f'pod {uid}')} was created {int(age) // 60} minutes "
            )
            text += "ago and never started, as after a restart of containerd in between: it holds its slice"
            todo = f"the pod's next try ends it; if there is none: kill -9 {grant.pid}"
            yield finding.problem(_CHECK, text, todo)
    for each in allocations:
        yield from _beyond(each, [grant for grant in living if of_pods[grant.id][0] == each.uid])


def _beyond(allocation: Allocation, grants: list[Grant]) -> Iterator[Finding]:
    amounts = allocation.amounts()
    held: dict[str, list[Slice]] = {}
    for grant in grants:
        for slice_ in grant.slices:
            held.setdefault(slice_.device_uuid, []).append(slice_)
    for uuid, slices in held.items():
        given = amounts.get(uuid, Amount())
        memory, cores = sum(each.memory_bytes for each in slices), sum(each.cores or 0 for each in slices)
        if given.whole or (memory <= given.memory_bytes and cores <= given.cores):
            continue
        text = f"{allocation.label} holds {show(memory)} and {cores}% of GPU {slices[0].device_index}, and "
        text += f"{show(given.memory_bytes)} and {given.cores}% are reserved for it"
        todo = "give the rest back with `xpu set`, or delete the pod: its next one gets what is reserved"
        yield finding.warning(_CHECK, text, todo)


def _unknown(path: str, grants: list[Grant]) -> list[Grant]:
    """Containers that run with a slice and are not among them."""
    known = {grant.id for grant in grants}
    return [each for each in cgroup_records.running(path, proc.pid_namespace()) if each.id not in known]


def _name(grant: Grant) -> str:
    return f"container {grant.container_id[:12]}"
