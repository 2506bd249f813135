"""Programs in sandboxes that make any call of CUDA on demand, and the structs of these calls."""

from __future__ import annotations

import struct
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support import MIB
from support.simulation import Process
from support.worker.calls import OUT, Calls, buffer, number, value
from xpu_runtime.limits import pages

from .sandboxes import FOLDER, Sandbox

__all__ = ("OUT", "buffer", "number", "value")
#: CUresult.
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT = 0, 1, 2, 3, 201
CONTEXT_IS_DESTROYED, NOT_PERMITTED, NOT_SUPPORTED = 709, 800, 801
#: CUmemLocationType.
DEVICE, HOST = 1, 2
POSIX_FD = 1  # CUmemAllocationHandleType
#: CUmemPool_attribute.
RELEASE_THRESHOLD, RESERVED, USED = 4, 5, 7

#: How programs find CUDA's functions, without and with those for a default stream of each thread.
WAYS = ("symbol", "lookup")
ALL_WAYS = (*WAYS, "symbol-per-thread", "lookup-per-thread")

#: A card whose contexts take 300 MiB.
HEAVY: dict[str, Any] = {"driver": "R580", "gpus": [{"model": "T4", "context_mib": 300}]}
CONTEXT = 300 * MIB
#: A driver that does not know the container's processes by their pids.
BLIND: dict[str, Any] = {
    "driver": "R580",
    "gpus": [
        {
            "model": "T4",
            "context_mib": 300,
            "fail": {
                f"nvmlDeviceGetComputeRunningProcesses_{version}": "NVML_ERROR_NOT_SUPPORTED"
                for version in ("v2", "v3")
            },
        }
    ],
}


def u64(number: int) -> dict[str, str]:
    return buffer(struct.pack("<Q", number))


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


class Program(Calls, Process):
    """A process in a sandbox (calls_program.py); `within`: a command that starts it."""

    def __init__(
        self,
        sandbox: Sandbox,
        way: str = "symbol",
        setup: str = "",
        within: Sequence[str] = (),
        **environ: str,
    ) -> None:
        self.sandbox = sandbox
        script = str(Path(__file__).with_name("calls_program.py"))
        # pytest's own stderr is a readable file, and the interposer takes no readable file for a stderr.
        appended = "exec 2>>/proc/self/fd/2\n" + setup
        command = sandbox.command([*within, sys.executable, script, way], appended)
        real = f"{FOLDER}/libcuda.real"
        super().__init__(command, sandbox.environ(REAL_CUDA=real, **environ), None)

    def call(self, name: str, *arguments: Any) -> list[Any]:
        self.send(name, *arguments)
        return list(self.result())

    def bytes(self, name: str, *arguments: Any) -> str:
        """The first buffer after a call that must succeed, in hexadecimal."""
        result, first, *_ = self.call(name, *arguments)
        assert result == SUCCESS, (name, result)
        return str(first)

    def get(self, name: str, *arguments: Any) -> int:
        """The first buffer, as a number."""
        return number(self.bytes(name, *arguments))

    def do(self, name: str, *arguments: Any) -> None:
        """Makes a call that must succeed."""
        result = self.code(name, *arguments)
        assert result == SUCCESS, (name, result)

    def init(self) -> int:
        return self.code("cuInit", 0)

    def uuid(self) -> str:
        """Of device 0."""
        return str(uuid.UUID(self.bytes("symbol:cuDeviceGetUuid_v2", {"out": 16}, 0)))

    def create_context(self, device: int = 0, name: str = "cuCtxCreate_v2") -> list[int]:
        """The result and a new context, by any version of cuCtxCreate."""
        more = {"cuCtxCreate_v3": (None, 0), "cuCtxCreate_v4": (None,)}.get(name, ())
        return self.pair(f"symbol:{name}", OUT, *more, 0, device)

    def destroy(self, context: int, name: str = "cuCtxDestroy_v2") -> int:
        return self.code(f"symbol:{name}", context)

    def attach(self, flags: int = 0) -> list[int]:
        """Attaches once more to the current context."""
        return self.pair("cuCtxAttach", OUT, flags)

    def detach(self, context: int) -> int:
        return self.code("cuCtxDetach", context)

    def current(self, context: int) -> int:
        return self.code("cuCtxSetCurrent", context)

    def release(self, name: str = "cuDevicePrimaryCtxRelease_v2") -> int:
        return self.code(f"symbol:{name}", 0)

    def pitch(self, width: int, height: int, name: str = "cuMemAllocPitch_v2") -> list[int]:
        """The result, the pointer and the pitch."""
        result, *values = self.call(name, OUT, OUT, width, height, 4)
        return [result, *map(number, values)]

    def array(self, *shape: int) -> list[int]:
        """width, height, depth, format, channels, flags."""
        return self.pair("cuArray3DCreate_v2", OUT, buffer(struct.pack("<QQQiII4x", *shape)))

    def array_v1(self, *shape: int) -> list[int]:
        return self.pair("symbol:cuArray3DCreate", OUT, buffer(struct.pack("<6I", *shape)))

    def flat_array(self, name: str, *shape: int) -> list[int]:
        """cuArrayCreate in both versions: width, height, format, channels."""
        layout = "<QQiI" if name.endswith("_v2") else "<IIiI"
        return self.pair(f"symbol:{name}", OUT, buffer(struct.pack(layout, *shape)))

    def mipmap(self, levels: int, *shape: int) -> list[int]:
        return self.pair("cuMipmappedArrayCreate", OUT, buffer(struct.pack("<QQQiII4x", *shape)), levels)

    def unload(self, module: int, name: str = "cuModuleUnload") -> int:
        return self.code(f"symbol:{name}", module)

    def function(self, module: int) -> int:
        """Uses the module."""
        return self.code("cuModuleGetFunction", OUT, module, buffer(b"busy_1us\0"))

    def real_context(self) -> int:
        """Makes a context by the driver's own library, behind the interposer's back."""
        return self.code("real:cuInit", 0) or self.code("real:cuCtxCreate_v2", OUT, 0, 0)

    def total(self, device: int = 0) -> list[int]:
        return self.pair("cuDeviceTotalMem_v2", OUT, device)

    def create(self, size: int, *place: int, **properties: int) -> int:
        """The handle of new mappable memory with these allocation_properties."""
        return self.get("cuMemCreate", OUT, size, buffer(allocation_properties(*place, **properties)), 0)

    def mapped(self, handle: int, size: int) -> int:
        """The address of the memory, whose handle is then released."""
        place = self.get("cuMemAddressReserve", OUT, size, 0, 0, 0)
        self.do("cuMemMap", place, size, 0, handle, 0)
        self.do("cuMemRelease", handle)
        return place

    def kernel(self, name: str) -> int:
        """A kernel of a new module. Its name says how long it takes: busy_20ms."""
        module = self.get("cuModuleLoadData", OUT, buffer(b"an image"))
        return self.get("cuModuleGetFunction", OUT, module, buffer(f"{name}\0".encode()))

    def launch(self, kernel: int, stream: int = 0) -> None:
        self.do("cuLaunchKernel", kernel, *[1] * 6, 0, stream, None, None)

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
