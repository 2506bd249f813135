"""A worker's functions (worker.py) for memory: pools, mappable memory, arrays, and other processes' memory.

Each method calls one function of the driver API, or a few that belong together, and returns the result and
the values. Structs are packed by hand, as cuda.h lays them out.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p

POSIX_FD = 1
DEVICE, HOST, HOST_NUMA = 1, 2, 3


class Memory:
    cuda: ctypes.CDLL

    # ---- allocations of the simple kind ----

    def alloc_v1(self, size: int) -> list[int]:
        """The function for 32-bit pointers: result and pointer."""
        pointer = c_uint()
        return [self.cuda.cuMemAlloc(byref(pointer), c_uint(size)), pointer.value]

    def free_v1(self, pointer: int) -> int:
        return int(self.cuda.cuMemFree(c_uint(pointer)))

    def alloc_managed(self, size: int) -> list[int]:
        pointer = c_ulonglong()
        return [self.cuda.cuMemAllocManaged(byref(pointer), c_size_t(size), 1), pointer.value]

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
        pointer = c_void_p()
        return [self.cuda.cuMemHostAlloc(byref(pointer), c_size_t(size), 0), pointer.value or 0]

    def host_free(self, pointer: int) -> int:
        return int(self.cuda.cuMemFreeHost(c_void_p(pointer)))

    def register(self, size: int) -> list[int]:
        """The results of registering ordinary memory, registering it again, and unregistering it."""
        buffer = ctypes.create_string_buffer(size)
        return [
            self.cuda.cuMemHostRegister_v2(buffer, c_size_t(size), 0),
            self.cuda.cuMemHostRegister_v2(buffer, c_size_t(size), 0),
            self.cuda.cuMemHostUnregister(buffer),
            self.cuda.cuMemHostUnregister(buffer),
        ]

    def attribute(self, number: int, pointer: int) -> list[int]:
        """cuPointerGetAttribute: result and value, as an unsigned number of 64 bits."""
        value = c_uint64()
        result = self.cuda.cuPointerGetAttribute(byref(value), number, c_ulonglong(pointer))
        return [result, value.value]

    def range_of(self, pointer: int) -> list[int]:
        base, size = c_ulonglong(), c_size_t()
        result = self.cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_ulonglong(pointer))
        return [result, base.value, size.value]

    def set_limit(self, limit: int, value: int) -> int:
        return int(self.cuda.cuCtxSetLimit(limit, c_size_t(value)))

    def get_limit(self, limit: int) -> list[int]:
        value = c_size_t()
        return [self.cuda.cuCtxGetLimit(byref(value), limit), value.value]

    def advise(self, pointer: int, size: int) -> list[int]:
        """Makes device 0 the preferred place of managed memory and prefetches it to the host: the results,
        and the attributes afterwards."""
        known = (c_int * 2)()
        results = [
            self.cuda.cuMemAdvise(c_ulonglong(pointer), c_size_t(size), 3, 0),
            self.cuda.cuMemPrefetchAsync(c_ulonglong(pointer), c_size_t(size), -1, None),
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
        made = c_void_p()
        return [self.cuda.cuMemPoolCreate(byref(made), properties), made.value or 0]

    def pool_destroy(self, pool: int) -> int:
        return int(self.cuda.cuMemPoolDestroy(c_void_p(pool)))

    def default_pool(self) -> int:
        found = c_void_p()
        self.cuda.cuDeviceGetDefaultMemPool(byref(found), 0)
        return found.value or 0

    def device_pool(self) -> int:
        found = c_void_p()
        self.cuda.cuDeviceGetMemPool(byref(found), 0)
        return found.value or 0

    def set_device_pool(self, pool: int) -> int:
        return int(self.cuda.cuDeviceSetMemPool(0, c_void_p(pool)))

    def location_pool(self, location: int) -> list[int]:
        """CUDA 13's cuMemGetDefaultMemPool."""
        found = c_void_p()
        place = struct.pack("=ii", location, 0)
        return [self.cuda.cuMemGetDefaultMemPool(byref(found), place, 1), found.value or 0]

    def alloc_async(self, size: int, pool: int = 0, suffix: str = "") -> list[int]:
        """Allocates from a pool, or from the device's own; `suffix`: "_ptsz" for the other symbol."""
        pointer = c_ulonglong()
        if pool:
            function = getattr(self.cuda, f"cuMemAllocFromPoolAsync{suffix}")
            result = function(byref(pointer), c_size_t(size), c_void_p(pool), None)
        else:
            result = getattr(self.cuda, f"cuMemAllocAsync{suffix}")(byref(pointer), c_size_t(size), None)
        return [result, pointer.value]

    def free_async(self, pointer: int, suffix: str = "") -> int:
        return int(getattr(self.cuda, f"cuMemFreeAsync{suffix}")(c_ulonglong(pointer), None))

    def pool_get(self, pool: int, attribute: int) -> int:
        value = c_uint64()
        result = self.cuda.cuMemPoolGetAttribute(c_void_p(pool), attribute, byref(value))
        return value.value if result == 0 else -int(result)

    def pool_set(self, pool: int, attribute: int, value: int) -> int:
        return int(self.cuda.cuMemPoolSetAttribute(c_void_p(pool), attribute, byref(c_uint64(value))))

    def pool_trim(self, pool: int, keep: int) -> int:
        return int(self.cuda.cuMemPoolTrimTo(c_void_p(pool), c_size_t(keep)))

    def pool_export(self, pool: int) -> list[int]:
        handle = c_int(-1)
        return [
            self.cuda.cuMemPoolExportToShareableHandle(
                byref(handle), c_void_p(pool), POSIX_FD, c_ulonglong(0)
            ),
            handle.value,
        ]

    def pool_import(self, handle: int) -> list[int]:
        pool = c_void_p()
        result = self.cuda.cuMemPoolImportFromShareableHandle(
            byref(pool), c_void_p(handle), POSIX_FD, c_ulonglong(0)
        )
        return [result, pool.value or 0]

    def pool_export_pointer(self, pointer: int) -> list[int | str]:
        data = ctypes.create_string_buffer(64)
        return [self.cuda.cuMemPoolExportPointer(data, c_ulonglong(pointer)), data.raw.hex()]

    def pool_import_pointer(self, pool: int, data: str) -> list[int]:
        pointer = c_ulonglong()
        raw = bytes.fromhex(data)
        return [self.cuda.cuMemPoolImportPointer(byref(pointer), c_void_p(pool), raw), pointer.value]

    # ---- mappable memory ----

    def create_memory(self, size: int, handle_types: int = 0, location: int = DEVICE) -> list[int]:
        """cuMemCreate: result and handle."""
        properties = struct.pack("=iiiiQ8x", 1, handle_types, location, 0, 0)
        handle = c_ulonglong()
        result = self.cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_ulonglong(0))
        return [result, handle.value]

    def granularity(self) -> int:
        size = c_size_t()
        self.cuda.cuMemGetAllocationGranularity(byref(size), struct.pack("=iiiiQ8x", 1, 0, DEVICE, 0, 0), 0)
        return size.value

    def release(self, handle: int) -> int:
        return int(self.cuda.cuMemRelease(c_ulonglong(handle)))

    def reserve(self, size: int) -> list[int]:
        pointer = c_ulonglong()
        result = self.cuda.cuMemAddressReserve(
            byref(pointer), c_size_t(size), c_size_t(0), c_ulonglong(0), c_ulonglong(0)
        )
        return [result, pointer.value]

    def address_free(self, pointer: int, size: int) -> int:
        return int(self.cuda.cuMemAddressFree(c_ulonglong(pointer), c_size_t(size)))

    def map(self, pointer: int, size: int, handle: int) -> int:
        return int(
            self.cuda.cuMemMap(
                c_ulonglong(pointer), c_size_t(size), c_size_t(0), c_ulonglong(handle), c_ulonglong(0)
            )
        )

    def unmap(self, pointer: int, size: int) -> int:
        return int(self.cuda.cuMemUnmap(c_ulonglong(pointer), c_size_t(size)))

    def allow(self, pointer: int, size: int, flags: int = 3) -> int:
        """cuMemSetAccess for device 0."""
        access = struct.pack("=iii", DEVICE, 0, flags)
        return int(self.cuda.cuMemSetAccess(c_ulonglong(pointer), c_size_t(size), access, c_size_t(1)))

    def place(self, handle: int, size: int) -> int:
        """Reserves addresses, maps the memory there and allows access; the pointer, or 0."""
        result, pointer = self.reserve(size)
        return 0 if result or self.map(pointer, size, handle) or self.allow(pointer, size) else pointer

    def retain(self, pointer: int) -> list[int]:
        handle = c_ulonglong()
        return [self.cuda.cuMemRetainAllocationHandle(byref(handle), c_void_p(pointer)), handle.value]

    def export_memory(self, handle: int) -> list[int]:
        descriptor = c_int(-1)
        result = self.cuda.cuMemExportToShareableHandle(
            byref(descriptor), c_ulonglong(handle), POSIX_FD, c_ulonglong(0)
        )
        return [result, descriptor.value]

    def import_memory(self, descriptor: int) -> list[int]:
        handle = c_ulonglong()
        result = self.cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(descriptor), POSIX_FD)
        return [result, handle.value]

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
        handle = ctypes.create_string_buffer(64)
        return [self.cuda.cuIpcGetMemHandle(handle, c_ulonglong(pointer)), handle.raw.hex()]

    def ipc_open(self, handle: str) -> list[int]:
        class Handle(ctypes.Structure):
            _fields_ = [("reserved", ctypes.c_char * 64)]

        pointer = c_ulonglong()
        passed = Handle.from_buffer_copy(bytes.fromhex(handle))
        return [self.cuda.cuIpcOpenMemHandle_v2(byref(pointer), passed, 1), pointer.value]

    def ipc_close(self, pointer: int) -> int:
        return int(self.cuda.cuIpcCloseMemHandle(c_ulonglong(pointer)))

    def external(self, descriptor: int, size: int) -> list[int]:
        """cuImportExternalMemory: result and handle."""
        description = struct.pack("=i4xi12xQI64x4x", 1, descriptor, size, 0)
        memory = c_void_p()
        return [self.cuda.cuImportExternalMemory(byref(memory), description), memory.value or 0]

    def external_buffer(self, memory: int, offset: int, size: int) -> list[int]:
        pointer = c_ulonglong()
        description = struct.pack("=QQI64x4x", offset, size, 0)
        result = self.cuda.cuExternalMemoryGetMappedBuffer(byref(pointer), c_void_p(memory), description)
        return [result, pointer.value]

    def external_destroy(self, memory: int) -> int:
        return int(self.cuda.cuDestroyExternalMemory(c_void_p(memory)))

    # ---- arrays ----

    def array(self, width: int, height: int, depth: int = 0, channels: int = 1, flags: int = 0) -> list[int]:
        """cuArray3DCreate of 32-bit floats: result and array."""
        made = c_void_p()
        description = struct.pack("=QQQiII4x", width, height, depth, 0x20, channels, flags)
        return [self.cuda.cuArray3DCreate_v2(byref(made), description), made.value or 0]

    def flat_array(self, width: int, height: int) -> list[int]:
        made = c_void_p()
        description = struct.pack("=QQiI", width, height, 0x20, 1)
        return [self.cuda.cuArrayCreate_v2(byref(made), description), made.value or 0]

    def array_destroy(self, array: int) -> int:
        return int(self.cuda.cuArrayDestroy(c_void_p(array)))

    def array_facts(self, array: int) -> list[int]:
        """cuArray3DGetDescriptor: result, width, height, depth."""
        description = ctypes.create_string_buffer(40)
        result = self.cuda.cuArray3DGetDescriptor_v2(description, c_void_p(array))
        return [result, *struct.unpack_from("=QQQ", description)]

    def array_needs(self, array: int) -> list[int]:
        """cuArrayGetMemoryRequirements: result and bytes."""
        requirements = ctypes.create_string_buffer(32)
        result = self.cuda.cuArrayGetMemoryRequirements(requirements, c_void_p(array), 0)
        return [result, *struct.unpack_from("=Q", requirements)]

    def array_write(self, array: int, text: str) -> int:
        raw = text.encode()
        return int(self.cuda.cuMemcpyHtoA_v2(c_void_p(array), c_size_t(0), raw, c_size_t(len(raw))))

    def array_read(self, array: int, size: int) -> list[int | str]:
        buffer = ctypes.create_string_buffer(size)
        result = self.cuda.cuMemcpyAtoH_v2(buffer, c_void_p(array), c_size_t(0), c_size_t(size))
        return [result, buffer.raw.decode("latin-1")]

    def map_array(self, array: int, handle: int, operation: int = 1) -> int:
        """cuMemMapArrayAsync of the first tile: 1 maps, 2 unmaps."""
        info = struct.pack(
            "=i4xQi4x8IiiQQIIII",
            *(0, array, 0),
            *(0, 0, 0, 0, 0, 128, 128, 1),
            *(operation, 0, handle, 0, 1, 0, 0, 0),
        )
        return int(self.cuda.cuMemMapArrayAsync(info, 1, None))

    def mipmap(self, width: int, height: int, levels: int) -> list[int]:
        made = c_void_p()
        description = struct.pack("=QQQiII4x", width, height, 0, 0x20, 1, 0)
        return [self.cuda.cuMipmappedArrayCreate(byref(made), description, levels), made.value or 0]

    def mipmap_level(self, mipmap: int, level: int) -> list[int]:
        found = c_void_p()
        result = self.cuda.cuMipmappedArrayGetLevel(byref(found), c_void_p(mipmap), level)
        return [result, found.value or 0]

    def mipmap_destroy(self, mipmap: int) -> int:
        return int(self.cuda.cuMipmappedArrayDestroy(c_void_p(mipmap)))
