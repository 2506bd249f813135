"""A worker's functions (worker.py) for memory: pools, mappable memory, arrays, and other processes' memory.

Each method calls one function of the driver API, or a few that belong together, and returns the result and
the values. Structs are packed by hand, as cuda.h lays them out.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from ctypes import byref, c_int, c_size_t, c_ulonglong

from .calls import OUT, Calls, buffer, number, value

POSIX_FD = 1
DEVICE, HOST, HOST_NUMA = 1, 2, 3
FLOAT = 0x20
HANDLE, DESCRIPTOR = {"out": 64}, {"out": 4}


class Memory(Calls):
    cuda: ctypes.CDLL

    # ---- allocations of the simple kind ----

    def alloc_many(self, size: int, count: int) -> list[int]:
        """The first result that is not 0, and the number of allocations before it; all are freed again."""
        pointers = (c_ulonglong * count)()
        done = 0
        result = 0
        while done < count and not result:
            result = self.cuda.cuMemAlloc_v2(byref(pointers, 8 * done), c_size_t(size))
            done += not result
        for at in range(done):
            result = result or self.cuda.cuMemFree_v2(c_ulonglong(pointers[at]))
        return [int(result), done]

    def host_alloc(self, size: int) -> list[int]:
        return self.pair("cuMemHostAlloc", OUT, size, 0)

    def host_free(self, pointer: int) -> int:
        return self.code("cuMemFreeHost", pointer)

    def register(self, size: int) -> list[int]:
        """The results of registering ordinary memory, registering it again, and unregistering it."""
        there = ctypes.create_string_buffer(size)
        return [
            self.cuda.cuMemHostRegister_v2(there, c_size_t(size), 0),
            self.cuda.cuMemHostRegister_v2(there, c_size_t(size), 0),
            self.cuda.cuMemHostUnregister(there),
            self.cuda.cuMemHostUnregister(there),
        ]

    def attribute(self, which: int, pointer: int) -> list[int]:
        """cuPointerGetAttribute: result and value, as an unsigned number of 64 bits."""
        return self.pair("cuPointerGetAttribute", OUT, which, pointer)

    def range_of(self, pointer: int) -> list[int]:
        result, *values = self.call("cuMemGetAddressRange_v2", OUT, OUT, pointer)
        return [result, *map(number, values)]

    def advise(self, pointer: int, size: int) -> list[int]:
        """Makes device 0 the preferred place of managed memory and prefetches it to the host: the results,
        and the attributes afterwards."""
        known = (c_int * 2)()
        results = [
            self.code("cuMemAdvise", pointer, size, 3, 0),
            self.code("cuMemPrefetchAsync", pointer, size, -1, None),
        ]
        for at, attribute in enumerate((2, 4)):
            place = byref(known, 4 * at)
            results.append(
                self.cuda.cuMemRangeGetAttribute(
                    place, c_size_t(4), attribute, c_ulonglong(pointer), c_size_t(size)
                )
            )
        return [*results, *known]

    # ---- pools ----

    def pool(self, handle_types: int = 0, location: int = DEVICE, size: int = 0) -> list[int]:
        properties = struct.pack("=iiiiQQH54x", 1, handle_types, location, 0, 0, size, 0)
        return self.pair("cuMemPoolCreate", OUT, buffer(properties))

    def pool_destroy(self, pool: int) -> int:
        return self.code("cuMemPoolDestroy", pool)

    def default_pool(self) -> int:
        return self.pair("cuDeviceGetDefaultMemPool", OUT, 0)[1]

    def device_pool(self) -> int:
        return self.pair("cuDeviceGetMemPool", OUT, 0)[1]

    def set_device_pool(self, pool: int) -> int:
        return self.code("cuDeviceSetMemPool", 0, pool)

    def location_pool(self, location: int) -> list[int]:
        """CUDA 13's cuMemGetDefaultMemPool."""
        return self.pair("cuMemGetDefaultMemPool", OUT, buffer(struct.pack("=ii", location, 0)), 1)

    def alloc_async(self, size: int, pool: int = 0, suffix: str = "") -> list[int]:
        """Allocates from a pool, or from the device's own; `suffix`: "_ptsz" for the other symbol."""
        if pool:
            return self.pair(f"cuMemAllocFromPoolAsync{suffix}", OUT, size, pool, None)
        return self.pair(f"cuMemAllocAsync{suffix}", OUT, size, None)

    def free_async(self, pointer: int, suffix: str = "") -> int:
        return self.code(f"cuMemFreeAsync{suffix}", pointer, None)

    def pool_get(self, pool: int, attribute: int) -> int:
        result, found = self.pair("cuMemPoolGetAttribute", pool, attribute, OUT)
        return found if result == 0 else -result

    def pool_set(self, pool: int, attribute: int, wanted: int) -> int:
        return self.code("cuMemPoolSetAttribute", pool, attribute, buffer(struct.pack("=Q", wanted)))

    def pool_trim(self, pool: int, keep: int) -> int:
        return self.code("cuMemPoolTrimTo", pool, keep)

    def pool_export(self, pool: int) -> list[int]:
        return self.pair("cuMemPoolExportToShareableHandle", DESCRIPTOR, pool, POSIX_FD, 0)

    def pool_import(self, descriptor: int) -> list[int]:
        return self.pair("cuMemPoolImportFromShareableHandle", OUT, descriptor, POSIX_FD, 0)

    def pool_export_pointer(self, pointer: int) -> list[int | str]:
        return self.call("cuMemPoolExportPointer", HANDLE, pointer)

    def pool_import_pointer(self, pool: int, data: str) -> list[int]:
        return self.pair("cuMemPoolImportPointer", OUT, pool, {"in": data})

    # ---- mappable memory ----

    def create_memory(self, size: int, handle_types: int = 0, location: int = DEVICE) -> list[int]:
        """cuMemCreate: result and handle."""
        properties = struct.pack("=iiiiQ8x", 1, handle_types, location, 0, 0)
        return self.pair("cuMemCreate", OUT, size, buffer(properties), 0)

    def granularity(self) -> int:
        properties = struct.pack("=iiiiQ8x", 1, 0, DEVICE, 0, 0)
        return self.pair("cuMemGetAllocationGranularity", OUT, buffer(properties), 0)[1]

    def release(self, handle: int) -> int:
        return self.code("cuMemRelease", handle)

    def reserve(self, size: int) -> list[int]:
        return self.pair("cuMemAddressReserve", OUT, size, 0, 0, 0)

    def address_free(self, pointer: int, size: int) -> int:
        return self.code("cuMemAddressFree", pointer, size)

    def map(self, pointer: int, size: int, handle: int) -> int:
        return self.code("cuMemMap", pointer, size, 0, handle, 0)

    def unmap(self, pointer: int, size: int) -> int:
        return self.code("cuMemUnmap", pointer, size)

    def allow(self, pointer: int, size: int, flags: int = 3) -> int:
        """cuMemSetAccess for device 0."""
        return self.code("cuMemSetAccess", pointer, size, buffer(struct.pack("=iii", DEVICE, 0, flags)), 1)

    def place(self, handle: int, size: int) -> int:
        """Reserves addresses, maps the memory there and allows access; the pointer, or 0."""
        result, pointer = self.reserve(size)
        return 0 if result or self.map(pointer, size, handle) or self.allow(pointer, size) else pointer

    def retain(self, pointer: int) -> list[int]:
        return self.pair("cuMemRetainAllocationHandle", OUT, pointer)

    def export_memory(self, handle: int) -> list[int]:
        return self.pair("cuMemExportToShareableHandle", DESCRIPTOR, handle, POSIX_FD, 0)

    def import_memory(self, descriptor: int) -> list[int]:
        return self.pair("cuMemImportFromShareableHandle", OUT, descriptor, POSIX_FD)

    # ---- other processes ----

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def listen(self, path: str) -> None:
        """Opens the socket at which `take` waits."""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()

    def give(self, path: str, descriptor: int) -> None:
        """Sends a descriptor (SCM_RIGHTS), and closes it here."""
        with socket.socket(socket.AF_UNIX) as way:
            way.connect(path)
            socket.send_fds(way, [b"x"], [descriptor])
        os.close(descriptor)

    def take(self) -> int:
        way, _ = self.listener.accept()
        with way:
            _, descriptors, _, _ = socket.recv_fds(way, 1, 1)
        return descriptors[0]

    def ipc_get(self, pointer: int) -> list[int | str]:
        return self.call("cuIpcGetMemHandle", HANDLE, pointer)

    def ipc_open(self, handle: str) -> list[int]:
        return self.pair("cuIpcOpenMemHandle_v2", OUT, value(handle), 1)

    def ipc_close(self, pointer: int) -> int:
        return self.code("cuIpcCloseMemHandle", pointer)

    def external(self, descriptor: int, size: int) -> list[int]:
        """cuImportExternalMemory: result and handle."""
        description = struct.pack("=i4xi12xQI64x4x", 1, descriptor, size, 0)
        return self.pair("cuImportExternalMemory", OUT, buffer(description))

    def external_buffer(self, memory: int, offset: int, size: int) -> list[int]:
        description = struct.pack("=QQI64x4x", offset, size, 0)
        return self.pair("cuExternalMemoryGetMappedBuffer", OUT, memory, buffer(description))

    def external_destroy(self, memory: int) -> int:
        return self.code("cuDestroyExternalMemory", memory)

    # ---- arrays ----

    def array(self, width: int, height: int, depth: int = 0, channels: int = 1, flags: int = 0) -> list[int]:
        """cuArray3DCreate of 32-bit floats: result and array."""
        description = struct.pack("=QQQiII4x", width, height, depth, FLOAT, channels, flags)
        return self.pair("cuArray3DCreate_v2", OUT, buffer(description))

    def flat_array(self, width: int, height: int) -> list[int]:
        return self.pair("cuArrayCreate_v2", OUT, buffer(struct.pack("=QQiI", width, height, FLOAT, 1)))

    def array_facts(self, array: int) -> list[int]:
        """cuArray3DGetDescriptor: result, width, height, depth."""
        result, description = self.call("cuArray3DGetDescriptor_v2", {"out": 40}, array)
        return [result, *struct.unpack_from("=QQQ", bytes.fromhex(description))]

    def array_needs(self, array: int) -> list[int]:
        """cuArrayGetMemoryRequirements: result and bytes."""
        result, requirements = self.call("cuArrayGetMemoryRequirements", {"out": 32}, array, 0)
        return [result, *struct.unpack_from("=Q", bytes.fromhex(requirements))]

    def array_write(self, array: int, text: str) -> int:
        return self.code("cuMemcpyHtoA_v2", array, 0, buffer(text.encode()), len(text.encode()))

    def array_read(self, array: int, size: int) -> list[int | str]:
        result, content = self.call("cuMemcpyAtoH_v2", {"out": size}, array, 0, size)
        return [result, bytes.fromhex(content).decode("latin-1")]

    def map_array(self, array: int, handle: int, operation: int = 1) -> int:
        """cuMemMapArrayAsync of the first tile: 1 maps, 2 unmaps."""
        info = struct.pack(
            "=i4xQi4x8IiiQQIIII",
            *(0, array, 0),
            *(0, 0, 0, 0, 0, 128, 128, 1),
            *(operation, 0, handle, 0, 1, 0, 0, 0),
        )
        return self.code("cuMemMapArrayAsync", buffer(info), 1, None)

    def mipmap(self, width: int, height: int, levels: int) -> list[int]:
        description = struct.pack("=QQQiII4x", width, height, 0, FLOAT, 1, 0)
        return self.pair("cuMipmappedArrayCreate", OUT, buffer(description), levels)

    def mipmap_level(self, mipmap: int, level: int) -> list[int]:
        return self.pair("cuMipmappedArrayGetLevel", OUT, mipmap, level)
