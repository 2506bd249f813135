"""A worker's functions (worker.py) that ask a device and a kernel about themselves, also by the private
tables that NVIDIA's libraries read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p

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


class Kernels:
    cuda: ctypes.CDLL
    module: c_void_p

    def device_attributes(self, numbers: list[int], device: int = 0) -> list[int]:
        """cuDeviceGetAttribute's values; -1 for an error."""
        value = c_int()
        return [
            -1 if self.cuda.cuDeviceGetAttribute(byref(value), number, device) else value.value
            for number in numbers
        ]

    def kernel_set(self, attribute: int, value: int) -> list[int]:
        """Sets an attribute of a kernel and reads it back: both results, and the value."""
        kernel, told = self._kernel(), c_int()
        result = self.cuda.cuFuncSetAttribute(kernel, attribute, value)
        return [result, self.cuda.cuFuncGetAttribute(byref(told), attribute, kernel), told.value]

    def blocks(self, threads: int, shared: int) -> list[int]:
        """How many blocks fit on a multiprocessor: result and number."""
        told = c_int()
        result = self.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            byref(told), self._kernel(), threads, c_size_t(shared)
        )
        return [result, told.value]

    def shared_for(self, blocks: int) -> list[int]:
        """How much shared memory each of so many blocks of a multiprocessor can have: result and bytes."""
        told = c_size_t()
        result = self.cuda.cuOccupancyAvailableDynamicSMemPerBlock(byref(told), self._kernel(), blocks, 32)
        return [result, told.value]

    def clusters(self, size: int, threads: int, shared: int = 0) -> list[int]:
        """How many clusters of `size` blocks fit on the device, and how large they may be, with results."""
        attribute = (ctypes.c_uint * 18)(CLUSTER_DIMENSION, 0, size, 1, 1)
        config = Config((1, 1, 1, threads, 1, 1, shared), None, ctypes.addressof(attribute), 1)
        fit, largest = c_int(), c_int()
        return [
            self.cuda.cuOccupancyMaxActiveClusters(byref(fit), self._kernel(), byref(config)),
            fit.value,
            self.cuda.cuOccupancyMaxPotentialClusterSize(byref(largest), self._kernel(), byref(config)),
            largest.value,
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
        library, kernel = c_void_p(), c_void_p()
        text = ctypes.create_string_buffer(b".version 8.0\n".ljust(size))
        loaded = self.cuda.cuLibraryLoadData(
            byref(library), text, None, None, 0, (c_int * len(options))(*options), None, len(options)
        )
        ctypes.memset(text, 0, size)
        result = loaded or self.cuda.cuLibraryGetKernel(byref(kernel), library, b"kernel")
        result = result or self.cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        return [loaded, result]

    def _kernel(self) -> c_void_p:
        kernel = c_void_p()
        self.cuda.cuModuleGetFunction(byref(kernel), self.module, b"kernel")
        return kernel

    def _entry(self, table: bytes, number: int) -> Callable[..., int]:
        """A function of a private table."""
        entries = ctypes.POINTER(c_void_p)()
        self.cuda.cuGetExportTable(byref(entries), table)
        return ctypes.CFUNCTYPE(c_int)(entries[number] or 0)
