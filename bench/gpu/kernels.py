"""Kernels that keep a device busy for a given time, and events, by the driver API alone, without a framework.

A simulated card takes a kernel's time from its name. A real one runs `spin`, which counts its own iterations.
Their time is measured first.
"""

from __future__ import annotations

import ctypes

import card

PTX = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 iterations, .param .u64 out) {
    .reg .pred %p; .reg .b64 %d<4>;
    ld.param.u64 %d1, [iterations];
    mov.u64 %d2, %d1;
again:
    mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;
    add.u64 %d1, %d1, -1;
    setp.ne.u64 %p, %d1, 0;
    @%p bra again;
    ld.param.u64 %d3, [out];
    setp.ne.u64 %p, %d3, 0;
    @%p st.global.u64 [%d3], %d2;
    ret;
}
"""
#: Threads of `spin`, so that every multiprocessor has work.
_BLOCKS, _THREADS = 528, 128
_BLOCKING_SYNC = 1
_NOT_READY = 600  # CUDA_ERROR_NOT_READY


class Event:
    """An event on the one stream of Kernels. A wait for it keeps no processor busy."""

    def __init__(self, cuda: card.Cuda) -> None:
        self._cuda, self._handle = cuda, ctypes.c_void_p()
        cuda.must("cuEventCreate", ctypes.byref(self._handle), _BLOCKING_SYNC)

    def record(self) -> None:
        self._cuda.must("cuEventRecord", self._handle, None)

    def synchronize(self) -> None:
        self._cuda.must("cuEventSynchronize", self._handle)

    def query(self) -> bool:
        """Whether the event has come."""
        status = self._cuda.call("cuEventQuery", self._handle)
        if status not in (0, _NOT_READY):
            card.fail(f"cuEventQuery: {self._cuda.name(status)}")
        return status == 0

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds of the device's clock from this event to a later one."""
        taken = ctypes.c_float()
        self._cuda.must("cuEventElapsedTime", ctypes.byref(taken), self._handle, later._handle)
        return taken.value


class Kernels:
    """Launches kernels of about `microseconds`, or of that many `iterations`, on the default stream. `named`:
    the kernel's name on a simulated card, which gives its behaviour."""

    def __init__(
        self, cuda: card.Cuda, microseconds: int, blocks: int = _BLOCKS, iterations: int = 0, named: str = ""
    ) -> None:
        self._cuda, self._function, self._blocks = cuda, ctypes.c_void_p(), blocks
        self._iterations, self._out = ctypes.c_uint64(iterations or 1000), ctypes.c_uint64(0)
        pointers = [ctypes.addressof(each) for each in (self._iterations, self._out)]
        self._arguments = (ctypes.c_void_p * 2)(*pointers)
        module = ctypes.c_void_p()
        cuda.must("cuModuleLoadData", ctypes.byref(module), PTX)
        by_name = (named or f"busy_{microseconds}us").encode()
        if cuda.call("cuModuleGetFunction", ctypes.byref(self._function), module, by_name):
            cuda.must("cuModuleGetFunction", ctypes.byref(self._function), module, b"spin")
            if not iterations:
                self._calibrate(microseconds)

    @property
    def iterations(self) -> int:
        """The iterations of each thread of a kernel. Another process uses them to make the same work."""
        return self._iterations.value

    def launch(self) -> None:
        self._cuda.must(
            "cuLaunchKernel",
            *(self._function, self._blocks, 1, 1, _THREADS, 1, 1, 0, None, self._arguments, None),
        )

    def take(self, iterations: int) -> None:
        """Sets the iterations of each thread of the next kernels."""
        self._iterations.value = iterations

    def write_to(self, address: int) -> None:
        """Sets the address to which the next kernels write their results."""
        self._out.value = address

    def computes(self) -> bool:
        """Whether one thread's result is right: the host computes it, too."""
        place = self._cuda.plain(8)
        if place < 0:
            return False
        before = self._iterations.value
        self._iterations.value, self._out.value = 1000, place
        self.launch()
        self._iterations.value, self._out.value = before, 0
        got, wanted = ctypes.c_uint64(), 1000
        self._cuda.must("cuCtxSynchronize")
        self._cuda.must("cuMemcpyDtoH_v2", ctypes.byref(got), ctypes.c_ulonglong(place), ctypes.c_size_t(8))
        self._cuda.free_plain(place)
        for _ in range(1000):
            wanted = (wanted * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return got.value == wanted

    def _calibrate(self, microseconds: int) -> None:
        self._iterations.value = 100000
        for _ in range(20):  # the first runs wake the card's clocks
            self.launch()
        # Under a cap a launch may wait between the two events. The quickest did not.
        start, end, taken = Event(self._cuda), Event(self._cuda), []
        for _ in range(20):
            start.record()
            self.launch()
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end))
        each = min(taken) * 1000 / self._iterations.value
        self._iterations.value = max(1, round(microseconds / each))
