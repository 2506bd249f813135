/*
 * libcuda: memory and addresses apart (cuMemCreate, cuMemAddressReserve, cuMemMap). The memory is the
 * device's, not a context's.
 */
#define _GNU_SOURCE
#include "vmm.h"

unsigned cuda_handle_types(const struct range *range) {
    return range->allocation ? range->allocation->properties.requestedHandleTypes : 0;
}

CUDA_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                                CUmemAllocationGranularity_flags option) {
    CUdevice device;
    bool host;
    TRY(cuda_location(properties ? &properties->location : NULL, &device, &host));
    if (!granularity || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = PAGE;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                              const CUmemAllocationProp *properties, unsigned long long flags) {
    CUdevice device;
    bool host;
    struct backing *backing;
    TRY(cuda_location(properties ? &properties->location : NULL, &device, &host));
    if (!handle || flags || size == 0 || size % PAGE || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&cuda_memory);
    CUresult result = cuda_take(NULL, device, size, host, &backing);
    if (result != CUDA_SUCCESS)
        return cuda_leave(result);
    struct allocation *made = cuda_allocation_new(backing, properties);
    if (!made) {
        cuda_drop(backing);
        return cuda_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *handle = (uintptr_t)made;
    return cuda_leave(CUDA_SUCCESS);
}

/* Takes the lock if it is a handle; otherwise CUDA_ERROR_INVALID_VALUE. */
static CUresult enter(CUmemGenericAllocationHandle handle, struct allocation **allocation) {
    TRY(cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    *allocation = cuda_allocation(handle);
    return *allocation ? CUDA_SUCCESS : cuda_leave(CUDA_ERROR_INVALID_VALUE);
}

CUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct allocation *allocation;
    TRY(enter(handle, &allocation));
    cuda_allocation_released(allocation);
    return cuda_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                         CUmemGenericAllocationHandle handle) {
    struct allocation *allocation;
    TRY(properties ? enter(handle, &allocation) : CUDA_ERROR_INVALID_VALUE);
    *properties = allocation->properties;
    return cuda_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer) {
    TRY(handle ? cuda_ready() : CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&cuda_memory);
    const struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    if (!range || !range->allocation)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    range->allocation->handles++;
    *handle = (uintptr_t)range->allocation;
    return cuda_leave(CUDA_SUCCESS);
}

/* ---- across processes ---- */

CUDA_API CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                               CUmemAllocationHandleType type, unsigned long long flags) {
    struct allocation *allocation;
    TRY(shareable && !flags ? enter(handle, &allocation) : CUDA_ERROR_INVALID_VALUE);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(allocation->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    return cuda_leave(cuda_export(allocation->backing, shareable));
}

CUDA_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                 CUmemAllocationHandleType type) {
    struct backing *backing = NULL;
    struct allocation *made = NULL;
    TRY(cuda_ready());
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    CUresult result = cuda_open(NULL, (int)(intptr_t)shareable, &backing, NULL);
    if (result == CUDA_SUCCESS && backing->size % PAGE)
        result = CUDA_ERROR_INVALID_VALUE; /* a pool's */
    if (result == CUDA_SUCCESS) {
        CUmemAllocationProp properties = {
            .type = CU_MEM_ALLOCATION_TYPE_PINNED,
            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            .location = {backing->host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                         backing->device}};
        made = cuda_allocation_new(backing, &properties);
        result = made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        *handle = (uintptr_t)made;
    else
        cuda_drop(backing);
    return cuda_leave(result);
}
