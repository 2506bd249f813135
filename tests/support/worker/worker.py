"""A process that uses simulated devices as tests tell it: run as `python worker.py ROOT`.

Each line on stdin is a JSON list, a function of `Worker` and its arguments; each line on stdout is the
result. It loads the libraries by their paths below ROOT; a program in a container would use their names.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import signal
import sys
from ctypes import byref, c_char_p, c_void_p
from typing import Any

import pynvml

sys.path[0] = os.path.dirname(os.path.dirname(sys.path[0]))  # tests: this file is run by its path
from support.worker.calls import OUT, buffer, called, number  # noqa: E402
from support.worker.code import Code  # noqa: E402
from support.worker.events import Events  # noqa: E402
from support.worker.kernels import Kernels  # noqa: E402
from support.worker.memory import Memory  # noqa: E402

NOT_READY = 600


class Worker(Memory, Events, Code, Kernels):
    def __init__(self, root: str) -> None:
        folder = glob.glob(f"{root}/usr/lib/*-linux-gnu")[0]
        self.cuda = ctypes.CDLL(f"{folder}/libcuda.so.1")
        pynvml.nvmlLib = ctypes.CDLL(f"{folder}/libnvidia-ml.so.1")
        self.module = c_void_p()
        self.contexts: list[int] = []
        self.events: list[int] = []

    def call(self, name: str, *arguments: Any) -> list[Any]:
        return called(getattr(self.cuda, name), *arguments)

    def pid(self) -> int:
        return os.getpid()

    def init(self) -> int:
        """cuInit's result."""
        return self.code("cuInit", 0)

    def start(self, device: int = 0) -> int:
        """cuInit and the primary context of a device, made current; the first result that is not 0."""
        context = c_void_p()
        result = self.cuda.cuInit(0) or self.cuda.cuDevicePrimaryCtxRetain(byref(context), device)
        result = result or self.cuda.cuCtxSetCurrent(context)
        return int(result or self.cuda.cuModuleLoadData(byref(self.module), b"image"))

    def create(self, device: int = 0) -> int:
        """Makes a context of its own; cuCtxCreate's result."""
        result, context = self.pair("cuCtxCreate_v2", OUT, 0, device)
        self.contexts.append(context)
        return result

    def destroy(self, number: int) -> int:
        return self.code("cuCtxDestroy_v2", self.contexts[number])

    def managed(self, size: int) -> int:
        return self.alloc_managed(size)[0]

    def pitch(self, width: int, height: int) -> list[int]:
        """Result and pitch."""
        result, _, pitch = self.call("cuMemAllocPitch_v2", OUT, OUT, width, height, 4)
        return [result, number(pitch)]

    def write(self, pointer: int, text: str) -> int:
        return self.code("cuMemcpyHtoD_v2", pointer, buffer(text.encode()), len(text.encode()))

    def read(self, pointer: int, size: int) -> list[Any]:
        result, content = self.call("cuMemcpyDtoH_v2", {"out": size}, pointer, size)
        return [result, bytes.fromhex(content).decode("latin-1")]

    def copy(self, to: int, source: int, size: int) -> int:
        return self.code("cuMemcpyDtoD_v2", to, source, size)

    def fill(self, pointer: int, byte: int, size: int) -> int:
        return self.code("cuMemsetD8_v2", pointer, byte, size)

    def total(self, device: int = 0) -> int:
        return self.pair("cuDeviceTotalMem_v2", OUT, device)[1]

    def devices(self) -> list[str]:
        """The UUIDs of CUDA's devices, as hexadecimal digits."""
        count = self.pair("cuDeviceGetCount", OUT)[1]
        return [self.call("cuDeviceGetUuid_v2", {"out": 16}, device)[1] for device in range(count)]

    def launch(self, name: str, times: int = 1) -> int:
        """The first result that is not 0."""
        function = c_void_p()
        result = self.cuda.cuModuleGetFunction(byref(function), self.module, name.encode())
        for _ in range(times):
            result = result or self.cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        return int(result)

    def synchronize(self) -> int:
        return self.code("cuCtxSynchronize")

    def query(self) -> int:
        """cuStreamQuery of the default stream."""
        return self.code("cuStreamQuery", None)

    def timed(self, name: str, times: int = 1) -> list[float]:
        """Result, and the device's milliseconds for some kernels.

        They are queued behind another kernel, so that the device never waits for this process between them.
        If that kernel ends before the last one is launched, it was too short, and the measurement is
        repeated.
        """
        blocker = 50
        while True:
            self.launch(f"busy_{blocker}ms")
            start = self.event()
            self.launch(name, times)
            end = self.event()
            in_time = self.event_query(start) == NOT_READY
            self.synchronize()
            if in_time:
                return self.elapsed(start, end)
            blocker *= 2

    def error(self, number: int) -> str:
        name = c_char_p()
        self.cuda.cuGetErrorName(number, byref(name))
        return (name.value or b"").decode()

    def nvml(self, function: str, device: int = 0, *arguments: Any) -> Any:
        """pynvml's function of that name for a device; an error is its number as {"error": N}."""
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(device)
            return plain(getattr(pynvml, function)(handle, *arguments))
        except pynvml.NVMLError as error:
            return {"error": error.value}

    def p2p(self, device: int, other: int, kind: int) -> Any:
        """nvmlDeviceGetP2PStatus of two devices; an error as in nvml()."""
        pynvml.nvmlInit()
        return self.nvml("nvmlDeviceGetP2PStatus", device, pynvml.nvmlDeviceGetHandleByIndex(other), kind)

    def count(self) -> Any:
        """The UUIDs of NVML's devices, or the error."""
        try:
            pynvml.nvmlInit()
            return [self.nvml("nvmlDeviceGetUUID", at) for at in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            return {"error": error.value}

    def mig(self) -> list[str]:
        """UUIDs of the MIG devices of device 0."""
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found = []
        try:
            for at in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                found.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)))
        except pynvml.NVMLError_NotFound:
            pass
        return found

    def limit(self, path: str, soft: int, hard: int, device: int = 0) -> int:
        """nvmlDeviceSetMemoryLimits_v1's result."""
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(path.encode(), soft, hard)
        return self._result("nvmlDeviceSetMemoryLimits_v1", device, limits)

    def limits(self, path: str, device: int = 0) -> list[int]:
        """nvmlDeviceGetMemoryLimits_v1: result, soft, hard, used."""
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(path.encode())
        result = self._result("nvmlDeviceGetMemoryLimits_v1", device, limits)
        return [result, limits.softLimit, limits.hardLimit, limits.currentUsed]

    def _result(self, function: str, device: int, limits: Any) -> int:
        told = self.nvml(function, device, limits)
        return int(told["error"]) if isinstance(told, dict) and "error" in told else 0

    def become(self, uid: int) -> None:
        os.setuid(uid)

    def fork(self) -> int:
        """Forks a child that waits for ever with all open files of this process; its pid."""
        child = os.fork()
        if child == 0:
            os.close(0)
            os.close(1)
            while True:
                signal.pause()
        return child

    def in_child(self, *calls: list[Any]) -> Any:
        """The results of the same functions in a forked child, which then ends."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            results = [getattr(self, name)(*arguments) for name, *arguments in calls]
            os.write(writer, json.dumps(results).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return json.loads(text)


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "__dict__"):
        return {name: plain(inner) for name, inner in vars(value).items()}
    return value


if __name__ == "__main__":
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, name)(*arguments)), flush=True)
