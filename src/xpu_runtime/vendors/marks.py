"""Operators' marks on devices. Drained: given to no new container. Reserved: given only to containers that
name the reservation. Both bind every container, and outlive reboots.

A folder for each in the state folder, and in it a file for each device, named by its UUID, with a line of
text: they are made and removed in one step each, so that nothing is locked, and a container's start reads one
folder, which most nodes do not have. A GPU's mark is that of its partitions too that have none of their own.
"""

from __future__ import annotations

import os

from xpu_runtime import paths
from xpu_runtime.errors import ConfigError
from xpu_runtime.linux import files
from xpu_runtime.request.request import is_name
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.vendors.inventory import Device

#: The folders.
DRAINED, RESERVED = "drained", "reserved"
_LONGEST = 200  # characters of a reason
_LARGEST = 4096  # bytes of a file


class Reservation(Value):
    """The name that containers must give to get the device. "" (a file without a name) matches no
    container."""

    name: str
    reason: str


class Marks(Value):
    """By the UUID of the device or of its GPU: why it is drained ("" where no reason was given), and for whom
    it is reserved."""

    drained: dict[str, str]
    reserved: dict[str, Reservation]

    def why_drained(self, device: Device) -> str | None:
        """None: it is not."""
        return self.drained.get(device.uuid, self.drained.get(device.parent or ""))

    def reservation(self, device: Device) -> Reservation | None:
        """None: it is not reserved."""
        return self.reserved.get(device.uuid, self.reserved.get(device.parent or ""))


def read() -> Marks:
    """All marks. ConfigError if they cannot be read: no device is given then."""
    try:
        kinds = os.listdir(paths.state_dir())
    except FileNotFoundError:
        kinds = []
    except OSError as error:
        raise _unreadable(error) from None
    drained = _read(DRAINED) if DRAINED in kinds else {}
    reserved = _read(RESERVED) if RESERVED in kinds else {}
    return Marks(
        {uuid: line(text) for uuid, text in drained.items()},
        {uuid: _reservation(text) for uuid, text in reserved.items()},
    )


def _read(kind: str) -> dict[str, str]:
    folder, found = _folder(kind), {}
    try:
        for name in os.listdir(folder):
            if name[0] != ".":
                try:
                    found[name] = files.read(os.path.join(folder, name), _LARGEST).decode("utf-8", "replace")
                except FileNotFoundError:
                    pass  # the mark was removed just now
    except OSError as error:
        raise _unreadable(error) from None
    return found


def _reservation(text: str) -> Reservation:
    name, _, reason = text.rstrip("\n").partition(" ")
    return Reservation(name if is_name(name) else "", line(reason))


def _folder(kind: str) -> str:
    return os.path.join(paths.state_dir(), kind)


def _unreadable(error: OSError) -> ConfigError:
    why = f"the drained and reserved devices are not known: {error.filename}: {error.strerror}"
    return ConfigError(why, "mend that, or remove it, then drain and reserve again")


def line(text: str) -> str:
    """A reason as it is kept: one line, that a terminal can take, and not too long."""
    return "".join(char if char.isprintable() else " " for char in text)[:_LONGEST].strip()


def as_drained(reason: str) -> str:
    return f"drained: {reason}" if reason else "drained"


def as_reserved(reservation: Reservation) -> str:
    text = f"reserved for {reservation.name or 'nobody'}"
    return f"{text}: {reservation.reason}" if reservation.reason else text


def drain(uuid: str, reason: str) -> None:
    """Has reached the disk on return; OSError leaves it as it was."""
    _write(DRAINED, uuid, line(reason))


def reserve(uuid: str, reservation: Reservation) -> None:
    """As `drain`; for another name, it takes the place of that."""
    _write(RESERVED, uuid, f"{reservation.name} {line(reservation.reason)}")


def _write(kind: str, uuid: str, text: str) -> None:
    for folder in (paths.state_dir(), _folder(kind)):
        try:
            os.makedirs(folder)
            os.chmod(folder, 0o755)  # noqa: S103 - whatever the umask is
        except FileExistsError:
            pass
    files.write_atomic(os.path.join(_folder(kind), uuid), f"{text}\n".encode(), fsync=True)


def remove(kind: str, uuid: str) -> bool:
    """Returns whether there was such a mark."""
    try:
        os.unlink(os.path.join(_folder(kind), uuid))
    except FileNotFoundError:
        return False
    return True
