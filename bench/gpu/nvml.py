"""The driver's own NVML for one device, on the host and in a slice: it reads, and never sets.

Structures are those of native/headers/nvml/nvml.h.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import card

NOT_FOUND, NO_FUNCTION = 6, 13
_UNKNOWN = (1 << 64) - 1
_SM = 1  # NVML_CLOCK_SM
_BUSY = 1  # NVML_GPU_UTILIZATION_SAMPLES
_CLOCK_EACH_S, _USE_EACH_S = 0.1, 0.2
_MOST = 1024


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("at", ctypes.c_ulonglong)] + [
        (name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")
    ]


class _Busy(ctypes.Structure):
    """nvmlSample_t with an unsigned int."""

    _fields_ = [("at", ctypes.c_ulonglong), ("percent", ctypes.c_uint), ("more", ctypes.c_uint)]


class _Accounting(ctypes.Structure):
    _fields_ = [
        ("gpu", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("most", ctypes.c_ulonglong),
        ("time", ctypes.c_ulonglong),
        ("start", ctypes.c_ulonglong),
        ("running", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 5),
    ]


@dataclass(frozen=True)
class Sample:
    """A sample of a process: its time (us, on the driver's clock), and its percentage of the SMs' time."""

    pid: int
    at: int
    sm: int


class Nvml:
    """Functions return None if the driver does not answer. `status` then has the reason (nvmlReturn_t) of
    this thread's last call."""

    def __init__(self, path: str, uuid: str) -> None:
        """OSError: there is no such library, or it does not start."""
        self._library = ctypes.CDLL(path)
        self._device, self._of_thread = ctypes.c_void_p(), threading.local()
        for name, words in (
            ("nvmlInit_v2", ()),
            ("nvmlDeviceGetHandleByUUID", (uuid.encode(), ctypes.byref(self._device))),
        ):
            if status := getattr(self._library, name)(*words):
                raise OSError(f"{name} of {path}: error {status}")

    @property
    def status(self) -> int:
        return getattr(self._of_thread, "status", 0)

    def _call(self, name: str, *words: Any) -> bool:
        function = getattr(self._library, name, None)
        self._of_thread.status = function(self._device, *words) if function else NO_FUNCTION
        return self.status == 0

    def processes(self) -> dict[int, int | None] | None:
        """The bytes of each computing process by pid; None for an unknown size."""
        for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
            found, count = (_Process * _MOST)(), ctypes.c_uint(_MOST)
            if self._call(name, ctypes.byref(count), found):
                return {
                    each.pid: None if each.used == _UNKNOWN else each.used for each in found[: count.value]
                }
        return None

    def own(self) -> int | None:
        """The bytes of this process; None: unknown. In a container it may be listed by its pid on the host. A
        single listed process is taken for it."""
        listed = self.processes() or {}
        return listed.get(os.getpid(), next(iter(listed.values())) if len(listed) == 1 else None)

    def used(self) -> int | None:
        """Used bytes of the card, of all processes (nvmlMemory_t: total, free, used)."""
        amounts = (ctypes.c_ulonglong * 3)()
        return amounts[2] if self._call("nvmlDeviceGetMemoryInfo", amounts) else None

    def utilisation(self, since: int) -> list[Sample] | None:
        """The samples after that time (as Sample.at)."""
        found, count = (_Sample * _MOST)(), ctypes.c_uint(_MOST)
        name = "nvmlDeviceGetProcessUtilization"
        if not self._call(name, found, ctypes.byref(count), ctypes.c_ulonglong(since)):
            return None
        return [Sample(each.pid, each.at, each.sm) for each in found[: count.value]]

    def busy(self, since: int) -> list[tuple[int, int]] | None:
        """For each sample after that time: its time (as Sample.at), and the percentage of the time before it
        in which a kernel ran."""
        found, count, kind = (_Busy * _MOST)(), ctypes.c_uint(_MOST), ctypes.c_uint()
        words = (_BUSY, ctypes.c_ulonglong(since), ctypes.byref(kind), ctypes.byref(count), found)
        if not self._call("nvmlDeviceGetSamples", *words):
            return None
        return [(each.at, each.percent) for each in found[: count.value] if each.at > since]

    def accounting(self) -> bool | None:
        """Whether accounting mode is on."""
        mode = ctypes.c_uint()
        return bool(mode.value) if self._call("nvmlDeviceGetAccountingMode", ctypes.byref(mode)) else None

    def accounted(self, pid: int) -> dict[str, int] | None:
        """Accounting's figures of a process: percentages, bytes, milliseconds."""
        found = _Accounting()
        if not self._call("nvmlDeviceGetAccountingStats", ctypes.c_uint(pid), ctypes.byref(found)):
            return None
        return {name: int(getattr(found, name)) for name in ("gpu", "memory", "most", "time", "running")}

    def clock(self) -> int | None:
        """The SMs' clock in MHz."""
        clock = ctypes.c_uint()
        return clock.value if self._call("nvmlDeviceGetClockInfo", _SM, ctypes.byref(clock)) else None


_Own = TypeVar("_Own", bound="Thread")


def in_slice(uuid: str) -> Nvml:
    """NVML in a slice, past the interposers. The program ends if it does not start there."""
    try:
        return Nvml(f"{card.folder()}/libnvidia-ml.real", uuid)
    except OSError as error:
        card.missing(f"the driver's NVML does not start, or has no device {uuid}: {error}")


class Thread:
    """A context manager: while it is open, a thread looks at the device."""

    def __init__(self, nvml: Nvml, every: float, look: Callable[[], None]) -> None:
        self._nvml, self._every, self._look_now = nvml, every, look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._look_now()

    def __enter__(self: _Own) -> _Own:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Clocks(Thread):
    """The device's clock."""

    def __init__(self, nvml: Nvml) -> None:
        super().__init__(nvml, _CLOCK_EACH_S, self._look)
        self._samples = list[tuple[float, int]]()

    def mean(self, since: float) -> float:
        """MHz from that time (CLOCK_MONOTONIC) until now; 0: unknown."""
        found = [clock for moment, clock in list(self._samples) if moment >= since]
        return sum(found) / len(found) if found else 0.0

    def _look(self) -> None:
        if clock := self._nvml.clock():
            self._samples.append((time.monotonic(), clock))


class Use(Thread):
    """How busy the device is, in all and by process, by the driver's samples. These come 100 ms late."""

    def __init__(self, nvml: Nvml) -> None:
        super().__init__(nvml, _USE_EACH_S, self._look)
        self._device, self._of = list[tuple[int, int]](), list[Sample]()
        self._last = int(time.time() * 1e6)

    def mean(self, since: float, until: float, pid: int | None = None) -> float | None:
        """Percent between two times (seconds since 1970), for a process or the device; None: no sample."""
        seen = (
            list(self._device)
            if pid is None
            else [(each.at, each.sm) for each in list(self._of) if each.pid == pid]
        )
        found = [percent for at, percent in seen if since * 1e6 <= at <= until * 1e6]
        return sum(found) / len(found) if found else None

    def _look(self) -> None:
        self._device += self._nvml.busy(max([self._last, *(at for at, _ in self._device[-1:])])) or []
        last = max([self._last, *(each.at for each in self._of[-_MOST:])])
        self._of += self._nvml.utilisation(last) or []
