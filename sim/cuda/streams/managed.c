/*
 * libcuda: the preferred place of managed memory. It is remembered for whole allocations, and moves nothing:
 * the device's reported usage has all of it while it exists.
 */
#define _GNU_SOURCE
#include "../core/work.h"

/* With the lock held: the managed allocation that [pointer, pointer + bytes) lies in. */
static struct range *managed(CUdeviceptr pointer, size_t bytes) {
    struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, bytes);
    return range && bytes && range->kind == RANGE_MANAGED ? range : NULL;
}

/* A device's number, or CU_DEVICE_CPU for any place of the host. */
static CUresult number_of(const CUmemLocation *location, int *number) {
    CUdevice device;
    bool host;
    CUresult result = cuda_location(location, &device, &host);
    *number = host ? CU_DEVICE_CPU : device;
    return result;
}

static CUmemLocation location_of(CUdevice device) {
    return device == CU_DEVICE_CPU ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0}
                                   : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

/* Memory of malloc, on a card that may use it: from now on the card has that much less, until the process
 * ends. With the lock held. */
static CUresult move_pageable(CUdeviceptr pointer, size_t bytes, CUdevice device) {
    struct backing *moved;
    int pageable = 0;
    if (!pointer || !bytes || cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1))
        return CUDA_ERROR_INVALID_VALUE;
    if (device != CU_DEVICE_CPU)
        (void)cuDeviceGetAttribute(&pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device);
    return pageable ? cuda_take(NULL, device, round_up(bytes, PAGE), false, &moved)
                    : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                        unsigned int flags, CUstream stream) {
    CUcontext context;
    int number;
    CUstream unused;
    CUresult result = cuda_stream(stream, &unused, &context);
    if (result == CUDA_SUCCESS)
        result = flags ? CUDA_ERROR_INVALID_VALUE : number_of(&location, &number);
    if (result != CUDA_SUCCESS || cuda_capture_forbids(stream, &result))
        return result;
    pthread_mutex_lock(&cuda_memory);
    struct range *range = managed(pointer, bytes);
    if (range)
        range->prefetched = number;
    else
        result = move_pageable(pointer, bytes, number);
    return cuda_leave(result);
}

CUDA_API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                             unsigned int flags, CUstream stream) {
    return cuMemPrefetchAsync_v2(pointer, bytes, location, flags, PER_THREAD(stream));
}

CUDA_API CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    return cuMemPrefetchAsync_v2(pointer, bytes, location_of(device), 0, stream);
}

CUDA_API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t bytes, CUdevice device,
                                          CUstream stream) {
    return cuMemPrefetchAsync(pointer, bytes, device, PER_THREAD(stream));
}

static CUresult advise(struct range *range, CUmem_advise advice, int number) {
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        range->flags = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        range->preferred = number;
        return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        range->preferred = CU_DEVICE_INVALID;
        return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY: /* all devices have access already */
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                                 CUmemLocation location) {
    int number = CU_DEVICE_INVALID;
    bool placed = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
    TRY(placed ? number_of(&location, &number) : cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    struct range *range = managed(pointer, bytes);
    CUresult result = range ? advise(range, advice, number) : CUDA_ERROR_INVALID_VALUE;
    return cuda_leave(result);
}

CUDA_API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device) {
    return cuMemAdvise_v2(pointer, bytes, advice, location_of(device));
}

static CUresult attribute_of(const struct range *range, CUmem_range_attribute attribute, size_t size,
                             int *data) {
    int where = attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION ||
                        attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE ||
                        attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID
                    ? range->preferred
                    : range->prefetched;
    if (size < sizeof *data || size % sizeof *data)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        *data = (int)range->flags;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        for (size_t i = 0; i < size / sizeof *data; i++)
            data[i] = CU_DEVICE_INVALID;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *data = where;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *data = where == CU_DEVICE_INVALID ? (int)CU_MEM_LOCATION_TYPE_INVALID : (int)location_of(where).type;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        *data = where < 0 ? 0 : where;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attribute,
                                         CUdeviceptr pointer, size_t bytes) {
    TRY(data ? cuda_ready() : CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&cuda_memory);
    const struct range *range = managed(pointer, bytes);
    CUresult result = range ? attribute_of(range, attribute, size, data) : CUDA_ERROR_INVALID_VALUE;
    return cuda_leave(result);
}
