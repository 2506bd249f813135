/*
 * libcuda: multicast objects, to which memory of several devices is bound. Cards have them if a switch
 * connects them (by the topology). The object itself takes none of a device's memory here. Its mappings show
 * host memory, because kernels touch nothing.
 *
 * NVIDIA's driver waits until another process has added its devices. This one returns CUDA_ERROR_NOT_READY,
 * because other processes cannot get the object.
 */
#define _GNU_SOURCE
#include "vmm.h"

#include <stdlib.h>

static bool has_multicast(CUdevice number) {
    int supported = 0;
    return cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, number) ==
               CUDA_SUCCESS &&
           supported;
}

static bool any_has_multicast(void) {
    int count = 0;
    (void)cuDeviceGetCount(&count);
    for (CUdevice number = 0; number < count; number++)
        if (has_multicast(number))
            return true;
    return false;
}

static CUresult is_possible(const CUmulticastObjectProp *properties) {
    if (!properties || !properties->numDevices || properties->flags)
        return CUDA_ERROR_INVALID_VALUE;
    return any_has_multicast() && !properties->handleTypes ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties,
                                            CUmulticastGranularity_flags option) {
    TRY(cuda_ready());
    if (!granularity || option > CU_MULTICAST_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(is_possible(properties));
    *granularity = PAGE;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                                    const CUmulticastObjectProp *properties) {
    const CUmemAllocationProp none = {0};
    struct backing *backing = NULL;
    TRY(cuda_ready());
    TRY(is_possible(properties));
    if (!handle || !properties->size || properties->size % PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    struct multicast *made = calloc(1, sizeof *made);
    pthread_mutex_lock(&cuda_memory);
    CUresult result = made ? cuda_take(NULL, 0, properties->size, true, &backing) : CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *allocation = result == CUDA_SUCCESS ? cuda_allocation_new(backing, &none) : NULL;
    if (!allocation) {
        cuda_drop(backing);
        free(made);
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    made->devices = properties->numDevices;
    allocation->multicast = made;
    *handle = (uintptr_t)allocation;
    return cuda_leave(CUDA_SUCCESS);
}

/* Takes the lock if it is an object; otherwise CUDA_ERROR_INVALID_VALUE. */
static CUresult enter(CUmemGenericAllocationHandle handle, struct allocation **object) {
    TRY(cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    *object = cuda_allocation(handle);
    return *object && (*object)->multicast ? CUDA_SUCCESS : cuda_leave(CUDA_ERROR_INVALID_VALUE);
}

CUDA_API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
    struct allocation *object;
    if (!has_multicast(device))
        return CUDA_ERROR_INVALID_DEVICE;
    TRY(enter(handle, &object));
    struct multicast *multicast = object->multicast;
    if ((multicast->added >> device & 1) ||
        (uint32_t)__builtin_popcount(multicast->added) == multicast->devices)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    multicast->added |= 1u << device;
    return cuda_leave(CUDA_SUCCESS);
}

/* With the lock held. */
static CUresult bind(struct allocation *object, size_t offset, struct allocation *memory,
                     size_t memory_offset, size_t size) {
    struct multicast *multicast = object->multicast;
    if (memory && !memory->backing->host && !(multicast->added >> memory->backing->device & 1) &&
        (uint32_t)__builtin_popcount(multicast->added) == multicast->devices)
        return CUDA_ERROR_INVALID_VALUE;
    return (uint32_t)__builtin_popcount(multicast->added) < multicast->devices
               ? CUDA_ERROR_NOT_READY
               : cuda_bind(&multicast->bound, object->backing->size, offset, memory, memory_offset, size);
}

CUDA_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                     CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                     unsigned long long flags) {
    struct allocation *object;
    TRY(flags ? CUDA_ERROR_INVALID_VALUE : enter(handle, &object));
    return cuda_leave(bind(object, offset, cuda_allocation(memory), memory_offset, size));
}

CUDA_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer,
                                      size_t size, unsigned long long flags) {
    struct allocation *object;
    TRY(flags ? CUDA_ERROR_INVALID_VALUE : enter(handle, &object));
    const struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, size);
    if (!range || !range->allocation)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    return cuda_leave(bind(object, offset, range->allocation, (uintptr_t)pointer - range->start, size));
}

CUDA_API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                    size_t size) {
    struct allocation *object;
    TRY(enter(handle, &object));
    return cuda_leave(cuda_unbind(&object->multicast->bound, device, offset, size));
}
