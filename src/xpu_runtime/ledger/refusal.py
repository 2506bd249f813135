"""A refusal: why a request is not granted, as a value.

It has one vocabulary of codes. The same value prints in docker's error line, in `xpu explain` and in a pod's
events; so it has only facts about the ledger and the devices, not these themselves. The scheduler extender
has words of its own (kubernetes/extender/reasons.py).
"""

from __future__ import annotations

from xpu_runtime.errors import XpuError
from xpu_runtime.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xpu_runtime.ledger.vocabulary import Code

#: Reasons in the one-line message; the value holds each device's.
_SHOWN = 8
#: The same for indexes that are not consecutive.
_SPANS = 16


class DeviceStatus(Value):
    """One device at the time of the refusal, and the reason why it cannot serve the request."""

    index: str
    free_memory_bytes: int
    free_cores: int
    reason: str


class Refusal(Value):
    code: Code
    message: str
    devices: tuple[DeviceStatus, ...] = ()
    #: The variables of the nearest request that fits now; None: nothing fits.
    nearest: dict[str, str] | None = None
    #: Whether memory or cores are short: a smaller request could fit, or the same one later.
    is_full: bool = False

    def line(self, spelling: dict[str, str] | None = None, nearest: str = "") -> str:
        """The refusal in one line for people. `spelling` replaces `XPU_MEM=` and the like for a command with
        options, or for annotations, instead of variables; `nearest` replaces the whole nearest request."""
        groups = _by_reason(self.devices)
        parts = [f"GPU {spans(group)}: {reason}" for reason, group in groups[:_SHOWN]]
        if len(groups) > _SHOWN:
            parts.append(f"and {sum(len(group) for _, group in groups[_SHOWN:])} more")
        text = f"{self.message} ({'; '.join(parts)})" if parts else self.message
        if self.nearest:
            text += "; the nearest request that fits now: " + (
                nearest
                or " ".join(
                    (spelling or {}).get(name, f"{name}=") + value for name, value in self.nearest.items()
                )
            )
        elif self.is_full:
            text += "; nothing smaller fits now either: `xpu ps` lists the holders"
        return text


class Refused(XpuError):
    """A refusal as an error, on its way to an entry point."""

    def __init__(self, refusal: Refusal, spelling: dict[str, str] | None = None) -> None:
        super().__init__("refused: " + refusal.line(spelling))
        self.refusal = refusal


def _by_reason(devices: tuple[DeviceStatus, ...]) -> list[tuple[str, list[str]]]:
    """Each reason with the indexes of the devices that share it, in the devices' order."""
    found: dict[str, list[str]] = {}
    for device in devices:
        found.setdefault(device.reason, []).append(device.index)
    return list(found.items())


def spans(indexes: list[str]) -> str:
    """`0-3, 5`: three or more consecutive indexes as a range; MIG devices (`0:0`) one by one."""
    runs: list[list[str]] = []
    for index in indexes:
        follows = bool(runs) and runs[-1][-1].isdigit() and index == str(int(runs[-1][-1]) + 1)
        if follows:
            runs[-1].append(index)
        else:
            runs.append([index])
    spans = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else run for run in runs]
    shown = [index for span in spans for index in span]
    return ", ".join(shown[:_SPANS]) + (f" and {len(shown) - _SPANS} more" if len(shown) > _SPANS else "")


def plain_index(index: str) -> int | str:
    """A GPU's index as a number, a MIG device's ("0:1") as text."""
    return int(index) if index.isdigit() else index
