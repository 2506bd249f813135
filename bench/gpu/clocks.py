"""The card's clock while something runs, by the driver's NVML on the host: read, never set."""

from __future__ import annotations

import ctypes
import threading
import time

import places

_SM = 1  # NVML_CLOCK_SM
_EVERY_S = 0.1


class Clocks:
    """A context manager: a thread reads the clock of the first device."""

    def __init__(self, machine: places.Machine) -> None:
        self._samples: list[tuple[float, int]] = []
        self._over = threading.Event()
        self._nvml = ctypes.CDLL(machine.driver.path_of("libnvidia-ml.so.1"))
        self._device = ctypes.c_void_p()
        uuid = machine.query("uuid")[0].encode()
        usable = not self._nvml.nvmlInit_v2() and not self._nvml.nvmlDeviceGetHandleByUUID(
            uuid, ctypes.byref(self._device)
        )
        self._thread = threading.Thread(target=self._sample, daemon=True) if usable else None

    def mean(self, since: float) -> float:
        """MHz from that time (CLOCK_MONOTONIC) until now; 0: the driver does not say."""
        found = [clock for moment, clock in self._samples if moment >= since]
        return sum(found) / len(found) if found else 0.0

    def _sample(self) -> None:
        clock = ctypes.c_uint()
        while not self._over.wait(_EVERY_S):
            if not self._nvml.nvmlDeviceGetClockInfo(self._device, _SM, ctypes.byref(clock)):
                self._samples.append((time.monotonic(), clock.value))

    def __enter__(self) -> Clocks:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()
