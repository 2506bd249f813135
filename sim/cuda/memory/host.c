/*
 * libcuda: host memory that the device can reach. It takes none of the device's memory.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

#include <sys/mman.h>

static CUresult add(void *start, size_t bytes, size_t mapped, enum range_kind kind, unsigned flags) {
    CUcontext context;
    TRY(cuda_current(&context));
    struct range made = {.start = (uintptr_t)start,
                         .size = bytes,
                         .kind = kind,
                         .context = context,
                         .device = context->device,
                         .mapping = (uintptr_t)start,
                         .mapped = mapped,
                         .flags = flags};
    pthread_mutex_lock(&cuda_memory);
    bool added = cuda_range_add(&cuda_ranges, &made) != NULL;
    pthread_mutex_unlock(&cuda_memory);
    if (added)
        return CUDA_SUCCESS;
    return kind == RANGE_REGISTERED ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult drop(void *pointer, enum range_kind kind, CUresult unknown) {
    TRY(cuda_ready());
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    if (range && range->start == (uintptr_t)pointer && range->kind == kind)
        cuda_range_free(range, NULL);
    else
        result = unknown;
    return cuda_leave(result);
}

CUDA_API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    CUcontext context;
    size_t size = round_up(bytes, 4096);
    TRY(cuda_current(&context));
    if (!pointer || bytes == 0 ||
        flags > (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
        return CUDA_ERROR_INVALID_VALUE;
    void *place =
        size ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (place == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = add(place, bytes, size, RANGE_HOST, flags);
    if (result == CUDA_SUCCESS)
        *pointer = place;
    else
        munmap(place, size);
    return result;
}

CUDA_API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUDA_API CUresult cuMemFreeHost(void *pointer) {
    return pointer ? drop(pointer, RANGE_HOST, CUDA_ERROR_INVALID_VALUE) : cuda_ready();
}

CUDA_API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags) {
    if (!pointer || bytes == 0 || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    return add(pointer, bytes, 0, RANGE_REGISTERED, flags);
}

CUDA_API CUresult cuMemHostUnregister(void *pointer) {
    return drop(pointer, RANGE_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* The flags of host memory that CUDA knows. */
static CUresult flags_of(const void *pointer, unsigned *flags) {
    TRY(cuda_ready());
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    const struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    if (!range || (range->kind != RANGE_HOST && range->kind != RANGE_REGISTERED))
        result = CUDA_ERROR_INVALID_VALUE;
    else
        *flags = range->flags;
    return cuda_leave(result);
}

CUDA_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned int flags) {
    unsigned found;
    TRY(device && !flags ? flags_of(host, &found) : CUDA_ERROR_INVALID_VALUE);
    *device = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}
