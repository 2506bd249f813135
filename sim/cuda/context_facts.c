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
    TRY(cuda_ready());
    if ((*context)->magic != CONTEXT_MAGIC)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!cuda_is_live(*context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    TRY(context_of(&context));
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    TRY(context_of(&context));
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = context->unique;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version) {
    TRY(context_of(&context));
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = context->version;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSynchronize_v2(CUcontext context) {
    TRY(context_of(&context));
    return cuda_context_wait(context);
}

CUDA_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUcontext context = NULL;
    TRY(context_of(&context));
    if (least)
        *least = LEAST_PRIORITY;
    if (greatest)
        *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}
