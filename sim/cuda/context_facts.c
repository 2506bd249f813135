/*
 * libcuda: questions to a context, and settings of it without effect here.
 */
#define _GNU_SOURCE
#include "core/work.h"

enum { LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

/* The given context, or the current one. */
static CUresult context_of(CUcontext *context) {
    if (!*context)
        return cuda_current(context);
    CUresult result = cuda_ready();
    if (result == CUDA_SUCCESS && (*context)->magic != CONTEXT_MAGIC)
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS && !cuda_is_live(*context))
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return result;
}

CUDA_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    CUresult result = context_of(&context);
    if (result == CUDA_SUCCESS && !device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}

CUDA_API CUresult cuCtxSynchronize_v2(CUcontext context) {
    CUresult result = context_of(&context);
    return result == CUDA_SUCCESS ? cuda_context_wait(context) : result;
}

CUDA_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUcontext context = NULL;
    CUresult result = context_of(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (least)
        *least = LEAST_PRIORITY;
    if (greatest)
        *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}
