"""A worker's functions (worker.py) for events; it knows each event by a number."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_void_p

from .calls import OUT, Calls, value


class Events(Calls):
    cuda: ctypes.CDLL
    events: list[int]

    def event(self) -> int:
        """Records a new event; its number."""
        result, number = self.event_create(0)
        if result or self.event_record(number):
            raise RuntimeError("no event")
        return number

    def event_create(self, flags: int) -> list[int]:
        """Result and number."""
        return self._numbered(self.pair("cuEventCreate", OUT, flags))

    def event_record(self, number: int) -> int:
        return self.code("cuEventRecord", self.events[number], None)

    def event_query(self, number: int) -> int:
        return self.code("cuEventQuery", self.events[number])

    def event_synchronize(self, number: int) -> int:
        return self.code("cuEventSynchronize", self.events[number])

    def event_await(self, number: int) -> int:
        """Makes the default stream's later work wait for it."""
        return self.code("cuStreamWaitEvent", None, self.events[number], 0)

    def event_destroy(self, number: int) -> int:
        return self.code("cuEventDestroy_v2", self.events[number])

    def event_ipc_get(self, number: int) -> list[int | str]:
        return self.call("cuIpcGetEventHandle", {"out": 64}, self.events[number])

    def event_ipc_open(self, handle: str) -> list[int]:
        """Result and number."""
        return self._numbered(self.pair("cuIpcOpenEventHandle", OUT, value(handle)))

    def event_ipc_reopen(self, handle: str, times: int) -> int:
        """Opens and destroys it as often; the first result that is not 0."""
        result = 0
        for _ in range(times):
            opened, event = self.pair("cuIpcOpenEventHandle", OUT, value(handle))
            result = result or opened or self.code("cuEventDestroy_v2", event)
        return result

    def elapsed(self, start: int, end: int) -> list[float]:
        """Result and milliseconds."""
        took = c_float()
        events = [c_void_p(self.events[at]) for at in (start, end)]
        return [self.cuda.cuEventElapsedTime(byref(took), *events), took.value]

    def _numbered(self, made: list[int]) -> list[int]:
        """A result and an event, with its number in its place."""
        result, event = made
        self.events.append(event)
        return [result, len(self.events) - 1]
