/*
 * libcuda: reserved addresses, and memory that is mapped to them.
 */
#define _GNU_SOURCE
#include "vmm.h"

CUDA_API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment,
                                      CUdeviceptr address, unsigned long long flags) {
    TRY(cuda_ready());
    if (!pointer || flags || size == 0 || size % PAGE || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    struct range made = {.size = size, .kind = RANGE_RESERVED, .device = -2};
    made.start = cuda_reserve(size, alignment, (uintptr_t)address);
    if (!made.start || !cuda_range_add(&cuda_reservations, &made)) {
        if (made.start)
            cuda_unmap(made.start, size);
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *pointer = made.start;
    return cuda_leave(CUDA_SUCCESS);
}

/* With the lock held: whether something is mapped in [start, start + size). */
static bool is_mapped(uintptr_t start, size_t size) {
    for (uintptr_t at = start; at < start + size; at += PAGE)
        if (cuda_range_of(&cuda_ranges, at, 1))
            return true;
    return false;
}

CUDA_API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    TRY(cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    struct range *range = cuda_range_of(&cuda_reservations, (uintptr_t)pointer, 1);
    if (!range || range->start != (uintptr_t)pointer || range->size != size ||
        is_mapped(range->start, range->size))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    cuda_unmap(range->start, range->size);
    cuda_range_remove(&cuda_reservations, range);
    return cuda_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags) {
    TRY(cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    struct allocation *allocation = cuda_allocation(handle);
    uintptr_t start = (uintptr_t)pointer;
    /* By cuda.h the offset must "currently" be zero, and that has never changed. */
    if (!allocation || flags || offset || size == 0 || size % PAGE || size > allocation->backing->size ||
        start % PAGE || !cuda_range_of(&cuda_reservations, start, size) || is_mapped(start, size))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    struct range made = {.start = start,
                         .size = size,
                         .kind = RANGE_MAPPED,
                         .device = allocation->backing->host ? -1 : allocation->backing->device,
                         .mapping = start,
                         .mapped = size,
                         .allocation = allocation,
                         .freed = cuda_range_unmapped};
    if (!cuda_map(allocation->backing, 0, size, start))
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    if (!cuda_range_add(&cuda_ranges, &made)) {
        cuda_unmap_only(start, size);
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    cuda_allocation_mapped(allocation);
    return cuda_leave(CUDA_SUCCESS);
}

/* With the lock held: whether there are mappings from `start` to `start + size`, and all are completely
 * within. */
static bool whole_mappings(uintptr_t start, size_t size) {
    uintptr_t at = start, end = start + size;
    while (at < end) {
        const struct range *range = cuda_range_of(&cuda_ranges, at, 1);
        if (!range || range->kind != RANGE_MAPPED || range->start != at || range->size > end - at)
            return false;
        at += range->size;
    }
    return size > 0;
}

CUDA_API CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
    TRY(cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    if (!whole_mappings((uintptr_t)pointer, size))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    for (uintptr_t at = (uintptr_t)pointer; at < (uintptr_t)pointer + size;) {
        struct range *range = cuda_range_of(&cuda_ranges, at, 1);
        at += range->size;
        cuda_range_free(range, NULL);
    }
    return cuda_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access,
                                 size_t count) {
    CUdevice device;
    bool host;
    CUresult result = access && count ? cuda_ready() : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = cuda_location(&access[i].location, &device, &host);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&cuda_memory);
    if (!whole_mappings((uintptr_t)pointer, size))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    for (uintptr_t at = (uintptr_t)pointer; at < (uintptr_t)pointer + size;) {
        struct range *range = cuda_range_of(&cuda_ranges, at, 1);
        for (size_t i = 0; i < count; i++)
            range->flags = access[i].flags; /* of all with access: they are not distinguished */
        at += range->size;
    }
    return cuda_leave(CUDA_SUCCESS);
}
