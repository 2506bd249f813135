/*
 * Limits of a context: its stacks, heap and queues are device memory.
 */
#define _GNU_SOURCE
#include "cuda/driver/devices.h"
#include "cuda/driver/real.h"
#include "cuda/memory/growth.h"
#include "cuda/memory/reconcile.h"

XPU_INTERPOSE(cuCtxSetLimit)
XPU_NEED(cuCtxGetCurrent)
XPU_NEED(cuCtxGetLimit)

static bool is_memory(CUlimit limit) {
    return limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE ||
           limit == CU_LIMIT_MALLOC_HEAP_SIZE;
}

/* A heap or a buffer takes at least its bytes; stacks take their bytes for each thread. */
static void lowered(int device, CUcontext context, uint64_t bytes) {
    (void)xpu_overhead_change(XPU_CONTEXTS, (uintptr_t)context, -(int64_t)bytes);
    xpu_shrunk(device, bytes, false);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    struct xpu_growth growth;
    CUcontext context;
    int index;
    size_t before = 0;
    uint64_t taken;
    CUresult result = xpu_granted_here(&index);
    if (result == CUDA_SUCCESS)
        result = REAL(cuCtxGetCurrent)(&context);
    if (result == CUDA_SUCCESS)
        result = xpu_growth_begin(&growth, index, 0);
    if (result != CUDA_SUCCESS)
        return result;
    (void)REAL(cuCtxGetLimit)(&before, limit);
    CUresult made = REAL(cuCtxSetLimit)(limit, value);
    result = xpu_growth_end(&growth, made, &taken);
    if (result == CUDA_SUCCESS) {
        (void)xpu_overhead_change(XPU_CONTEXTS, (uintptr_t)context, (int64_t)taken);
        if (value < before && is_memory(limit))
            lowered(index, context, before - value);
    } else if (made == CUDA_SUCCESS) {
        (void)REAL(cuCtxSetLimit)(limit, before);
        xpu_shrunk(index, 0, false);
    }
    return result;
}
