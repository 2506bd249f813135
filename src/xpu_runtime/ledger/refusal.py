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

#: Reasons in the one-line message; the value holds each device's.
_SHOWN = 8
#: And of indexes, where they are no neighbours.
_SPANS = 16


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
    #: Whether free memory or free cores are what lacks: then less could fit, or the same later.
    is_full: bool = False

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
        groups = _by_reason(self.devices)
        parts = [f"GPU {_indexes(group)}: {reason}" for reason, group in groups[:_SHOWN]]
        if len(groups) > _SHOWN:
            parts.append(f"and {sum(len(group) for _, group in groups[_SHOWN:])} more")
        text = f"{self.message} ({'; '.join(parts)})" if parts else self.message
        if self.nearest:
            text += "; the nearest request that fits now: " + " ".join(
                (spelling or {}).get(name, f"{name}=") + value for name, value in self.nearest.items()
            )
        elif self.is_full:
            text += "; nothing smaller fits now either: see `xpu ps` for who holds what"
        return text


class Refused(XpuError):
    """A refusal on its way to a door."""

    code = "refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__("refused: " + refusal.line())
        self.refusal = refusal


def _by_reason(devices: tuple[DeviceFigures, ...]) -> list[tuple[str, list[str]]]:
    """Each reason with the indexes of the devices that share it, in the devices' order."""
    found: dict[str, list[str]] = {}
    for device in devices:
        found.setdefault(device.reason, []).append(device.index)
    return list(found.items())


def _indexes(indexes: list[str]) -> str:
    """`0-3, 5` for neighbours; MIG devices (`0:0`) one by one."""
    runs: list[list[str]] = []
    for index in indexes:
        follows = bool(runs) and runs[-1][-1].isdigit() and index == str(int(runs[-1][-1]) + 1)
        if follows:
            runs[-1].append(index)
        else:
            runs.append([index])
    # Of two neighbours both are named.
    spans = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else run for run in runs]
    shown = [index for span in spans for index in span]
    return ", ".join(shown[:_SPANS]) + (f" and {len(shown) - _SPANS} more" if len(shown) > _SPANS else "")


def plain_index(index: str) -> int | str:
    """A GPU's index as a number, a MIG device's ("0:1") as text."""
    return int(index) if index.isdigit() else index
