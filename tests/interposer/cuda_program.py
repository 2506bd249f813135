"""Uses CUDA in a sandbox as its stdin says. Run it as `python cuda_program.py WAY`.

Each line on stdin is a JSON list of the name of a function of `Program` and its arguments. Each line on
stdout is the returned value. WAY says how CUDA's functions are found: `symbol` (dlsym, as linked programs do)
or `lookup` (cuGetProcAddress, as cudart does). A result with a value is a list of the two.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

VERSION = 13000


class Array(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class Cuda:
    """libcuda's functions by their exported names."""

    def __init__(self, way: str) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._lookup = way == "lookup"

    def __getattr__(self, name: str) -> Any:
        if not self._lookup:
            return getattr(self._library, name)
        address, status = c_void_p(), c_int()
        base = re.sub(r"(_v\d)?(_pt[sd]z|_ptds)?$", "", name)
        result = self._library.cuGetProcAddress_v2(
            base.encode(), byref(address), VERSION, c_ulonglong(0), byref(status)
        )
        if result or not address.value:
            raise AttributeError(f"{name}: {result}, {status.value}")
        return ctypes.CFUNCTYPE(c_int)(address.value)


class Program:
    def __init__(self, way: str) -> None:
        self.cuda = Cuda(way)
        self.old = Cuda("symbol")
        self.images: list[Any] = []
        self.real = ctypes.CDLL(os.environ["REAL_CUDA"])

    def init(self) -> int:
        return int(self.cuda.cuInit(0))

    def start(self, device: int = 0) -> int:
        """Calls cuInit, and makes the primary context of a device current."""
        context = c_void_p()
        result = self.cuda.cuInit(0) or self.cuda.cuDevicePrimaryCtxRetain(byref(context), device)
        return int(result or self.cuda.cuCtxSetCurrent(context))

    def uuid(self, device: int = 0) -> str:
        raw = ctypes.create_string_buffer(16)
        self.old.cuDeviceGetUuid_v2(raw, device)
        digits = raw.raw.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def retain(self, device: int = 0) -> list[int | None]:
        context = c_void_p()
        return [self.cuda.cuDevicePrimaryCtxRetain(byref(context), device), context.value]

    def release(self, device: int = 0, name: str = "cuDevicePrimaryCtxRelease_v2") -> int:
        return int(getattr(self.old, name)(device))

    def reset(self, device: int = 0, name: str = "cuDevicePrimaryCtxReset_v2") -> int:
        return int(getattr(self.old, name)(device))

    def create(self, device: int = 0, name: str = "cuCtxCreate_v2") -> list[int | None]:
        """A new context, by any version of cuCtxCreate."""
        context = c_void_p()
        more = {"cuCtxCreate_v3": (None, 0), "cuCtxCreate_v4": (None,)}.get(name, ())
        return [getattr(self.old, name)(byref(context), *more, 0, device), context.value]

    def destroy(self, context: int, name: str = "cuCtxDestroy_v2") -> int:
        return int(getattr(self.old, name)(c_void_p(context)))

    def attach(self, flags: int = 0) -> list[int | None]:
        """Attaches once more to the current context."""
        context = c_void_p()
        return [self.cuda.cuCtxAttach(byref(context), c_uint(flags)), context.value]

    def detach(self, context: int) -> int:
        return int(self.cuda.cuCtxDetach(c_void_p(context)))

    def current(self, context: int) -> int:
        return int(self.cuda.cuCtxSetCurrent(c_void_p(context)))

    def set_limit(self, which: int, value: int) -> int:
        return int(self.cuda.cuCtxSetLimit(which, c_size_t(value)))

    def get_limit(self, which: int) -> list[int]:
        value = c_size_t()
        return [self.cuda.cuCtxGetLimit(byref(value), which), value.value]

    def alloc(self, size: int) -> list[int]:
        pointer = c_ulonglong()
        return [self.cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size)), pointer.value]

    def alloc_v1(self, size: int) -> list[int]:
        pointer = c_uint()
        return [self.old.cuMemAlloc(byref(pointer), c_uint(size)), pointer.value]

    def managed(self, size: int) -> list[int]:
        pointer = c_ulonglong()
        return [self.cuda.cuMemAllocManaged(byref(pointer), c_size_t(size), 1), pointer.value]

    def pitch(self, width: int, height: int) -> list[int]:
        """The result, the pointer and the pitch."""
        pointer, pitch = c_ulonglong(), c_size_t()
        result = self.cuda.cuMemAllocPitch_v2(
            byref(pointer), byref(pitch), c_size_t(width), c_size_t(height), 4
        )
        return [result, pointer.value, pitch.value]

    def pitch_v1(self, width: int, height: int) -> list[int]:
        pointer, pitch = c_uint(), c_uint()
        result = self.old.cuMemAllocPitch(byref(pointer), byref(pitch), width, height, 4)
        return [result, pointer.value, pitch.value]

    def free(self, pointer: int) -> int:
        return int(self.cuda.cuMemFree_v2(c_ulonglong(pointer)))

    def free_v1(self, pointer: int) -> int:
        return int(self.old.cuMemFree(c_uint(pointer)))

    def host(self, size: int) -> list[int | None]:
        pointer = c_void_p()
        return [self.cuda.cuMemAllocHost_v2(byref(pointer), c_size_t(size)), pointer.value]

    def array(self, *shape: int) -> list[int | None]:
        """width, height, depth, format, channels, flags."""
        array = c_void_p()
        return [self.cuda.cuArray3DCreate_v2(byref(array), byref(Array(*shape))), array.value]

    def flat_array(self, name: str, *shape: int) -> list[int | None]:
        """cuArrayCreate in both versions: width, height, format, channels."""
        words: tuple[type, ...] = (c_size_t, c_size_t) if name.endswith("_v2") else (c_uint, c_uint)
        layout = [("width", words[0]), ("height", words[1]), ("format", c_int), ("channels", c_uint)]
        described = type("Flat", (ctypes.Structure,), {"_fields_": layout})
        array = c_void_p()
        return [getattr(self.old, name)(byref(array), byref(described(*shape))), array.value]

    def array_v1(self, *shape: int) -> list[int | None]:
        array = c_void_p()
        words = (c_uint * 6)(*shape)
        return [self.old.cuArray3DCreate(byref(array), words), array.value]

    def destroy_array(self, array: int) -> int:
        return int(self.cuda.cuArrayDestroy(c_void_p(array)))

    def mipmap(self, levels: int, *shape: int) -> list[int | None]:
        mipmap = c_void_p()
        result = self.cuda.cuMipmappedArrayCreate(byref(mipmap), byref(Array(*shape)), c_uint(levels))
        return [result, mipmap.value]

    def destroy_mipmap(self, mipmap: int) -> int:
        return int(self.cuda.cuMipmappedArrayDestroy(c_void_p(mipmap)))

    def module(self, name: str = "cuModuleLoadData", size: int = 20) -> list[int | None]:
        """Loads an image of that many bytes, by any of the functions that load one."""
        module = c_void_p()
        image = ctypes.create_string_buffer(b".version 8.0\n".ljust(size, b"/"))
        self.images.append(image)
        more = {
            "cuModuleLoadDataEx": (0, None, None),
            "cuLibraryLoadData": (None, None, 0, None, None, 0),
            "cuLibraryLoadFromFile": (None, None, 0, None, None, 0),
        }.get(name, ())
        if name in ("cuModuleLoad", "cuLibraryLoadFromFile"):
            with open("/dev/shm/image", "wb") as file:
                file.write(image.value)
            image = ctypes.create_string_buffer(b"/dev/shm/image")
        return [getattr(self.old, name)(byref(module), image, *more), module.value]

    def unload(self, module: int, name: str = "cuModuleUnload") -> int:
        return int(getattr(self.old, name)(c_void_p(module)))

    def function(self, module: int) -> int:
        """Uses the module."""
        return int(self.cuda.cuModuleGetFunction(byref(c_void_p()), c_void_p(module), b"busy_1us"))

    def library_module(self, library: int) -> int:
        """Uses the library in the current context."""
        return int(self.cuda.cuLibraryGetModule(byref(c_void_p()), c_void_p(library)))

    def info(self) -> list[int]:
        """The result, free, total."""
        free, total = c_size_t(), c_size_t()
        return [self.cuda.cuMemGetInfo_v2(byref(free), byref(total)), free.value, total.value]

    def info_v1(self) -> list[int]:
        free, total = c_uint(), c_uint()
        return [self.old.cuMemGetInfo(byref(free), byref(total)), free.value, total.value]

    def total(self, device: int = 0) -> list[int]:
        total = c_size_t()
        return [self.cuda.cuDeviceTotalMem_v2(byref(total), device), total.value]

    def total_v1(self, device: int = 0) -> list[int]:
        total = c_uint()
        return [self.old.cuDeviceTotalMem(byref(total), device), total.value]

    def nvml_total(self) -> int:
        """The device's memory by NVML. The library is opened by its name."""
        nvml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), c_void_p(), (c_ulonglong * 3)()
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device))
        nvml.nvmlDeviceGetMemoryInfo(device, byref(memory))
        return int(memory[0])

    def fork(self) -> list[int]:
        """The results in a forked child for a free of the parent's memory, a context, and 1 MiB; then the
        result in the parent for the free."""
        pointer = self.alloc(1 << 20)[1]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            answers = [self.free(pointer), self.start(), self.alloc(1 << 20)[0]]
            os.write(writer, json.dumps(answers).encode())
            os._exit(0)
        os.waitpid(child, 0)
        answers = json.loads(os.read(reader, 4096))
        return [*answers, self.free(pointer)]

    def real_start(self) -> int:
        """Makes a context by the real library, behind the interposer's back."""
        context = c_void_p()
        result = self.real.cuInit(0) or self.real.cuCtxCreate_v2(byref(context), 0, 0)
        return int(result)

    def real_alloc(self, size: int) -> int:
        """Allocates by the real library, behind the interposer's back."""
        self.hidden = c_ulonglong()
        return int(self.real.cuMemAlloc_v2(byref(self.hidden), c_size_t(size)))

    def real_free(self) -> int:
        return int(self.real.cuMemFree_v2(self.hidden))

    def real_unload(self, module: int) -> int:
        """Unloads by the real library, as a thread does that has not told the interposer yet."""
        return int(self.real.cuModuleUnload(c_void_p(module)))

    def bare(self, name: str) -> int:
        """Calls a function with zeros alone."""
        buffer = (c_ulonglong * 16)()
        return int(getattr(self.old, name)(*[byref(buffer)] * 2, *[None] * 6))

    def read(self, path: str) -> str:
        with open(path) as file:
            return file.read()

    def handed_out(self, names: list[str], versions: list[int], flags: list[int]) -> list[str]:
        """The names for which cuGetProcAddress, in either version, hands out a wrong address. Right is the
        real library's, or the interposer's where it has that very variant."""
        interposed = set(os.environ["INTERPOSED"].split())
        known = {_address(self.real, name): name for name in os.environ["EXPORTED"].split()}
        known_calls = {"cuGetProcAddress", "cuGetProcAddress_v2"} & set(known.values())
        wrong = []
        for name in names:
            for version in versions:
                for flag in flags:
                    for call in known_calls:
                        want = _ask(self.real, call, name, version, flag)
                        symbol = known.get(want[1] or 0, "")
                        if symbol in interposed:
                            want = (want[0], _address(self.old, symbol), want[2])
                        if _ask(self.old, call, name, version, flag) != want:
                            wrong.append(f"{call}({name}, {version}, {flag}): {symbol}")
        return wrong


def _address(library: Any, name: str) -> int:
    return ctypes.cast(getattr(library, name), c_void_p).value or 0


def _ask(library: Any, call: str, name: str, version: int, flag: int) -> tuple[int, int | None, int]:
    address, status = c_void_p(), c_int(-1)
    more = (POINTER(c_int)(status),) if call.endswith("_v2") else ()
    result = getattr(library, call)(name.encode(), byref(address), version, c_ulonglong(flag), *more)
    return result, address.value, status.value


def main() -> None:
    program = Program(sys.argv[1])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(program, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
