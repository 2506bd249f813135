"""A worker's functions (worker.py) for events; it knows each event by a number."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_void_p


class Handle(ctypes.Structure):
    """CUipcEventHandle"""

    _fields_ = [("reserved", ctypes.c_char * 64)]


class Events:
    cuda: ctypes.CDLL
    events: list[c_void_p]

    def event(self) -> int:
        """Records a new event; its number."""
        event = c_void_p()
        if self.cuda.cuEventCreate(byref(event), 0) or self.cuda.cuEventRecord(event, None):
            raise RuntimeError("no event")
        self.events.append(event)
        return len(self.events) - 1

    def event_create(self, flags: int) -> list[int]:
        """Result and number."""
        event = c_void_p()
        return [self.cuda.cuEventCreate(byref(event), flags), self._numbered(event)]

    def event_record(self, number: int) -> int:
        return int(self.cuda.cuEventRecord(self.events[number], None))

    def event_query(self, number: int) -> int:
        return int(self.cuda.cuEventQuery(self.events[number]))

    def event_synchronize(self, number: int) -> int:
        return int(self.cuda.cuEventSynchronize(self.events[number]))

    def event_await(self, number: int) -> int:
        """Makes the default stream's later work wait for it."""
        return int(self.cuda.cuStreamWaitEvent(None, self.events[number], 0))

    def event_destroy(self, number: int) -> int:
        return int(self.cuda.cuEventDestroy_v2(self.events[number]))

    def event_ipc_get(self, number: int) -> list[int | str]:
        handle = ctypes.create_string_buffer(64)
        return [self.cuda.cuIpcGetEventHandle(handle, self.events[number]), handle.raw.hex()]

    def event_ipc_open(self, handle: str) -> list[int]:
        """Result and number."""
        event = c_void_p()
        passed = Handle.from_buffer_copy(bytes.fromhex(handle))
        return [self.cuda.cuIpcOpenEventHandle(byref(event), passed), self._numbered(event)]

    def event_ipc_reopen(self, handle: str, times: int) -> int:
        """Opens and destroys it twice; the first result that is not 0."""
        event = c_void_p()
        passed = Handle.from_buffer_copy(bytes.fromhex(handle))
        result = 0
        for _ in range(times):
            result = result or self.cuda.cuIpcOpenEventHandle(byref(event), passed)
            result = result or self.cuda.cuEventDestroy_v2(event)
        return int(result)

    def elapsed(self, start: int, end: int) -> list[float]:
        """Result and milliseconds."""
        took = c_float()
        result = self.cuda.cuEventElapsedTime(byref(took), self.events[start], self.events[end])
        return [result, took.value]

    def _numbered(self, event: c_void_p) -> int:
        self.events.append(event)
        return len(self.events) - 1
