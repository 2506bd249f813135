"""Programs in sandboxes that make any call of CUDA on demand, and the structs of these calls."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.simulation import Process
from xpu_runtime.limits import pages

from .sandboxes import Sandbox

#: CUresult.
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY = 0, 1, 2
#: CUmemLocationType.
DEVICE, HOST = 1, 2
POSIX_FD = 1  # CUmemAllocationHandleType
#: CUmemPool_attribute.
RELEASE_THRESHOLD, RESERVED, USED = 4, 5, 7

OUT: dict[str, Any] = {"out": 8}
WAYS = ("symbol", "lookup", "symbol-per-thread", "lookup-per-thread")


def buffer(content: bytes) -> dict[str, str]:
    """An argument that is passed by its address."""
    return {"in": content.hex()}


def u64(value: int) -> dict[str, str]:
    return buffer(struct.pack("<Q", value))


def value(content: str) -> dict[str, str]:
    """A struct that is passed by value; `content`: the bytes of one that a call returned."""
    return {"value": content}


def location(kind: int = DEVICE, number: int = 0) -> bytes:
    """CUmemLocation."""
    return struct.pack("<ii", kind, number)


def pool_properties(
    kind: int = DEVICE, number: int = 0, handles: int = 0, most: int = 0, managed: bool = False
) -> bytes:
    """CUmemPoolProps."""
    return struct.pack("<ii8s8xQ56x", 2 if managed else 1, handles, location(kind, number), most)


def allocation_properties(kind: int = DEVICE, number: int = 0, handles: int = 0, tiles: int = 0) -> bytes:
    """CUmemAllocationProp."""
    return struct.pack("<ii8s8xBBH4x", 1, handles, location(kind, number), 0, 0, tiles)


def allocation_node(size: int, kind: int = DEVICE, number: int = 0) -> bytes:
    """CUDA_MEM_ALLOC_NODE_PARAMS."""
    return pool_properties(kind, number) + struct.pack("<QQQQ", 0, 0, size, 0)


class Program(Process):
    """A process in a sandbox; see calls_program.py."""

    def __init__(self, sandbox: Sandbox, way: str = "symbol", setup: str = "", **environ: str) -> None:
        self.sandbox = sandbox
        script = str(Path(__file__).with_name("calls_program.py"))
        command = sandbox.command([sys.executable, script, way], setup)
        super().__init__(command, sandbox.environ(**environ), None)

    def call(self, name: str, *arguments: Any) -> list[Any]:
        self.send(name, *arguments)
        return list(self.result())

    def code(self, name: str, *arguments: Any) -> int:
        """The CUresult."""
        return int(self.call(name, *arguments)[0])

    def bytes(self, name: str, *arguments: Any) -> str:
        """The first buffer after a call that must succeed, in hexadecimal."""
        result, first, *_ = self.call(name, *arguments)
        assert result == SUCCESS, (name, result)
        return str(first)

    def get(self, name: str, *arguments: Any) -> int:
        """The first buffer, as a number."""
        return int.from_bytes(bytes.fromhex(self.bytes(name, *arguments)), "little")

    def do(self, name: str, *arguments: Any) -> None:
        """Makes a call that must succeed."""
        result = self.code(name, *arguments)
        assert result == SUCCESS, (name, result)

    def create(self, size: int, *place: int, **properties: int) -> int:
        """The handle of new mappable memory with these allocation_properties."""
        return self.get("cuMemCreate", OUT, size, buffer(allocation_properties(*place, **properties)), 0)

    def mapped(self, handle: int, size: int) -> int:
        """The address of the memory, whose handle is then released."""
        place = self.get("cuMemAddressReserve", OUT, size, 0, 0, 0)
        self.do("cuMemMap", place, size, 0, handle, 0)
        self.do("cuMemRelease", handle)
        return place

    def create_pool(self, *place: Any, **properties: Any) -> int:
        """A new pool with these pool_properties."""
        return self.get("cuMemPoolCreate", OUT, buffer(pool_properties(*place, **properties)))

    def multicast(self, size: int, devices: int = 2) -> int:
        """A multicast object with all of its devices."""
        handle = self.get("cuMulticastCreate", OUT, buffer(struct.pack("<I4xQQQ", devices, size, 0, 0)))
        for device in range(devices):
            self.do("cuMulticastAddDevice", handle, device)
        return handle

    def free_memory(self) -> int:
        """The free bytes by cuMemGetInfo."""
        return self.get("cuMemGetInfo_v2", OUT, OUT)


Start = Callable[..., Program]


def kinds(sandbox: Sandbox, device: int = 0) -> dict[str, int]:
    """The account's bytes by kind, of all processes together. Kinds with 0 bytes are left out."""
    found: dict[str, int] = {}
    for one in sandbox.usage(len(pages.quota(str(sandbox.pages)).limits)):
        if one.device == device:
            for kind, size in one.kinds.items():
                found[kind] = found.get(kind, 0) + size
    return {kind: size for kind, size in found.items() if size}


def unowned(sandbox: Sandbox, device: int = 0) -> int:
    """The account's bytes that belong to no living process. Their maker has freed them or has ended."""
    return sandbox.total(device) - sum(kinds(sandbox, device).values())
