"""What the node has: devices, driver libraries, and what the driver can do, as plain values.

An inventory is gathered once (NVML and the driver root's ld cache; see nvidia.py) and kept as JSON
in the run folder. It is used as long as the boot, the driver root and the files it was made from are
the same, so that a container's start opens no NVML.
"""

from __future__ import annotations

import os

from xpu_runtime import jsonlite, paths
from xpu_runtime.devices import simulated
from xpu_runtime.errors import DeviceError
from xpu_runtime.linux import files, proc
from xpu_runtime.value import Value

#: Seconds that a start waits for another one that asks the driver.
_ASKED_BY_ANOTHER_S = 20

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from xpu_runtime.config.defaults import Config

_FORMAT = 1
_MAX_BYTES = 16 << 20


class Node(Value):
    """A device node: its path in the container, and its numbers."""

    path: str
    major: int
    minor: int


class Device(Value):
    """A GPU, or one MIG device of it (`parent` is then the GPU's UUID, and `index` is "0:1")."""

    index: str
    uuid: str
    name: str
    memory_bytes: int
    nodes: tuple[Node, ...]
    vendor: str = "nvidia"
    parent: str | None = None
    #: None: healthy; else what is wrong with it.
    fault: str | None = None
    compute_capability: str = ""
    brand: str = ""

    @property
    def is_mig(self) -> bool:
        return self.parent is not None

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"GPU {self.index}" if not self.is_mig else f"MIG device {self.index}"


class Library(Value):
    """A driver file to mount: where it lies on the host, and what it is called in a container.

    `kind` is `lib` (goes to the container's library folder under `name`, with `links` beside it),
    `lib32`, `bin`, `file` (same path as in the driver root) or `socket` (a folder or socket, ditto). `aside`
    is a library, and `page` and `shared` are files, whose `name` is a path; a container can write `shared`.
    """

    kind: str
    source: str
    name: str
    capability: str
    links: tuple[str, ...] = ()


class Inventory(Value):
    """All of a node, at one time."""

    root: str
    simulated: bool
    driver_version: str
    cuda_version: str
    devices: tuple[Device, ...]
    #: Nodes that every container with a device gets, by capability.
    common_nodes: tuple[tuple[str, Node], ...]
    libraries: tuple[Library, ...]
    #: Whether the driver can hold a memory limit on a cgroup (R615).
    memory_limits: bool
    #: The library through which limits are set; empty without a driver.
    nvml: str
    #: (path, st_mtime_ns or None where there is no such file) of what this was made from.
    stamps: tuple[tuple[str, int | None], ...]
    #: Why there is no device, where there is none.
    missing: str = ""


def driver_root(config: Config) -> tuple[str, bool]:
    """The driver root to use, and whether it is the simulated one.

    `auto` takes the simulated driver where one is up, for someone has asked for it, else `/`.
    """
    simulation = simulated.root()
    if config.driver_root == "auto":
        return (simulation, True) if simulation else ("/", False)
    return config.driver_root, simulation is not None and os.path.realpath(config.driver_root) == simulation


def stamp(path: str) -> tuple[str, int | None]:
    """What tells whether the file at `path` is still the same."""
    try:
        return path, os.stat(path).st_mtime_ns
    except OSError:
        return path, None


def load(config: Config) -> Inventory:
    """The node's inventory: the cached one if it still holds, else a new one (and the cache renewed).

    DeviceError where the driver is there but cannot be asked.
    """
    root, is_simulated = driver_root(config)
    found = _cached(root)
    if found is not None:
        return found
    lock = paths.in_run_dir("inventory.lock")
    try:
        os.makedirs(paths.run_dir(), mode=0o755, exist_ok=True)
        # A hundred containers after a boot must not ask the driver a hundred times.
        with files.Lock(lock, _ASKED_BY_ANOTHER_S):
            return _cached(root) or refresh(root, is_simulated)
    except TimeoutError as error:
        from xpu_runtime.linux import holders

        names = ", ".join(map(str, holders.of(lock))) or "another process"
        raise DeviceError(
            f"{names} has been asking the driver in {root} for {_ASKED_BY_ANOTHER_S} s",
            "see whether nvidia-smi answers; end what hangs",
        ) from error
    except OSError:
        # The run folder cannot be written (a full disk): slower, but no reason to fail.
        return gather(root, is_simulated)


def gather(root: str, is_simulated: bool) -> Inventory:
    """Asks the driver below `root` what there is."""
    from xpu_runtime.devices import nvidia  # NVML's binding alone costs more than a warm start

    return nvidia.discover(root, is_simulated)


def refresh(root: str, is_simulated: bool) -> Inventory:
    """Asks the driver, and renews the cache.

    Without a device nothing is kept: a command in another view of the machine (a container without the
    driver's nodes) sees that too, from the same files, and what it kept would refuse every start.
    """
    found = gather(root, is_simulated)
    if not found.devices:
        try:
            os.unlink(_cache_path())
        except OSError:
            pass  # none was kept, or the run folder cannot be written
        return found
    record = {"format": _FORMAT, "boot": proc.boot_id(), "inventory": _plain(found)}
    try:
        os.makedirs(paths.run_dir(), mode=0o755, exist_ok=True)
        files.write_atomic(_cache_path(), jsonlite.dumps(record).encode("ascii"))
    except OSError:
        pass  # the next start asks again
    return found


def _cache_path() -> str:
    return paths.in_run_dir("inventory.json")


def _cached(root: str) -> Inventory | None:
    try:
        record = jsonlite.loads(files.read(_cache_path(), _MAX_BYTES).decode("ascii"))
        if record["format"] != _FORMAT or record["boot"] != proc.boot_id():
            return None
        found = _from_plain(record["inventory"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # none yet, or damaged: it is only a cache
    if found.root != root or any(stamp(path) != (path, mtime) for path, mtime in found.stamps):
        return None
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return [_plain(field) for field in value.as_dict().values()]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _from_plain(fields: list[Any]) -> Inventory:
    named: dict[str, Any] = dict(zip(Inventory._fields, fields, strict=True))
    named["devices"] = tuple(
        _named(Device, device).replace(nodes=tuple(Node(*node) for node in device[4]))
        for device in named["devices"]
    )
    named["common_nodes"] = tuple((capability, Node(*node)) for capability, node in named["common_nodes"])
    named["libraries"] = tuple(
        _named(Library, item).replace(links=tuple(item[4])) for item in named["libraries"]
    )
    named["stamps"] = tuple((path, mtime) for path, mtime in named["stamps"])
    return Inventory(**named)


def _named(kind: Any, fields: list[Any]) -> Any:
    return kind(**dict(zip(kind._fields, fields, strict=True)))


def find(inventory: Inventory, selector: str) -> Device | None:
    """The device that `selector` names: index, GPU:MIG index, UUID, or an unambiguous start of a UUID."""
    for device in inventory.devices:
        if selector in (device.index, device.uuid):
            return device
    found = [device for device in inventory.devices if _begins(selector, device.uuid)]
    return found[0] if len(found) == 1 else None


def _begins(selector: str, uuid: str) -> bool:
    return selector[:4] in ("GPU-", "MIG-") and len(selector) >= 8 and uuid.startswith(selector)


def lists(selectors: tuple[str, ...], device: Device) -> bool:
    """Whether a configuration's `selectors` name this device, or the GPU that it is a part of."""
    gpu = device.index.partition(":")[0]
    for selector in selectors:
        if selector in (device.index, device.uuid, device.parent) or (device.is_mig and selector == gpu):
            return True
        if _begins(selector, device.uuid) or _begins(selector, device.parent or ""):
            return True
    return False


def why_empty(found: Inventory) -> str:
    """Why the node has no device, and what to do about it."""
    why = found.missing or f"the driver in {found.root} reports no device"
    todo = "install or load the driver, correct driver.root, or try `xpu sim up --topology 1xT4`"
    return f"{why}; {todo} for a simulated device"
