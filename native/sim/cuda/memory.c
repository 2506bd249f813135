/*
 * libcuda: device memory. What it costs is the driver's to count; where it lies is host memory that
 * nothing is taken for until something is written, so that copies give back what was put in.
 *
 * Kernels do not compute anything, and never touch it.
 */
#define _GNU_SOURCE
#include "library.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct block {
    uintptr_t start;
    size_t size;
    uint64_t id; /* the driver's */
    CUcontext context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks; /* by their start */
static size_t block_count, block_room;

/* The first block that ends behind `address`. */
static size_t find(uintptr_t address) {
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].start + blocks[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool remember(const struct block *block) {
    if (block_count == block_room) {
        size_t room = block_room ? block_room * 2 : 64;
        struct block *larger = realloc(blocks, room * sizeof *larger);
        if (!larger)
            return false;
        blocks = larger;
        block_room = room;
    }
    size_t at = find(block->start);
    memmove(blocks + at + 1, blocks + at, (block_count - at) * sizeof *blocks);
    blocks[at] = *block;
    block_count++;
    return true;
}

void cuda_forget_memory(CUcontext context) {
    if (!context)
        lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; /* in a forked child */
    pthread_mutex_lock(&lock);
    size_t kept = 0;
    for (size_t i = 0; i < block_count; i++) {
        if (context && blocks[i].context != context)
            blocks[kept++] = blocks[i];
        else
            munmap((void *)blocks[i].start, blocks[i].size);
    }
    block_count = kept;
    pthread_mutex_unlock(&lock);
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    CUcontext context;
    struct sim_reply reply;
    CUresult result = cuda_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!pointer || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = cuda_call(context, SIM_ALLOCATE, bytes, &reply);
    if (result != CUDA_SUCCESS)
        return result;
    void *place =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct block block = {(uintptr_t)place, bytes, reply.value[0], context};
    pthread_mutex_lock(&lock);
    bool kept = place != MAP_FAILED && remember(&block);
    pthread_mutex_unlock(&lock);
    if (!kept) {
        if (place != MAP_FAILED)
            munmap(place, bytes);
        (void)cuda_call(context, SIM_FREE, block.id, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = (CUdeviceptr)(uintptr_t)place;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUresult result = cuda_ready();
    if (result != CUDA_SUCCESS || !pointer)
        return result;
    pthread_mutex_lock(&lock);
    size_t at = find((uintptr_t)pointer);
    bool found = at < block_count && blocks[at].start == (uintptr_t)pointer;
    struct block block = {0};
    if (found) {
        block = blocks[at];
        block_count--;
        memmove(blocks + at, blocks + at + 1, (block_count - at) * sizeof *blocks);
    }
    pthread_mutex_unlock(&lock);
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)block.start, block.size);
    return cuda_call(block.context, SIM_FREE, block.id, NULL);
}

CUDA_API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                     unsigned int element) {
    size_t row, bytes;
    if (!pitch || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_add_overflow(width, (size_t)511, &row) ||
        __builtin_mul_overflow(row & ~(size_t)511, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuMemAlloc_v2(pointer, bytes);
    if (result == CUDA_SUCCESS)
        *pitch = row & ~(size_t)511;
    return result;
}

/* Counted as if it were on the device for good, which is where a kernel would bring it. */
CUDA_API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return cuMemAlloc_v2(pointer, bytes);
}

CUDA_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CUcontext context;
    const struct cuda_device *device;
    struct sim_reply reply;
    CUresult result = cuda_current(&context);
    if (result == CUDA_SUCCESS)
        result = cuda_device(context->device, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_request request = {.operation = SIM_MEMORY, .device = device->gpu->id, .mig = device->mig};
    result = cuda_result(sim_call(&request, NULL, &reply, NULL, 0));
    if (result == CUDA_SUCCESS) {
        *total = reply.value[0];
        *free_bytes = reply.value[1] < reply.value[0] ? reply.value[0] - reply.value[1] : 0;
    }
    return result;
}

/* Is [pointer, pointer + bytes) inside one block? With the lock held. */
static bool inside(CUdeviceptr pointer, size_t bytes) {
    size_t at = find((uintptr_t)pointer);
    return at < block_count && blocks[at].start <= (uintptr_t)pointer &&
           bytes <= blocks[at].size - ((uintptr_t)pointer - blocks[at].start);
}

/* Opens a copy: it waits for the work before it, as on the default stream; then the lock is held. */
static CUresult begin(void) {
    CUcontext context;
    CUresult result = cuda_current(&context);
    if (result == CUDA_SUCCESS)
        result = cuda_wait(context, __atomic_load_n(&context->last, __ATOMIC_ACQUIRE));
    if (result == CUDA_SUCCESS)
        pthread_mutex_lock(&lock);
    return result;
}

static CUresult copy(void *to, const void *from, size_t bytes, CUdeviceptr device_to,
                     CUdeviceptr device_from) {
    CUresult result = begin();
    if (result != CUDA_SUCCESS)
        return result;
    if ((device_to && !inside(device_to, bytes)) || (device_from && !inside(device_from, bytes)) || !to ||
        !from)
        result = bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    else
        memmove(to, from, bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy((void *)(uintptr_t)to, from, bytes, to, 0);
}

CUDA_API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy(to, (const void *)(uintptr_t)from, bytes, 0, from);
}

CUDA_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes, to, from);
}

/* Zeros need no memory: whole pages are given back, and read as zeros. */
static void clear(uintptr_t start, size_t bytes) {
    const uintptr_t page = 4096;
    uintptr_t first = (start + page - 1) & ~(page - 1), end = start + bytes, last = end & ~(page - 1);
    if (first < last && madvise((void *)first, last - first, MADV_DONTNEED) == 0) {
        memset((void *)start, 0, first - start);
        memset((void *)last, 0, end - last);
    } else {
        memset((void *)start, 0, bytes);
    }
}

CUDA_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
    CUresult result = begin();
    if (result != CUDA_SUCCESS)
        return result;
    if (!inside(to, bytes))
        result = bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    else if (value == 0)
        clear((uintptr_t)to, bytes);
    else
        memset((void *)(uintptr_t)to, value, bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

/* The names without version. NVIDIA's have 32-bit sizes and pointers, which no 64-bit program can use; here
 * they are as the second versions, for scripts that call them by these names. */
#define AS_SECOND(name) __attribute__((visibility("default"), alias(#name "_v2"))) CUresult name
AS_SECOND(cuMemAlloc)(CUdeviceptr *pointer, size_t bytes);
AS_SECOND(cuMemFree)(CUdeviceptr pointer);
AS_SECOND(cuMemAllocPitch)
(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element);
AS_SECOND(cuMemGetInfo)(size_t *free_bytes, size_t *total);
AS_SECOND(cuMemcpyHtoD)(CUdeviceptr to, const void *from, size_t bytes);
AS_SECOND(cuMemcpyDtoH)(void *to, CUdeviceptr from, size_t bytes);
AS_SECOND(cuMemcpyDtoD)(CUdeviceptr to, CUdeviceptr from, size_t bytes);
AS_SECOND(cuMemsetD8)(CUdeviceptr to, unsigned char value, size_t bytes);
