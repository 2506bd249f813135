"""The scripts of this folder share this: their slice, CUDA and NVML by ctypes, and the output.

A script prints a line for each value (`name: value`) and each check (`ok: …`, `FAILED: …`). It ends with 0 if
all checks held, with 1 if one failed, and with 77, after `skipped: …`, if it had nothing to run on: outside a
slice, or without a tool. A slice has a card: a script that does not find it has failed. Each result is also a
line of JSON in the file that XPU_GPU_JSON names. Needs Python 3.10 or newer, as images of frameworks have it.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

SKIPPED = 77
OUT_OF_MEMORY, NOT_FOUND = 2, 500
MIB = 1 << 20
#: The begin of a failure that belongs to no check.
NOT_MEASURED = "not measured: "
#: The slice's folder in a container, and in a sandbox (packaging/sandbox.py).
FOLDERS = ("/usr/lib/xpu", "/mnt/usr/lib/xpu")
#: The slice's memory in bytes. The program that made the slice, and saw the card outside, sets it.
LIMIT_VARIABLE = "XPU_GPU_LIMIT"
#: A program that has seen the card on the host sets it for the programs that it starts there.
SEEN_VARIABLE = "XPU_GPU_SEEN"
_LIMIT_AT, _NO_LIMIT = 2048, (1 << 64) - 1
_failed: list[str] = []
_reported: set[str] = set()


def skip(why: str) -> NoReturn:
    """Ends the program: a tool is missing, or it runs outside a slice."""
    report("skipped", why)
    sys.exit(SKIPPED)


def missing(why: str) -> NoReturn:
    """Ends the program without a card: a fault in a slice, or after the card was seen outside."""
    if in_slice() or os.environ.get(LIMIT_VARIABLE) or os.environ.get(SEEN_VARIABLE):
        fail(why)
    skip(why)


def fail(why: str) -> NoReturn:
    check(False, why)
    end()


def not_measured(why: str) -> None:
    """A failure that judges nothing: a driver, a place or a program for the measurement is missing."""
    check(False, f"{NOT_MEASURED}{why}")


def report(name: str, value: object, **numbers: object) -> None:
    """`numbers` are for the file alone."""
    _reported.add(name)
    print(f"{name}: {value}", flush=True)
    if path := os.environ.get("XPU_GPU_JSON"):
        program = os.path.basename(sys.argv[0])
        at = round(time.time(), 3)
        line = json.dumps({"program": program, "name": name, "value": value, "at": at, **numbers})
        with open(path, "a") as file:
            file.write(line + "\n")


def check(holds: bool, what: str) -> bool:
    report("ok" if holds else "FAILED", what)
    if not holds:
        _failed.append(what)
    return holds


def is_simulated() -> bool:
    """Whether the driver is a simulated one, which computes nothing."""
    places = ("/run/nvidia-sim", "/mnt/run/nvidia-sim")
    return "XPU_GPU_SIMULATED" in os.environ or any(os.path.exists(path) for path in places)


def not_checked(what: str) -> None:
    report("not checked", what)


def check_result(holds: Callable[[], bool], what: str) -> None:
    """A check of a result that the card has computed. An error is a failure."""
    try:
        held = holds()
    except Exception as error:
        held, what = False, f"{what}: {type(error).__name__}: {str(error).strip()[:300]}"
    if is_simulated():
        not_checked(f"{what}: a simulated card computes nothing")
    else:
        check(held, what)


def end() -> NoReturn:
    """Ends the program. One that has only skipped was skipped itself."""
    only_skipped = "skipped" in _reported and not _reported & {"ok", "FAILED", "not checked"}
    sys.exit(1 if _failed else SKIPPED if only_skipped else 0)


def chosen(names: Iterable[str], words: Iterable[str] | None) -> list[str]:
    """The names that have one of the words in them; all without words. Ends the program if there is none."""
    names, words = list(names), list(words or [""])
    if missing_words := [word for word in words if not any(word in name for name in names)]:
        sys.exit(f"no name contains {missing_words[0]!r}: {', '.join(names)}")
    return [name for name in names if any(word in name for word in words)]


def mib(amount: int) -> str:
    return f"{amount / MIB:.1f} MiB"


def temporary() -> str:
    """A folder that is removed at this process's end."""
    path = tempfile.mkdtemp(prefix="xpu-gpu-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def in_slice() -> bool:
    return any(os.path.exists(f"{path}/quota") for path in FOLDERS)


def folder() -> str:
    """The folder of the slice's pages and the real libraries."""
    for path in FOLDERS:
        if os.path.exists(f"{path}/quota"):
            return path
    missing("this is no container whose memory the interposers hold: start it by bench/gpu/run")


def limit() -> int:
    """The slice's memory on its first device, in bytes."""
    with open(f"{folder()}/quota", "rb") as file:
        (amount,) = struct.unpack_from("<Q", file.read(), _LIMIT_AT)
    asked = os.environ.get(LIMIT_VARIABLE)
    if asked and amount != int(asked):
        fail(f"the slice's page says {amount} bytes, and {asked} were asked for")
    if amount == _NO_LIMIT:
        skip("the slice has no memory limit")
    return int(amount)


class Cuda:
    """libcuda as programs find it, initialized, with the primary context of device 0."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            missing(f"no CUDA driver: {error}")
        status, count = self.library.cuInit(0), ctypes.c_int()
        if status or self.library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            missing(f"no GPU: cuInit gives {self.name(status)}, {count.value} devices")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.must("cuDeviceGet", ctypes.byref(device), 0)
        self.must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.must("cuCtxSetCurrent", context)
        self.device = device

    def has(self, name: str) -> bool:
        return hasattr(self.library, name)

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def must(self, name: str, *arguments: Any) -> None:
        status = self.call(name, *arguments)
        if status:
            fail(f"{name}: {self.name(status)}")

    def name(self, status: int) -> str:
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {status}"

    def memory(self) -> tuple[int, int]:
        """Free and total memory in bytes, by cuMemGetInfo."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.must("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def uuid(self) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self.must(
            "cuDeviceGetUuid_v2" if self.has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid", raw, self.device
        )
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    # Each returns a pointer or a handle, or the error as a negative number.

    def plain(self, size: int) -> int:
        return self._made("cuMemAlloc_v2", size)

    def free_plain(self, pointer: int) -> None:
        self.must("cuMemFree_v2", ctypes.c_ulonglong(pointer))

    def managed(self, size: int) -> int:
        pointer = ctypes.c_ulonglong()
        status = self.call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), 1)
        return -status if status else pointer.value

    def pooled(self, size: int) -> int:
        pointer = ctypes.c_ulonglong()
        status = self.call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), None)
        return -status if status else pointer.value

    def free_pooled(self, pointer: int) -> None:
        self.must("cuMemFreeAsync", ctypes.c_ulonglong(pointer), None)
        self.must("cuStreamSynchronize", None)

    def mappable(self, size: int) -> int:
        # CUmemAllocationProp: pinned, no handle types, on device 0.
        wanted = (ctypes.c_int * 16)(1, 0, 1, 0)
        handle, whole = ctypes.c_ulonglong(), -(-size // (2 * MIB)) * 2 * MIB
        status = self.call(
            "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(whole), wanted, ctypes.c_ulonglong(0)
        )
        return -status if status else handle.value

    def free_mappable(self, handle: int) -> None:
        self.must("cuMemRelease", ctypes.c_ulonglong(handle))

    def _made(self, name: str, size: int) -> int:
        pointer = ctypes.c_ulonglong()
        status = self.call(name, ctypes.byref(pointer), ctypes.c_size_t(size))
        return -status if status else pointer.value

    def ways(self) -> dict[str, tuple[Any, Any]]:
        """The ways to take and give back device memory on this driver, by name."""
        every = {
            "cuMemAlloc": (self.plain, self.free_plain),
            "cuMemAllocAsync": (self.pooled, self.free_pooled),
            "cuMemCreate": (self.mappable, self.free_mappable),
            "cuMemAllocManaged": (self.managed, self.free_plain),
        }
        found = {}
        for name, (take, give) in every.items():
            # The interposer has this function even if the driver lacks it, and then returns an error itself.
            one = take(MIB) if self.has(name) else -NOT_FOUND
            if one == -NOT_FOUND:
                report(name, "this driver has none")
                continue
            if one > 0:
                give(one)
            found[name] = (take, give)
        return found
