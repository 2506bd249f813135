"""A worker's functions (worker.py) that ask a device and a kernel about themselves, also by the private
tables that NVIDIA's libraries read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_ulonglong, c_void_p

from .calls import OUT, Calls, buffer

#: cuGetExportTable's ids of the tables about a thread, about contexts and streams, and about modules; and of
#: the table of multiprocessors' places.
THREAD = bytes.fromhex("42d85a8123f6cb478298f6e78a3aecdc")
CONTEXT = bytes.fromhex("21318c60971432488ca641ff7324c8f2")
MODULE = bytes.fromhex("6e163fbeb958444d835ce182aff1991e")
PLACES = bytes.fromhex("1734dc26800d47458726c0f1e7dd8bca")
VISITOR = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
CLUSTER_DIMENSION, PRESERVED = 4, 1


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("numbers", ctypes.c_uint * 7),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", ctypes.c_uint),
    ]


class Kernels(Calls):
    cuda: ctypes.CDLL
    module: c_void_p

    def device_attributes(self, numbers: list[int], device: int = 0) -> list[int]:
        """cuDeviceGetAttribute's values; -1 for an error."""
        told = [self.pair("cuDeviceGetAttribute", OUT, number, device) for number in numbers]
        return [-1 if result else value for result, value in told]

    def kernel_set(self, attribute: int, value: int) -> list[int]:
        """Sets an attribute of a kernel and reads it back: both results, and the value."""
        kernel = self._kernel()
        result = self.code("cuFuncSetAttribute", kernel, attribute, value)
        return [result, *self.pair("cuFuncGetAttribute", OUT, attribute, kernel)]

    def blocks(self, threads: int, shared: int) -> list[int]:
        """How many blocks fit on a multiprocessor: result and number."""
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return self.pair(name, OUT, self._kernel(), threads, shared)

    def shared_for(self, blocks: int) -> list[int]:
        """How much shared memory each of so many blocks of a multiprocessor can have: result and bytes."""
        return self.pair("cuOccupancyAvailableDynamicSMemPerBlock", OUT, self._kernel(), blocks, 32)

    def clusters(self, size: int, threads: int, shared: int = 0) -> list[int]:
        """How many clusters of `size` blocks fit on the device, and how large they may be, with results."""
        attribute = (ctypes.c_uint * 18)(CLUSTER_DIMENSION, 0, size, 1, 1)
        config = Config((1, 1, 1, threads, 1, 1, shared), None, ctypes.addressof(attribute), 1)
        asked = (OUT, self._kernel(), ctypes.addressof(config))
        return [
            *self.pair("cuOccupancyMaxActiveClusters", *asked),
            *self.pair("cuOccupancyMaxPotentialClusterSize", *asked),
        ]

    def numbers_by_tables(self) -> list[int]:
        """Ids of the current context and of a stream: by the tables, and by cuCtxGetId and cuStreamGetId."""
        context, stream, behind = c_void_p(), c_void_p(), c_void_p()
        numbers = [c_ulonglong() for _ in range(4)]
        self.cuda.cuStreamCreate(byref(stream), 0)
        self._entry(THREAD, 2)(byref(context))
        self._entry(CONTEXT, 4)(context, byref(numbers[0]))
        self._entry(CONTEXT, 51)(context, stream, byref(behind), 0)
        self._entry(CONTEXT, 39)(context, behind, byref(numbers[1]))
        self.cuda.cuCtxGetId(context, byref(numbers[2]))
        self.cuda.cuStreamGetId(stream, byref(numbers[3]))
        return [number.value for number in numbers]

    def launch_each_kernel(self) -> list[int]:
        """Launches each kernel in the module's table: their number, and the results."""
        results = []

        def visit(of: int, kernel: int) -> None:
            results.append(self.cuda.cuLaunchKernel(c_void_p(kernel), 1, 1, 1, 1, 1, 1, 0, None, None, None))

        count = self._entry(MODULE, 7)(None, self.module, VISITOR(visit), None)
        return [count, *results]

    def places(self) -> int:
        """The result of the table of the multiprocessors' places."""
        return int(self._entry(PLACES, 4)(byref(c_void_p()), byref(c_void_p())))

    def load_library(self, size: int, options: list[int]) -> list[int]:
        """Loads a text of `size` bytes as a library, with options that have no values, and overwrites it
        before a kernel is launched: both results."""
        text = ctypes.create_string_buffer(b".version 8.0\n".ljust(size))
        given = (c_int * len(options))(*options)
        loaded, library = self.pair(
            "cuLibraryLoadData",
            OUT,
            ctypes.addressof(text),
            None,
            None,
            0,
            buffer(bytes(given)),
            None,
            len(options),
        )
        ctypes.memset(text, 0, size)
        found, kernel = self.pair("cuLibraryGetKernel", OUT, library, buffer(b"kernel\0"))
        launched = self.code("cuLaunchKernel", kernel, *[1] * 6, 0, None, None, None)
        return [loaded, loaded or found or launched]

    def _kernel(self) -> int:
        return self.pair("cuModuleGetFunction", OUT, self.module.value, buffer(b"kernel\0"))[1]

    def _entry(self, table: bytes, number: int) -> Callable[..., int]:
        """A function of a private table."""
        entries = ctypes.POINTER(c_void_p)()
        self.cuda.cuGetExportTable(byref(entries), table)
        return ctypes.CFUNCTYPE(c_int)(entries[number] or 0)
