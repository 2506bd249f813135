/*
 * libcuda: each thread's stack of current contexts, and a context's error.
 */
#define _GNU_SOURCE
#include "library.h"

enum { STACK_DEPTH = 32 };

static uint32_t process_age; /* counts forks, so that a child's threads drop the parent's stacks */
static __thread struct {
    uint32_t age;
    int depth;
    CUcontext contexts[STACK_DEPTH];
} current;

void cuda_forget_current(void) { process_age++; }

CUresult cuda_fault(CUcontext context) {
    return cuda_result(__atomic_load_n(&context->fault, __ATOMIC_ACQUIRE));
}

static void freshen(void) {
    if (current.age != process_age) {
        current.age = process_age;
        current.depth = 0;
    }
}

static CUcontext top(void) {
    freshen();
    return current.depth ? current.contexts[current.depth - 1] : NULL;
}

void cuda_not_current(CUcontext context) {
    if (top() == context)
        current.depth--;
}

bool cuda_is_live(CUcontext context) { return __atomic_load_n(&context->live, __ATOMIC_ACQUIRE); }

CUresult cuda_current(CUcontext *context) {
    CUresult result = cuda_ready();
    *context = result == CUDA_SUCCESS ? top() : NULL;
    if (result != CUDA_SUCCESS)
        return result;
    if (!*context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return cuda_is_live(*context) ? cuda_fault(*context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUDA_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    TRY(cuda_ready());
    if (!context || context->magic != CONTEXT_MAGIC)
        return CUDA_ERROR_INVALID_CONTEXT;
    freshen();
    if (current.depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    current.contexts[current.depth++] = context;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }

CUDA_API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    TRY(cuda_ready());
    if (!top())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = top();
    current.depth--;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent_v2(context); }

CUDA_API CUresult cuCtxSetCurrent(CUcontext context) {
    TRY(cuda_ready());
    if (context && context->magic != CONTEXT_MAGIC)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (top())
        current.depth--;
    if (context)
        current.contexts[current.depth++] = context;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetCurrent(CUcontext *context) {
    TRY(cuda_ready());
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = top();
    return CUDA_SUCCESS;
}

/* A primary context has its device before it is active: cudart makes it current in that state. */
CUDA_API CUresult cuCtxGetDevice(CUdevice *device) {
    CUcontext context;
    CUresult result = cuda_current(&context);
    if ((result == CUDA_ERROR_CONTEXT_IS_DESTROYED && context->primary) ||
        (context && result == cuda_fault(context)))
        result = CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && !device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}
