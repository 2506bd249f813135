"""A worker's functions (worker.py) for linked code, maps of tensors, and waits for values."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p

PTX = 1


class Code:
    cuda: ctypes.CDLL

    def linked(self, size: int, path: str) -> list[int]:
        """Links two texts of `size` bytes and a file, launches a kernel of it: result, bytes of the image."""
        state, image, bytes_of_it = c_void_p(), c_void_p(), c_size_t()
        module, function = c_void_p(), c_void_p()
        text = b".version 8.0\n".ljust(size)
        result = self.cuda.cuLinkCreate_v2(0, None, None, byref(state))
        for name in (b"one", b"other"):
            result = result or self.cuda.cuLinkAddData_v2(
                state, PTX, text, c_size_t(size), name, 0, None, None
            )
        result = result or self.cuda.cuLinkAddFile_v2(state, PTX, path.encode(), 0, None, None)
        result = result or self.cuda.cuLinkComplete(state, byref(image), byref(bytes_of_it))
        result = result or self.cuda.cuModuleLoadData(byref(module), image)
        result = result or self.cuda.cuLinkDestroy(state)
        result = result or self.cuda.cuModuleGetFunction(byref(function), module, b"kernel")
        result = result or self.cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        return [int(result), bytes_of_it.value]

    def link_wrongly(self, path: str) -> list[int]:
        """Results: an empty text, an unknown kind, a missing file; an image of nothing; the end."""
        state, image = c_void_p(), c_void_p()
        self.cuda.cuLinkCreate_v2(0, None, None, byref(state))
        return [
            self.cuda.cuLinkAddData_v2(state, PTX, b"", c_size_t(0), None, 0, None, None),
            self.cuda.cuLinkAddData_v2(state, 6, b"x", c_size_t(1), None, 0, None, None),
            self.cuda.cuLinkAddFile_v2(state, PTX, path.encode(), 0, None, None),
            self.cuda.cuLinkComplete(state, byref(image), None),
            self.cuda.cuLinkDestroy(state),
        ]

    def tensor_map(self, address: int, sizes: list[int], strides: list[int], box: list[int]) -> list[int]:
        """cuTensorMapEncodeTiled of bytes: result, and how many bytes of the map are not 0."""
        room = (ctypes.c_ubyte * (128 + 63))()
        start = -ctypes.addressof(room) % 64
        rank = len(sizes)
        result = self.cuda.cuTensorMapEncodeTiled(
            byref(room, start),
            0,
            rank,
            c_void_p(address),
            (c_uint64 * rank)(*sizes),
            (c_uint64 * max(rank - 1, 1))(*strides),
            (c_uint * rank)(*box),
            (c_uint * rank)(*[1] * rank),
            *[0] * 4,
        )
        return [int(result), sum(byte != 0 for byte in room)]

    def await_values(self, pointer: int) -> list[int]:
        """The results of waiting for a value of 32 and of 64 bits, and of a batch of both."""
        return [
            self.cuda.cuStreamWaitValue32(None, c_ulonglong(pointer), c_uint(0), 0),
            self.cuda.cuStreamWaitValue64(None, c_ulonglong(pointer), c_uint64(0), 0),
            self.cuda.cuStreamBatchMemOp(None, 0, None, 0),
        ]
