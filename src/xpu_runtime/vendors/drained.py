"""Devices that an operator has drained: they get no new slices, whoever asks. Kept over reboots.

A file for each in the state folder, named by the device's UUID, with the reason in it: they are made and
removed in one step each, so that nothing is locked, and a container's start reads one folder, which most
nodes do not have. A drained GPU stands for all of its partitions.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.errors import ConfigError
from xpu_runtime.linux import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.vendors.inventory import Device

_FOLDER = "drained"
_LONGEST = 200  # characters of a reason


def _folder() -> str:
    return os.path.join(paths.state_dir(), _FOLDER)


def reasons() -> dict[str, str]:
    """The reason of each drained device, "" where none was given, by UUID.

    ConfigError where that cannot be read: what may be drained is given to nobody.
    """
    try:
        names = os.listdir(_folder())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(error) from None
    return {name: found for name in names if name[0] != "." and (found := _reason(name)) is not None}


def _reason(name: str) -> str | None:
    """None: it was undrained just now."""
    try:
        content = files.read(os.path.join(_folder(), name), 4 * _LONGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(error) from None
    return _line(content.decode("utf-8", "replace"))


def _unreadable(error: OSError) -> ConfigError:
    why = f"it cannot be told which devices are drained: {error.filename}: {error.strerror}"
    return ConfigError(why, f"mend that, or remove {_folder()}")


def _line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)[:_LONGEST].strip()


def reason_of(device: Device, told: dict[str, str]) -> str | None:
    """Of what `reasons` told, the reason for this device; None: it is not drained."""
    return told.get(device.uuid, told.get(device.parent or ""))


def state(reason: str) -> str:
    """For people."""
    return f"drained: {reason}" if reason else "drained"


def drain(uuid: str, reason: str) -> None:
    """Has reached the disk on return; OSError leaves it as it was."""
    os.makedirs(_folder(), mode=0o755, exist_ok=True)
    files.write_atomic(os.path.join(_folder(), uuid), f"{_line(reason)}\n".encode(), fsync=True)


def undrain(uuid: str) -> bool:
    """Whether it was drained."""
    try:
        os.unlink(os.path.join(_folder(), uuid))
    except FileNotFoundError:
        return False
    return True
