"""The CDI file, by which engines give slices without our runtime: `docker run --device yoyoworks.com/xpu=4g`.

A device of the file (Container Device Interface, SPEC.md) adds our hooks to a container, and a variable that
says what it asks for (request/cdi.py). No device node is named in it: the hook books first, and then gives
what it has booked. The file is made from the inventory and the configuration. It is written anew where it is
there and no longer right; the package makes it first, or the operator.
"""

from __future__ import annotations

import os

from xpu_runtime import jsonlite, paths
from xpu_runtime.linux import files
from xpu_runtime.request import cdi
from xpu_runtime.vendors.inventory import lists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from xpu_runtime.config.defaults import Config
    from xpu_runtime.vendors.inventory import Inventory

#: The first line of a file that we may replace and remove.
MARK = "# Written by `xpu cdi generate`, and again when the devices change: do not edit."
#: The lowest that has names of devices which begin with a digit.
_VERSION = "0.5.0"
_STAGES = ("createRuntime", "poststop")
_MAX_BYTES = 4 << 20


def devices(inventory: Inventory, config: Config) -> dict[str, dict[str, str]]:
    """The part of a request that each CDI device stands for (request/cdi.py), by its name."""
    found: dict[str, dict[str, str]] = {cdi.SLICE: {}}
    for size in config.cdi_sizes:
        found[size["name"]] = {key: str(value) for key, value in size.items() if key != "name"}
    allowed = config.policy_devices
    here = [each for each in inventory.devices if allowed is None or lists(allowed, each)]
    if here:
        found[cdi.ALL] = {"device": "all"}
    for each in here:
        for name in (each.index, each.uuid):
            # NVIDIA's drivers before 470 have MIG-GPU-<uuid>/1/0, and one such name makes engines refuse all.
            if "/" not in name:
                found[name] = {"device": name}
    return found


def document(inventory: Inventory, config: Config) -> dict[str, Any]:
    """The file's content as plain data."""
    env = paths.hook_environment(os.environ, os.getcwd())
    name = os.path.basename(paths.HOOK)
    hooks = [{"hookName": stage, "path": paths.HOOK, "args": [name, stage], "env": env} for stage in _STAGES]
    listed = [
        {"name": name, "containerEdits": {"env": [cdi.variable(name, part)]}}
        for name, part in devices(inventory, config).items()
    ]
    return {
        "cdiVersion": _VERSION,
        "kind": cdi.KIND,
        "containerEdits": {"hooks": hooks},
        "devices": listed,
    }


def text(inventory: Inventory, config: Config) -> str:
    """The file's content as YAML."""
    return "\n".join([MARK, *_yaml(document(inventory, config)), ""])


def _yaml(value: dict[str, Any], indent: str = "") -> list[str]:
    """Objects as blocks, and all else on one line as JSON, which is YAML as well."""
    lines = []
    for key, each in value.items():
        if isinstance(each, dict):
            lines += [f"{indent}{key}:", *_yaml(each, indent + "  ")]
        elif isinstance(each, list) and each and isinstance(each[0], dict):
            lines.append(f"{indent}{key}:")
            for item in each:
                first, *more = _yaml(item, indent + "    ")
                lines += [f"{indent}  - {first.lstrip()}", *more]
        else:
            lines.append(f"{indent}{key}: {jsonlite.dumps(each)}")
    return lines


def there(path: str) -> str | None:
    """The text of the file at `path` if it is ours; None if there is none, or somebody else's. OSError."""
    try:
        found = files.read(path, _MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    return found if found.startswith(MARK) else None


def renew(inventory: Inventory, config: Config) -> None:
    """Writes the file at its own place again, if it is there, is ours and has other devices.

    A command of another installation, or with another configuration, asks drivers too: the file of this one
    keeps its hooks. OSError.
    """
    path = paths.cdi_file()
    before, now = there(path), text(inventory, config)
    if before not in (None, now) and _above_devices(before) == _above_devices(now):
        write(path, now)


def write(path: str, content: str) -> None:
    """Puts a file with `content` at `path`, on the disk: engines refuse all its devices if a power cut leaves
    it empty, and nobody would know it for ours. A link there stays: /etc may be read-only. OSError."""
    files.write_atomic(os.path.realpath(path), content.encode(), fsync=True)


def _above_devices(text: str) -> str:
    """The part of the file with our hooks."""
    return text.partition("\ndevices:")[0]
