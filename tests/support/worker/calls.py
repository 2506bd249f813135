"""Calls of CUDA's functions by name, with arguments that fit into JSON, for the programs of tests.

An argument is a number, null, or

    {"out": 8}       a buffer of that many zero bytes, passed by its address
    {"in": "00ff"}   a buffer with these bytes, passed by its address
    {"value": "…"}   a struct with these bytes, passed by value
"""

from __future__ import annotations

import ctypes
from typing import Any

#: A buffer for one number, handle or pointer.
OUT: dict[str, Any] = {"out": 8}


def buffer(content: bytes) -> dict[str, str]:
    """An argument that is passed by its address."""
    return {"in": content.hex()}


def value(content: str) -> dict[str, str]:
    """A struct that is passed by value; `content`: the bytes of one that a call returned."""
    return {"value": content}


def number(content: str) -> int:
    """A buffer's content as a number."""
    return int.from_bytes(bytes.fromhex(content), "little")


def called(function: Any, *arguments: Any) -> list[Any]:
    """Calls a function of a library. Returns its result and the contents of the buffers in hexadecimal."""
    passed: list[Any] = []
    buffers: list[Any] = []
    for argument in arguments:
        if isinstance(argument, dict) and "value" in argument:
            content = bytes.fromhex(argument["value"])
            fields = [("content", ctypes.c_char * len(content))]
            struct: Any = type("Struct", (ctypes.Structure,), {"_fields_": fields})
            passed.append(struct.from_buffer_copy(content))
        elif isinstance(argument, dict):
            content = bytes.fromhex(argument["in"]) if "in" in argument else bytes(argument["out"])
            buffers.append(ctypes.create_string_buffer(content, len(content)))
            passed.append(buffers[-1])
        else:
            passed.append(None if argument is None else ctypes.c_ulonglong(argument & (1 << 64) - 1))
    return [function(*passed), *(each.raw.hex() for each in buffers)]


class Calls:
    """Calls by name, and those that many tests make."""

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """The result, and the contents of the buffers in hexadecimal."""
        raise NotImplementedError

    def code(self, name: str, *arguments: Any) -> int:
        """The CUresult."""
        return int(self.call(name, *arguments)[0])

    def pair(self, name: str, *arguments: Any) -> list[int]:
        """The CUresult, and the first buffer as a number."""
        result, first, *_ = self.call(name, *arguments)
        return [result, number(first)]

    def alloc(self, size: int) -> list[int]:
        return self.pair("cuMemAlloc_v2", OUT, size)

    def free(self, pointer: int) -> int:
        return self.code("cuMemFree_v2", pointer)

    def alloc_managed(self, size: int) -> list[int]:
        return self.pair("cuMemAllocManaged", OUT, size, 1)

    def alloc_v1(self, size: int) -> list[int]:
        """The function for 32-bit pointers."""
        return self.pair("cuMemAlloc", OUT, size)

    def free_v1(self, pointer: int) -> int:
        return self.code("cuMemFree", pointer)

    def info(self) -> list[int]:
        """cuMemGetInfo: result, free, total."""
        result, *sizes = self.call("cuMemGetInfo_v2", OUT, OUT)
        return [result, *map(number, sizes)]

    def set_limit(self, limit: int, size: int) -> int:
        return self.code("cuCtxSetLimit", limit, size)

    def get_limit(self, limit: int) -> list[int]:
        return self.pair("cuCtxGetLimit", OUT, limit)

    def array_destroy(self, array: int) -> int:
        return self.code("cuArrayDestroy", array)

    def mipmap_destroy(self, mipmap: int) -> int:
        return self.code("cuMipmappedArrayDestroy", mipmap)
