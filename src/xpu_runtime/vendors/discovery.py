"""The node's inventory, cached from one container's start to the next as long as it is valid.

Kept as JSON in the run folder, and used as long as the boot, the driver root and the files it was made from
are the same, so that a container's start asks no driver. On that path: next to nothing may be imported here.
A cache of another format counts as none. registry.py knows the vendors.
"""

from __future__ import annotations

import os

from xpu_runtime import jsonlite, paths, version
from xpu_runtime.errors import DeviceError
from xpu_runtime.linux import files, proc
from xpu_runtime.value import Value
from xpu_runtime.vendors.inventory import Device, Driver, Inventory, Library, Node, stamp

#: Seconds that a start waits for another process that asks the driver.
_ASKED_BY_ANOTHER_S = 20

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from xpu_runtime.config.defaults import Config

_FORMAT = 2
_MAX_BYTES = 16 << 20
_has_asked = False


def driver_root(config: Config) -> tuple[str, bool]:
    """The driver root to use, and whether it is the simulated one.

    `auto` takes the simulated driver if one is up, because someone has asked for it; otherwise `/`.
    """
    simulated = simulated_root()
    if config.driver_root == "auto":
        return (simulated, True) if simulated else ("/", False)
    return config.driver_root, simulated is not None and os.path.realpath(config.driver_root) == simulated


def simulated_root() -> str | None:
    """The root of the simulated driver (`xpu sim`) if it is up, or None; only here the runtime knows of the
    simulator.

    Costs a few stats; starts nothing.
    """
    folder = os.path.realpath(paths.in_run_dir("sim", "root"))
    return folder if os.path.exists(os.path.join(folder, "run", "nvidia-sim", "socket")) else None


def load(config: Config) -> Inventory:
    """The node's inventory: the cached one if it is still valid, or a new one, which renews the cache.

    DeviceError if the driver is there but cannot be asked.
    """
    root, is_simulated = driver_root(config)
    inventory = cached(root)
    if inventory is not None:
        return inventory
    lock = paths.in_run_dir("inventory.lock")
    try:
        os.makedirs(paths.run_dir(), mode=0o755, exist_ok=True)
        # A hundred containers after a boot must not ask the driver a hundred times.
        with files.Lock(lock, _ASKED_BY_ANOTHER_S):
            return cached(root) or refresh(root, is_simulated)
    except TimeoutError as error:
        from xpu_runtime.linux import lock_holders

        names = ", ".join(map(str, lock_holders.of(lock))) or "another process"
        raise DeviceError(
            f"{names} has been asking the driver in {root} for {_ASKED_BY_ANOTHER_S} s",
            "try the driver's own tools; end the processes that hang",
        ) from error
    except OSError:
        # The run folder cannot be written (a full disk): slower, but no reason to fail.
        return refresh(root, is_simulated)


def refresh(root: str, is_simulated: bool) -> Inventory:
    """Asks the drivers below `root`, and renews the cache and the CDI file.

    Three kinds of inventories are not kept. One without a device: a command in another view of the machine (a
    container without the driver's nodes) sees the same files, and its answer would refuse every start. One of
    a driver that did not answer: it may answer the next start. One that only the caller's LD_LIBRARY_PATH led
    to: starts look without it.
    """
    global _has_asked
    from xpu_runtime.vendors import registry  # a driver's own library alone costs more than a warm start

    _has_asked = True
    inventory = registry.discover(root, is_simulated)
    if any(driver.by_caller for driver in inventory.drivers):
        return inventory
    if inventory.problems or not inventory.devices:
        try:
            os.unlink(_cache_path())
        except OSError:
            pass  # none was kept, or the run folder cannot be written
        return inventory
    record = {
        "format": _FORMAT,
        "build": version.BUILD,
        "boot": proc.boot_id(),
        "inventory": _plain(inventory),
    }
    try:
        os.makedirs(paths.run_dir(), mode=0o755, exist_ok=True)
        files.write_atomic(_cache_path(), jsonlite.dumps(record).encode("ascii"))
    except OSError:
        pass  # the next start asks again
    renew_cdi(inventory)
    return inventory


def renew_cdi(inventory: Inventory) -> None:
    """Has the CDI file name these devices, if it is there and ours.

    It is a list of names, which no start needs: whatever goes wrong is told in the system's log, and stops
    nothing.
    """
    path = paths.cdi_file()
    if not os.path.exists(path):
        return
    try:
        from xpu_runtime.config.load import load as load_config  # only where a driver was asked
        from xpu_runtime.vendors import cdi_file

        cdi_file.renew(inventory, load_config())
    except Exception as error:
        from xpu_runtime import messages

        why = error.strerror if isinstance(error, OSError) else messages.line_of(error)
        text = (
            f"{path} cannot be written anew for the devices that there are now: {why}; after that is mended: "
        )
        messages.to_system_log("warning", text + "xpu cdi generate")


def has_asked() -> bool:
    """Whether this process has asked drivers: the library that a vendor's module loaded for that stays loaded
    until the process ends, even if another version is installed meanwhile."""
    return _has_asked


def _cache_path() -> str:
    return paths.in_run_dir("inventory.json")


def cached(root: str) -> Inventory | None:
    """The inventory that starts use; None if none is kept, or if it is no longer valid."""
    try:
        record = jsonlite.loads(files.read(_cache_path(), _MAX_BYTES).decode("ascii"))
        if (record["format"], record["build"]) != (_FORMAT, version.BUILD):
            return None  # another build may look for other files
        if record["boot"] != proc.boot_id():
            return None
        inventory = _from_plain(_frozen(record["inventory"]))
        if inventory.root != root or any(stamp(path) != (path, mtime) for path, mtime in inventory.stamps):
            return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # none yet, or damaged: it is only a cache
    return inventory


def _plain(value: Any) -> Any:
    """A value as JSON has it: a list of its fields."""
    if isinstance(value, Value):
        return [_plain(field) for field in value.as_dict().values()]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if type(value) is list else value


def _from_plain(fields: Any) -> Inventory:
    root, is_simulated, devices, drivers, *more = fields
    return Inventory(root, is_simulated, tuple(map(_device, devices)), tuple(map(_driver, drivers)), *more)


def _device(fields: Any) -> Device:
    index, uuid, name, memory, nodes, *more = fields
    return Device(index, uuid, name, memory, tuple(Node(*node) for node in nodes), *more)


def _driver(fields: Any) -> Driver:
    vendor, version, summary, facts, nodes, libraries, *more = fields
    common = tuple((capability, Node(*node)) for capability, node in nodes)
    return Driver(
        vendor, version, summary, facts, common, tuple(Library(*library) for library in libraries), *more
    )
