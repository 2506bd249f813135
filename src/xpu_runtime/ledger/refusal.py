"""A refusal: why a request is not granted, as a value.

One vocabulary of codes; the same value prints in docker's error line, in `xpu explain`, and later in
a scheduler's answer.
"""

from __future__ import annotations

from xpu_runtime.errors import XpuError
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Every code, and the phrase that it stands for.
CODES = {
    "no-device": "the node has no device",
    "unknown-device": "a device that was named does not exist",
    "not-eligible": "no device may or can serve this request",
    "not-enough-devices": "fewer devices than asked for",
    "not-enough-memory": "not enough free memory",
    "not-enough-cores": "not enough free cores",
    "not-enough": "no device has enough free memory and cores at once",
    "in-use": "a whole device was asked for, and each is in use",
    "below-use": "a limit below what the container uses now",
}

#: Devices named in the one-line message; the value holds all.
_SHOWN = 8


class DeviceFigures(Value):
    """One device at the time of the refusal; `reason` says why it does not serve."""

    index: str
    free_memory_bytes: int
    free_cores: int
    reason: str


class Refusal(Value):
    code: str
    message: str
    devices: tuple[DeviceFigures, ...] = ()
    #: Variables of the nearest request that fits now; None where nothing does.
    nearest: dict[str, str] | None = None

    def as_plain(self) -> dict[str, Any]:
        """The JSON form that scripts may rely on."""
        return {
            "code": self.code,
            "message": self.message,
            "devices": [
                {**figures.as_dict(), "index": plain_index(figures.index)} for figures in self.devices
            ],
            "nearest": self.nearest,
        }

    def line(self, spelling: dict[str, str] | None = None) -> str:
        """All of it in one line for people; `spelling`: what stands for `XPU_MEM=` and so on where the door
        that is asked takes no variables."""
        parts = [f"GPU {d.index}: {d.reason}" for d in self.devices[:_SHOWN]]
        if len(self.devices) > _SHOWN:
            parts.append(f"and {len(self.devices) - _SHOWN} more")
        text = f"{self.message} ({'; '.join(parts)})" if parts else self.message
        if self.nearest:
            text += "; the nearest request that fits now: " + " ".join(
                (spelling or {}).get(name, f"{name}=") + value for name, value in self.nearest.items()
            )
        elif self.devices:
            text += "; nothing smaller fits now either: see `xpu ps` for who holds what"
        return text


class Refused(XpuError):
    """A refusal on its way to a door."""

    code = "refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__("refused: " + refusal.line())
        self.refusal = refusal


def plain_index(index: str) -> int | str:
    """A GPU's index as a number, a MIG device's ("0:1") as text."""
    return int(index) if index.isdigit() else index
