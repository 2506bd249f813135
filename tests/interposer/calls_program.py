"""Makes CUDA calls in a sandbox as its stdin says. Run it as `python calls_program.py WAY`.

Each line on stdin is a JSON list of a CUDA function's exported name and its arguments. Each line on stdout is
a list of the result and the contents of the buffers. An argument is a number, null, or

    {"out": 8}       a buffer of that many zero bytes, passed by its address
    {"in": "00ff"}   a buffer with these bytes, passed by its address
    {"value": "…"}   a struct with these bytes, passed by value

WAY says how the functions are found: `symbol`, or `lookup` (cuGetProcAddress). With `-per-thread` the
variants for the thread's own default stream are taken, where they exist. Names without "cu" are functions
below.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import sys
import threading
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p
from typing import Any

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
    """libcuda's functions by their exported names."""

    def __init__(self, way: str) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._lookup = way.startswith("lookup")
        self._per_thread = way.endswith("-per-thread")

    def __getattr__(self, name: str) -> Any:
        if not self._lookup:
            return getattr(self._library, self._name(name))
        base = re.sub(r"(_v\d)?(_pt[sd]z?)?$", "", name)
        # A function without a newer name is looked up by its own.
        for wanted in (base, name):
            found = self._ask(wanted, VERSION if wanted != name else OLDER.get(name, VERSION))
            if found:
                return ctypes.CFUNCTYPE(c_int)(found)
        raise AttributeError(name)

    def _name(self, name: str) -> str:
        if self._per_thread:
            for end in ("_ptsz", "_ptds"):
                if hasattr(self._library, name + end):
                    return name + end
        return name

    def _ask(self, name: str, version: int) -> int | None:
        address, status = c_void_p(), c_int()
        flags = c_ulonglong(PER_THREAD if self._per_thread else 0)
        result = self._library.cuGetProcAddress_v2(
            name.encode(), byref(address), version, flags, byref(status)
        )
        return None if result else address.value


CUDA = Cuda(sys.argv[1])


def call(name: str, *arguments: Any) -> list[Any]:
    """Calls a function. Returns its result and the contents of the buffers in hexadecimal."""
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
            passed.append(None if argument is None else c_ulonglong(argument & (1 << 64) - 1))
    return [getattr(CUDA, name)(*passed), *(buffer.raw.hex() for buffer in buffers)]


def start(device: int = 0) -> int:
    """Calls cuInit, and makes the primary context of a device current."""
    context = c_void_p()
    result = CUDA.cuInit(0) or CUDA.cuDevicePrimaryCtxRetain(byref(context), device)
    return int(result or CUDA.cuCtxSetCurrent(context))


def take_fd(pid: int, fd: int) -> int:
    """Takes a descriptor of another process, as if that process had sent it."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(_PIDFD_OPEN, pid, 0)
    mine = libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
    os.close(pidfd)
    return int(mine)


def close_fd(fd: int) -> int:
    os.close(fd)
    return 0


def race(threads: int, rounds: int, size: int) -> list[int]:
    """Threads allocate from the pool and free. Returns how many calls succeeded, were refused, and failed."""
    counts = [0, 0, 0]
    context = c_void_p()
    CUDA.cuCtxGetCurrent(byref(context))
    lock = threading.Lock()

    def run() -> None:
        CUDA.cuCtxSetCurrent(context)
        pointer = c_ulonglong()
        for _ in range(rounds):
            result = CUDA.cuMemAllocAsync(byref(pointer), c_size_t(size), None)
            if result == 0:
                result = CUDA.cuMemFreeAsync(pointer, None) and 999
            with lock:
                counts[{0: 0, 2: 1}.get(result, 2)] += 1

    started = [threading.Thread(target=run) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return counts


def malloc(size: int) -> int:
    """Memory of the host, which is not freed."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = c_void_p
    return int(libc.malloc(c_size_t(size)))


def without_descriptors(name: str, *arguments: Any) -> list[Any]:
    """A call's result while the program cannot open a file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        return call(name, *arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def fork(name: str, *arguments: Any) -> list[Any]:
    """A call's result in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(call(name, *arguments)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return list(json.loads(os.read(reader, 65536)))


def main() -> None:
    own = {
        each.__name__: each for each in (start, take_fd, close_fd, race, malloc, without_descriptors, fork)
    }
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer = own[name](*arguments) if name in own else call(name, *arguments)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
