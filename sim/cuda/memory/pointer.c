/*
 * libcuda: the attributes of a pointer.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

#include <string.h>

/* With the lock held. A mapping is found before the reservation that it is in. */
static struct range *find(CUdeviceptr pointer) {
    struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    return range ? range : cuda_range_of(&cuda_reservations, (uintptr_t)pointer, 1);
}

CUDA_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    TRY(cuda_ready());
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    const struct range *range = find(pointer);
    if (!range || range->kind == RANGE_REGISTERED)
        result = CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS && base)
        *base = range->start;
    if (result == CUDA_SUCCESS && size)
        *size = range->size;
    return cuda_leave(result);
}

static bool is_host(const struct range *range) {
    return range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED;
}

/* Whether the attribute has a value for memory that CUDA does not know. `data` gets it. */
static bool of_unknown(void *data, CUpointer_attribute attribute) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)data = 0;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = -2;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(uint64_t *)data = 0;
        return true;
    default:
        return false;
    }
}

static unsigned access_of(const struct range *range) {
    return range->kind == RANGE_MAPPED ? range->flags : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static CUresult attribute_of(const struct range *range, CUpointer_attribute attribute, CUdeviceptr pointer,
                             void *data) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = range->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = is_host(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host(range) && range->kind != RANGE_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned char *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(uint64_t *)data = range->number;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)data = range->kind == RANGE_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = range->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned char *)data = range->kind == RANGE_LINEAR;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(uint64_t *)data = range->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(uint64_t *)data = range->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned char *)data = range->kind != RANGE_RESERVED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(uint64_t *)data = cuda_handle_types(range);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = access_of(range);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = range->pool;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(uint64_t *)data = range->mapped ? range->mapped : range->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(uint64_t *)data = range->start;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    TRY(cuda_ready());
    CUresult result = CUDA_SUCCESS;
    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    const struct range *range = find(pointer);
    if (range)
        result = attribute_of(range, attribute, pointer, data);
    else if (!of_unknown(data, attribute))
        result = CUDA_ERROR_INVALID_VALUE;
    return cuda_leave(result);
}

/* One value is never an error: a missing value becomes zeros. */
CUDA_API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
                                         CUdeviceptr pointer) {
    CUresult result = cuda_ready();
    if (result == CUDA_SUCCESS && (!attributes || !data))
        result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
        if (cuPointerGetAttribute(data[i], attributes[i], pointer) == CUDA_SUCCESS)
            continue;
        bool wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_MAPPING_SIZE ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR;
        bool byte = attributes[i] == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
                    attributes[i] == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE;
        memset(data[i], 0, wide ? 8 : byte ? 1 : 4);
    }
    return result;
}
