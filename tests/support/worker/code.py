"""A worker's functions (worker.py) for linked code, maps of tensors, and waits for values."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_uint64, c_void_p

from .calls import OUT, Calls, buffer, number

PTX = 1
KERNEL = buffer(b"kernel\0")


class Code(Calls):
    cuda: ctypes.CDLL

    def linked(self, size: int, path: str) -> list[int]:
        """Links two texts of `size` bytes and a file, launches a kernel of it: result, bytes of the image."""
        text = buffer(b".version 8.0\n".ljust(size))
        result, state = self.pair("cuLinkCreate_v2", 0, None, None, OUT)
        for name in (b"one\0", b"other\0"):
            added = self.code("cuLinkAddData_v2", state, PTX, text, size, buffer(name), 0, None, None)
            result = result or added
        result = result or self._add_file(state, path)
        completed, *image = self.call("cuLinkComplete", state, OUT, OUT)
        address, bytes_of_it = map(number, image)
        loaded, module = self.pair("cuModuleLoadData", OUT, address)
        result = result or completed or loaded or self.code("cuLinkDestroy", state)
        found, function = self.pair("cuModuleGetFunction", OUT, module, KERNEL)
        launched = self.code("cuLaunchKernel", function, *[1] * 6, 0, None, None, None)
        return [result or found or launched, bytes_of_it]

    def link_wrongly(self, path: str) -> list[int]:
        """Results: an empty text, an unknown kind, a missing file; an image of nothing; the end."""
        state = self.pair("cuLinkCreate_v2", 0, None, None, OUT)[1]
        return [
            self.code("cuLinkAddData_v2", state, PTX, buffer(b""), 0, None, 0, None, None),
            self.code("cuLinkAddData_v2", state, 6, buffer(b"x"), 1, None, 0, None, None),
            self._add_file(state, path),
            self.code("cuLinkComplete", state, OUT, None),
            self.code("cuLinkDestroy", state),
        ]

    def _add_file(self, state: int, path: str) -> int:
        return self.code("cuLinkAddFile_v2", state, PTX, buffer(path.encode() + b"\0"), 0, None, None)

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
            self.code("cuStreamWaitValue32", None, pointer, 0, 0),
            self.code("cuStreamWaitValue64", None, pointer, 0, 0),
            self.code("cuStreamBatchMemOp", None, 0, None, 0),
        ]
