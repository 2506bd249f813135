"""Makes CUDA calls in a sandbox as its stdin says. Run it as `python calls_program.py WAY`.

Each line on stdin is a JSON list of a CUDA function's exported name and its arguments
(support/worker/calls.py). Each line on stdout is a list of the result and the contents of the buffers. Other
names are functions of `Program`.

WAY says how the functions are found: `symbol` (dlsym, as linked programs do), or `lookup` (cuGetProcAddress,
as cudart does). With `-per-thread` the variants for the thread's own default stream are taken, where they
exist. The function of a name with `symbol:` before it is that symbol, whatever WAY says. With `real:` it is
the driver's, behind the interposer's back, and with `other:` that of another instance of the interposer.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import resource
import sys
import threading
from ctypes import POINTER, byref, c_int, c_long, c_size_t, c_ulonglong, c_void_p
from typing import Any

sys.path[0] = os.path.dirname(sys.path[0])  # tests: this file is run by its path
from support.worker.calls import Calls, called  # noqa: E402

#: A version that every driver here is older than: a look-up finds the newest variant.
VERSION, PER_THREAD = 13050, 2
#: Functions that are looked up as older programs do: newer programs get another function by that name.
OLDER = {
    "cuMemAdvise": 12010,
    "cuMemPrefetchAsync": 12010,
    "cuGraphAddNode": 12020,
    "cuCtxSynchronize": 12020,
}
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438


class Cuda:
    """libcuda's functions by their names."""

    def __init__(self, way: str) -> None:
        self.library, self.real = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(os.environ["REAL_CUDA"])
        self._lookup = way.startswith("lookup")
        self._per_thread = way.endswith("-per-thread")

    def __getattr__(self, name: str) -> Any:
        place, _, exact = name.rpartition(":")
        if place:
            library = {"symbol": self.library, "real": self.real}.get(place) or self.other
            return getattr(library, exact)
        if not self._lookup:
            return getattr(self.library, self._name(name))
        base = re.sub(r"(_v\d)?(_pt[sd]z?)?$", "", name)
        # A function without a newer name is looked up by its own.
        for wanted in (base, name):
            found = self._ask(wanted, VERSION if wanted != name else OLDER.get(name, VERSION))
            if found:
                return ctypes.CFUNCTYPE(c_int)(found)
        raise AttributeError(name)

    @functools.cached_property
    def other(self) -> ctypes.CDLL:
        """Another instance, in a namespace of the loader's own, as plugins and tools are loaded."""
        libc, new_namespace = ctypes.CDLL(None), c_long(-1)
        libc.dlmopen.restype = c_void_p
        return ctypes.CDLL(None, handle=libc.dlmopen(new_namespace, b"libcuda.so.1", os.RTLD_NOW))

    def _name(self, name: str) -> str:
        if self._per_thread:
            for end in ("_ptsz", "_ptds"):
                if hasattr(self.library, name + end):
                    return name + end
        return name

    def _ask(self, name: str, version: int) -> int | None:
        address, status = c_void_p(), c_int()
        flags = c_ulonglong(PER_THREAD if self._per_thread else 0)
        result = self.library.cuGetProcAddress_v2(
            name.encode(), byref(address), version, flags, byref(status)
        )
        return None if result else address.value


class Program(Calls):
    def __init__(self, way: str) -> None:
        self.cuda = Cuda(way)
        self.images: list[Any] = []

    def call(self, name: str, *arguments: Any) -> list[Any]:
        return called(getattr(self.cuda, name), *arguments)

    def start(self, device: int = 0) -> int:
        """Calls cuInit, and makes the primary context of a device current."""
        context = c_void_p()
        result = self.cuda.cuInit(0) or self.cuda.cuDevicePrimaryCtxRetain(byref(context), device)
        return int(result or self.cuda.cuCtxSetCurrent(context))

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
        return [getattr(self.cuda.library, name)(byref(module), image, *more), module.value]

    def nvml_total(self) -> int:
        """The device's memory by NVML. The library is opened by its name."""
        nvml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), c_void_p(), (c_ulonglong * 3)()
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device))
        nvml.nvmlDeviceGetMemoryInfo(device, byref(memory))
        return int(memory[0])

    def take_fd(self, pid: int, fd: int) -> int:
        """Takes a descriptor of another process, as if that process had sent it."""
        libc = ctypes.CDLL(None, use_errno=True)
        pidfd = libc.syscall(_PIDFD_OPEN, pid, 0)
        mine = libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
        os.close(pidfd)
        return int(mine)

    def close_fd(self, fd: int) -> int:
        os.close(fd)
        return 0

    def race(self, threads: int, rounds: int, size: int) -> list[int]:
        """Threads allocate from the pool and free. Returns how many calls succeeded, were refused, and
        failed."""
        counts = [0, 0, 0]
        context = c_void_p()
        self.cuda.cuCtxGetCurrent(byref(context))
        lock = threading.Lock()

        def run() -> None:
            self.cuda.cuCtxSetCurrent(context)
            pointer = c_ulonglong()
            for _ in range(rounds):
                result = self.cuda.cuMemAllocAsync(byref(pointer), c_size_t(size), None)
                if result == 0:
                    result = self.cuda.cuMemFreeAsync(pointer, None) and 999
                with lock:
                    counts[{0: 0, 2: 1}.get(result, 2)] += 1

        started = [threading.Thread(target=run) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        return counts

    def malloc(self, size: int) -> int:
        """Memory of the host, which is not freed."""
        libc = ctypes.CDLL(None)
        libc.malloc.restype = c_void_p
        return int(libc.malloc(c_size_t(size)))

    def without_descriptors(self, name: str, *arguments: Any) -> list[Any]:
        """A call's result while the program has its standard streams and cannot open a file."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            return self.call(name, *arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def fork(self, *lines: list[Any]) -> list[Any]:
        """The answers to some lines in a forked child."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, json.dumps([self.answer(*line) for line in lines]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        return list(json.loads(os.read(reader, 65536)))

    def handed_out(self, names: list[str], versions: list[int], flags: list[int]) -> list[str]:
        """The names for which cuGetProcAddress, in either version, hands out a wrong address. Right is the
        real library's, or the interposer's where it has that very variant."""
        interposed = set(os.environ["INTERPOSED"].split())
        library, real = self.cuda.library, self.cuda.real
        known = {_address(real, name): name for name in os.environ["EXPORTED"].split()}
        known_calls = {"cuGetProcAddress", "cuGetProcAddress_v2"} & set(known.values())
        wrong = []
        for name in names:
            for version in versions:
                for flag in flags:
                    for call in known_calls:
                        want = _ask(real, call, name, version, flag)
                        symbol = known.get(want[1] or 0, "")
                        if symbol in interposed:
                            want = (want[0], _address(library, symbol), want[2])
                        if _ask(library, call, name, version, flag) != want:
                            wrong.append(f"{call}({name}, {version}, {flag}): {symbol}")
        return wrong

    def answer(self, name: str, *arguments: Any) -> Any:
        """The answer to a line on stdin."""
        own = None if ":" in name or name.startswith("cu") else getattr(self, name)
        return own(*arguments) if own else self.call(name, *arguments)


def _address(library: Any, name: str) -> int:
    return ctypes.cast(getattr(library, name), c_void_p).value or 0


def _ask(library: Any, call: str, name: str, version: int, flag: int) -> tuple[int, int | None, int]:
    address, status = c_void_p(), c_int(-1)
    more = (POINTER(c_int)(status),) if call.endswith("_v2") else ()
    result = getattr(library, call)(name.encode(), byref(address), version, c_ulonglong(flag), *more)
    return result, address.value, status.value


if __name__ == "__main__":
    program = Program(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(program.answer(*json.loads(line))), flush=True)
