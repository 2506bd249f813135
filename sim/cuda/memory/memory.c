/*
 * libcuda: linear memory.
 *
 * The driver counts its cost: a context's allocations below 2 MiB share pieces of that size, and others are
 * rounded up to it. Kernels compute nothing, and never touch it.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

#include <stdlib.h>

struct small {
    struct heap heap;
    struct small *next;
};

static struct small *smalls; /* one for each context that has small allocations */

/* The heap of a context's small allocations; NULL: no memory. */
static struct heap *small_of(CUcontext context) {
    for (struct small *small = smalls; small; small = small->next)
        if (small->heap.context == context)
            return &small->heap;
    struct small *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->heap = (struct heap){.context = context, .device = context->device, .step = PAGE};
    made->next = smalls;
    smalls = made;
    return &made->heap;
}

void cuda_forget_small(CUcontext context) {
    struct small **link = &smalls;
    while (*link) {
        struct small *small = *link;
        if (context && small->heap.context != context) {
            link = &small->next;
            continue;
        }
        *link = small->next;
        cuda_heap_clear(&small->heap);
        free(small);
    }
}

/* Addresses for `size` bytes below 4 GiB; 0: none. */
static uintptr_t low_addresses(size_t size, uintptr_t below) {
    const uintptr_t step = 32 * PAGE;
    for (uintptr_t hint = step; hint < below && size <= below - hint; hint += step) {
        uintptr_t place = cuda_reserve(size, PAGE, hint);
        if (place == hint)
            return place;
        if (place)
            cuda_unmap(place, size);
    }
    return 0;
}

/* A backing of its own. */
static CUresult take_whole(struct range *range, uintptr_t below) {
    size_t size = round_up(range->size, PAGE);
    if (!size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(cuda_take(range->context, range->device, size, false, &range->backing));
    uintptr_t at = below ? low_addresses(size, below) : 0;
    range->start = below && !at ? 0 : cuda_map(range->backing, 0, size, at);
    range->mapping = range->start;
    range->mapped = size;
    if (range->start)
        return CUDA_SUCCESS;
    if (at)
        cuda_unmap(at, size);
    cuda_drop(range->backing);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult take_part(struct range *range) {
    struct heap *heap = small_of(range->context);
    TRY(heap ? cuda_heap_take(heap, range->size, &range->span) : CUDA_ERROR_OUT_OF_MEMORY);
    range->start = span_address(range->span);
    return CUDA_SUCCESS;
}

static void give_part(struct span *span) {
    struct heap *heap = span->segment->heap;
    cuda_heap_give(span, NULL);
    cuda_heap_trim(heap, 0, true);
}

CUresult cuda_linear(CUcontext context, enum range_kind kind, size_t bytes, uintptr_t below,
                     CUdeviceptr *pointer) {
    struct range made = {.size = bytes,
                         .kind = kind,
                         .context = context,
                         .device = context->device,
                         .preferred = CU_DEVICE_INVALID,
                         .prefetched = CU_DEVICE_INVALID};
    pthread_mutex_lock(&cuda_memory);
    CUresult result = bytes < PAGE && !below ? take_part(&made) : take_whole(&made, below);
    if (result == CUDA_SUCCESS && !cuda_range_add(&cuda_ranges, &made)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
        if (made.span) {
            give_part(made.span);
        } else {
            cuda_unmap(made.start, made.mapped);
            cuda_drop(made.backing);
        }
    }
    pthread_mutex_unlock(&cuda_memory);
    if (result == CUDA_SUCCESS)
        *pointer = made.start;
    return result;
}

void cuda_linear_free(struct range *range) {
    struct heap *small = range->span && !range->pool ? range->span->segment->heap : NULL;
    cuda_range_free(range, NULL);
    if (small) /* unneeded pieces go back at once */
        cuda_heap_trim(small, 0, true);
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!pointer || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_linear(context, RANGE_LINEAR, bytes, 0, pointer);
}

CUDA_API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUcontext context;
    CUresult (*release)(CUdeviceptr) = NULL;
    CUresult result = cuda_ready();
    if (result == CUDA_SUCCESS && cuda_current(&context) != CUDA_SUCCESS && context)
        result = cuda_fault(context);
    if (result != CUDA_SUCCESS || !pointer)
        return result;
    pthread_mutex_lock(&cuda_memory);
    struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    if (!range || range->start != (uintptr_t)pointer) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (range->kind == RANGE_LINEAR || range->kind == RANGE_MANAGED || range->kind == RANGE_POOL ||
               range->kind == RANGE_POOL_IMPORT || range->kind == RANGE_EXTERNAL) {
        cuda_linear_free(range);
    } else if (range->release) {
        release = range->release;
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&cuda_memory);
    return release ? release(pointer) : result;
}

CUDA_API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                     unsigned int element) {
    size_t row, bytes;
    if (!pitch || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_add_overflow(width, (size_t)511, &row) ||
        __builtin_mul_overflow(row & ~(size_t)511, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(cuMemAlloc_v2(pointer, bytes));
    *pitch = row & ~(size_t)511;
    return CUDA_SUCCESS;
}

/* It counts as if it were always on the device, where a kernel would bring it. A real driver may move it out
 * when others need the memory. */
CUDA_API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!pointer || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_linear(context, RANGE_MANAGED, bytes, 0, pointer);
}

CUDA_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CUcontext context;
    const struct cuda_device *device;
    struct sim_reply reply;
    TRY(cuda_current(&context));
    TRY(cuda_device(context->device, &device));
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_request request = {.operation = SIM_MEMORY, .device = device->gpu->id, .mig = device->mig};
    TRY(cuda_result(sim_call(&request, NULL, &reply, NULL, 0)));
    *total = reply.value[0];
    *free_bytes = reply.value[1] < reply.value[0] ? reply.value[0] - reply.value[1] : 0;
    return CUDA_SUCCESS;
}
