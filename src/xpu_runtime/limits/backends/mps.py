"""The `mps` backend: NVIDIA's Multi-Process Service runs a card's containers side by side, not in turns.

All of `library`, and under it a control daemon for each device with one server, which the containers'
programs connect to: each process gets the active thread percentage and the pinned memory limit that the
grant's folder has when it calls cuInit. The interposed libcuda sets them for the driver, and stops the
program if the driver then does not work under MPS: with a wrong pipe folder a program would silently run
without any limit. The percentage cannot hold for all processes together, nor change for a running one: the
library's account and pacer do both. Soft, and taken only if it is named: an error of one container on the
card reaches its neighbours (docs/concepts/compute.md). R550 is the first driver whose libcuda tells whether
it is under MPS; R555 is the first whose daemon serves several users (R550's takes `-multiuser-server` for a
command).
"""

from __future__ import annotations

import os

from xpu_runtime.errors import ApplyError, DeviceError, XpuError
from xpu_runtime.ledger.grants import CORES
from xpu_runtime.limits import folders, interposed
from xpu_runtime.limits.backend import SOFT, Detail, Offer, held
from xpu_runtime.limits.backends.library import Library, QuotaChange, cannot_see, unavailable
from xpu_runtime.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from xpu_runtime.delivery.contribution import Contribution
    from xpu_runtime.ledger.grants import Grant
    from xpu_runtime.limits.mps_daemon import Daemon, Process
    from xpu_runtime.limits.mps_namespaces import Namespace
    from xpu_runtime.limits.mps_programs import Programs
    from xpu_runtime.limits.pages import Policy
    from xpu_runtime.linux.deadline import Backoff
    from xpu_runtime.request.request import Request
    from xpu_runtime.vendors.inventory import Device, Inventory

    class MpsJson(TypedDict):
        """The MPS daemon of the device."""

        #: The daemon's folder on the host.
        folder: str
        #: The process id of the control daemon; null: none runs.
        control_pid: int | None
        #: The process id of the MPS server; null: none runs.
        server_pid: int | None
        #: The percentage that the container's programs get; null: no cap, or not known.
        active_thread_percentage: int | None


NAME = "mps"

_OLDEST_DRIVER, _OLDEST_ARCH = 555, 7.0
#: From here on the daemon has protocol 3.
_NAMESPACES_SINCE = 615
_PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
#: In the grant's folder: its processes' limits, struct xpu_mps of native/abi/mps.h; and the server that was
#: there when the container was started.
_LIMITS, _SERVER = "mps", "mps-server"
_MAGIC, _SIZE = b"XPUMPS\0\1", 64
_PERCENT_AT, _PINNED_AT, _DECIDED_AT = 8, 12, 16
#: In the container.
_LIMITS_PATH, _PIPE_PATH = f"{interposed.FOLDER}/mps-limits", f"{interposed.FOLDER}/mps"
_RESTART = "start the container again"


class Mps(Library):
    NAME = NAME
    SIDE_BY_SIDE = True

    def offer(self, kind: str, inventory: Inventory, device: Device, request: Request) -> Offer:
        if request.enforce != NAME:
            return Offer(None)  # only by name: its user must accept the shared faults
        reason = (
            _unavailable(inventory, device)
            or _cannot_serve(request)
            or unavailable(inventory, device)
            or cannot_see(kind, request.capabilities)
        )
        return Offer(SOFT) if reason is None else Offer(None, reason)

    def objection(self, device: Device, request: Request) -> str | None:
        if not request.memory and not request.caps_cores:
            return "XPU_ENFORCE=mps holds a limit: it needs XPU_MEM or XPU_CORES"
        return None

    def notes(self, request: Request) -> list[str]:
        return [
            "under MPS a fatal error of one container's kernel ends the programs of all containers under it "
            "on that card; the active thread percentage holds for each process, the caps for all together"
        ]

    def folder_size(self, grant: Grant) -> int:
        return super().folder_size(grant) + 2 * 4096

    def prepare(self, grant: Grant, request: Request) -> None:
        super().prepare(grant, request)
        place = folders.of(grant)
        page = bytearray(_SIZE)
        page[:8] = _MAGIC
        percent, pinned = _granted(grant)
        page[_PERCENT_AT:_PINNED_AT] = percent.to_bytes(4, "little")
        page[_PINNED_AT:_DECIDED_AT] = pinned.to_bytes(4, "little")
        try:
            files.write_atomic(os.path.join(place, _LIMITS), bytes(page))
        except OSError as error:
            raise ApplyError(f"cannot write {place}/{_LIMITS}: {error.strerror}") from error

    def contribution(self, inventory: Inventory, grant: Grant) -> Contribution:
        from xpu_runtime.limits.mps_files import UnderMps

        place = folders.of(grant)
        daemon = _daemon(grant.slices[0].device_uuid)
        return UnderMps(
            inventory,
            grant.slices,
            place,
            limits=(os.path.join(place, _LIMITS), _LIMITS_PATH),
            clients=(daemon.clients_of(_namespace(grant).name), _PIPE_PATH),
            shm=daemon.shm,
        )

    def impose(self, inventory: Inventory, grant: Grant) -> None:
        from xpu_runtime.limits import per_device  # the offer, which every start asks for, needs none of it

        uuid = grant.slices[0].device_uuid
        daemon = _daemon(uuid)
        with per_device.Locked(NAME, uuid):
            server = daemon.start(
                _programs(inventory),
                _namespaces(uuid),
                _namespace(grant),
                third=_has_namespaces(inventory, grant),
            )
        try:
            files.write_atomic(os.path.join(folders.of(grant), _SERVER), str(server).encode())
            if daemon.has_namespaces:
                _store(folders.of(grant), _DECIDED_AT, 1)
        except OSError as error:
            raise ApplyError(f"cannot write {folders.of(grant)}/{_SERVER}: {error.strerror}") from error

    def ended(self, uuid: str) -> None:
        _daemon(uuid).end(_program_of_node())

    def open(self, inventory: Inventory, grant: Grant) -> QuotaChange:
        return _Change(inventory, grant)

    def policy(self, grant: Grant, position: int) -> Policy | None:
        return None

    def note_of_change(self, kind: str, before: int, after: int) -> str:
        if kind != CORES or after <= before:
            return ""
        return (
            "only programs that start from now on get more: running ones keep their active thread percentage "
            f"under MPS; if it is less than {after}%, start them again"
        )

    def problem(self, grant: Grant) -> XpuError | None:
        return self.damage(grant) or self._problem_of_daemon(grant)

    def _problem_of_daemon(self, grant: Grant) -> XpuError | None:
        if grant.state != "running":
            return None
        device = f"GPU {grant.slices[0].device_index}"
        control, server = _daemon(grant.slices[0].device_uuid).find()
        if control is None:
            what = f"the MPS control daemon of {device} has ended"
            return XpuError(f"{what}: programs that start in the container cannot use the device", _RESTART)
        first = _first_server(grant)
        if first is not None and not first.alive:
            now = "new ones have a new server" if server is not None else "new ones start a new server"
            what = f"the MPS server of {device} has ended: programs that used it get CUDA errors, {now}"
            return XpuError(what, _RESTART)
        program = _program_of_node()
        if server is None or program is None:
            return None
        try:
            status = _status(_daemon(grant.slices[0].device_uuid), program, server)
        except DeviceError as error:
            return error
        if status != "FAULT":
            return None
        return XpuError(
            f"a program's fatal error has stopped the MPS server of {device}: it takes no new program until "
            "its present ones have ended",
            _RESTART,
        )

    def details(self, grant: Grant, *, holds: bool) -> list[Detail]:
        if not holds:
            return [Detail(NAME, None)]
        place, problem = folders.of(grant), self._problem_of_daemon(grant)
        daemon = _daemon(grant.slices[0].device_uuid)
        control, server = daemon.find()
        try:
            percentage = _kept(place)[0] or None
        except OSError:
            percentage = None
        value: MpsJson = {
            "folder": daemon.folder,
            "control_pid": control.pid if control else None,
            "server_pid": server.pid if server else None,
            "active_thread_percentage": percentage,
        }
        line = f"server {value['server_pid'] or '-'}, in {daemon.folder}"
        return [*super().details(grant, holds=True), Detail(NAME, value, line, problem)]


BACKEND = Mps()

_silent: dict[str, Backoff] = {}


def _status(daemon: Daemon, program: str, server: Process) -> str:
    """As Daemon.status. A daemon that failed is left alone for a while: `xpu ps` asks for each container, and
    one that hangs would take seconds for each."""
    from xpu_runtime.linux.deadline import Answer, Backoff  # never on a container's start

    pause = _silent.setdefault(daemon.folder, Backoff())
    last = pause.last()
    if last is not None:
        raise DeviceError(last.error, last.todo)
    try:
        return daemon.status(program, server)
    except DeviceError as error:
        pause.take(Answer((), error.what, error.todo))
        raise


class _Change(QuotaChange):
    """The library's change, and the percentage of processes that start from now on.

    A process keeps the percentage that it started with. A larger cap raises it for programs that start later;
    with a smaller cap it stays, and the pacer holds the rest back at once.
    """

    def set(self, position: int, kind: str, value: int) -> None:
        place = folders.of(self._grant)
        super().set(position, kind, value)
        if kind != CORES:
            _store(place, _PINNED_AT, value >> 20)
        elif value > _kept(place)[0]:
            _store(place, _PERCENT_AT, value)
        daemon = _daemon(self._grant.slices[position].device_uuid)
        if daemon.has_namespaces and daemon.find()[0] is not None:
            daemon.set(_program(self._inventory), _namespace(self._grant))


def _unavailable(inventory: Inventory, device: Device) -> str | None:
    known = inventory.driver(device.vendor)
    if device.is_partition:
        return "mps serves whole GPUs: a MIG device is held by the hardware"
    arch = dict(device.facts).get("arch", "")
    if not arch or float(arch) < _OLDEST_ARCH:
        return f"mps needs compute capability {_OLDEST_ARCH} or newer, not {arch or 'an unknown one'}"
    major = known.version.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST_DRIVER:
        return f"mps needs driver R{_OLDEST_DRIVER} or newer, not {known.version}"
    there = {library.name for library in known.libraries if library.kind == "bin"}
    missing = [name for name in _PROGRAMS if name not in there]
    if missing:
        return f"the driver root {inventory.root} has no {missing[0]} (Debian: nvidia-cuda-mps)"
    from xpu_runtime.limits import mps_programs

    return mps_programs.too_long(_daemon(device.uuid).pipe)


def _cannot_serve(request: Request) -> str | None:
    if request.count > 1 or len(request.selectors) > 1 or request.choice == "all":
        return "mps serves one device per container: each has its daemon, and a program can use one"
    from xpu_runtime.limits import pages

    if pages.needs_agent(request.sched, request.priority):
        return "mps supports neither XPU_SCHED nor XPU_PRIORITY: leave them at fixed and normal"
    return None


def _granted(grant: Grant) -> tuple[int, int]:
    """Percent and MiB that each process may have; 0: no limit."""
    limits = {kind: value for _, kind, value in held(grant, NAME)}
    memory = next((value for kind, value in limits.items() if kind != CORES), 0)
    return limits.get(CORES, 0), memory >> 20


def _kept(place: str) -> tuple[int, int]:
    """The limits of each process that starts now, as `_granted`; OSError."""
    page = files.read(os.path.join(place, _LIMITS), _SIZE)
    return (
        int.from_bytes(page[_PERCENT_AT:_PINNED_AT], "little"),
        int.from_bytes(page[_PINNED_AT:_DECIDED_AT], "little"),
    )


def _namespace(grant: Grant) -> Namespace:
    """The limits of its processes now; before it is prepared, those that they will get."""
    from xpu_runtime.limits.mps_namespaces import Namespace

    try:
        percent, pinned = _kept(folders.of(grant))
    except OSError:
        percent, pinned = _granted(grant)
    return Namespace(f"grant_{grant.id}", percent, pinned)


def _namespaces(uuid: str) -> list[Namespace]:
    """Those of all containers that may run on the device."""
    from xpu_runtime.ledger.store import Ledger

    with Ledger() as ledger:
        grants = ledger.grants()
    return [
        _namespace(each)
        for each in grants
        if len(each.slices) == 1 and each.slices[0].device_uuid == uuid and held(each, NAME)
    ]


def _has_namespaces(inventory: Inventory, grant: Grant) -> bool:
    from xpu_runtime.vendors.inventory import find

    device = find(inventory, grant.slices[0].device_uuid)
    major = inventory.driver(device.vendor).version.partition(".")[0] if device else ""
    return major.isdigit() and int(major) >= _NAMESPACES_SINCE


def _daemon(uuid: str) -> Daemon:
    from xpu_runtime.limits import per_device
    from xpu_runtime.limits.mps_daemon import Daemon

    return Daemon(per_device.of(NAME, uuid), uuid)


def _program(inventory: Inventory) -> str:
    return _programs(inventory).control


def _programs(inventory: Inventory) -> Programs:
    from xpu_runtime.limits.mps_programs import Programs

    libraries = [library for driver in inventory.drivers for library in driver.libraries]
    paths = {each.name: each.source for each in libraries if each.kind == "bin"}
    if _PROGRAMS[0] not in paths:
        raise DeviceError(f"the driver root {inventory.root} has no {_PROGRAMS[0]}", "see `xpu doctor`")
    of_cuda = (each.source for each in libraries if each.kind == "lib" and each.name.startswith("libcuda.so"))
    return Programs(paths[_PROGRAMS[0]], paths.get(_PROGRAMS[1], ""), next(of_cuda, ""))


def _program_of_node() -> str | None:
    """The program, for callers without an inventory; None if the driver is gone."""
    from xpu_runtime.config.defaults import DEFAULTS
    from xpu_runtime.config.load import load
    from xpu_runtime.errors import ConfigError, XpuError
    from xpu_runtime.vendors import discovery

    try:
        config = load()
    except ConfigError:
        config = DEFAULTS
    try:
        return _program(discovery.load(config))
    except XpuError:
        return None


def _store(place: str, at: int, value: int) -> None:
    """Writes a field: one write(2) of 4 aligned bytes."""
    path = os.path.join(place, _LIMITS)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.pwrite(fd, value.to_bytes(4, "little"), at)
        finally:
            os.close(fd)
    except OSError as error:
        raise ApplyError(f"cannot write {path}: {error.strerror}", _RESTART) from error


def _first_server(grant: Grant) -> Process | None:
    from xpu_runtime.limits.mps_daemon import Process

    try:
        with open(os.path.join(folders.of(grant), _SERVER), encoding="ascii") as file:
            pid, started = file.read().split()
            return Process(int(pid), int(started))
    except (OSError, ValueError):
        return None
