/*
 * libcuda: contexts, and the primary one of each device.
 */
#define _GNU_SOURCE
#include "../client/thread.h"
#include "core/export.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st primaries[SIM_MAX_DEVICES];
static struct CUctx_st *contexts; /* the others, destroyed ones too */
static uint64_t latest_context;   /* its number, unique in the process; atomic */

void cuda_forget_contexts(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        primaries[i] = (struct CUctx_st){0};
    for (struct CUctx_st *context = contexts; context; context = context->next) {
        context->live = false;
        cuda_work_forget(context);
    }
}

CUcontext cuda_primary(CUdevice number) {
    pthread_mutex_lock(&lock);
    primaries[number].magic = CONTEXT_MAGIC;
    primaries[number].device = number;
    primaries[number].primary = true;
    pthread_mutex_unlock(&lock);
    return &primaries[number];
}

static void set_live(CUcontext context, bool live) {
    __atomic_store_n(&context->live, live, __ATOMIC_RELEASE);
}

static CUresult start(CUcontext context, CUdevice number, const struct cuda_device *device) {
    struct sim_reply reply;
    struct sim_request request = {.operation = SIM_CTX_CREATE, .device = device->gpu->id, .mig = device->mig};
    TRY(cuda_result(sim_call(&request, NULL, &reply, NULL, 0)));
    sim_start_thread();
    context->magic = CONTEXT_MAGIC;
    context->id = (uint32_t)reply.value[0];
    context->device = number;
    context->unique = __atomic_add_fetch(&latest_context, 1, __ATOMIC_RELAXED);
    context->version = 3020;
    cuda_work_begin(context);
    set_live(context, true);
    return CUDA_SUCCESS;
}

static CUresult stop(CUcontext context) {
    cuda_drop_kept(context);
    set_live(context, false);
    cuda_work_end(context);
    cuda_forget_memory(context);
    return cuda_call(context, SIM_CTX_DESTROY, 0, NULL);
}

CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    CUresult result = CUDA_SUCCESS;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUcontext primary = &primaries[number];
    primary->primary = true;
    if (!primary->live)
        result = start(primary, number, device);
    if (result == CUDA_SUCCESS) {
        primary->users++;
        *context = primary;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUcontext primary = &primaries[number];
    if (!primary->users)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--primary->users == 0 && primary->live)
        result = stop(primary);
    pthread_mutex_unlock(&lock);
    return result;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease(CUdevice number) { return cuDevicePrimaryCtxRelease_v2(number); }

CUDA_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUcontext primary = &primaries[number];
    primary->users = 0;
    if (primary->live)
        result = stop(primary);
    pthread_mutex_unlock(&lock);
    return result;
}

CUDA_API CUresult cuDevicePrimaryCtxReset(CUdevice number) { return cuDevicePrimaryCtxReset_v2(number); }

CUDA_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice number, unsigned int flags) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    primaries[number].flags = flags;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice number, unsigned int flags) {
    return cuDevicePrimaryCtxSetFlags_v2(number, flags);
}

CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice number, unsigned int *flags, int *active) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = primaries[number].flags;
    *active = cuda_is_live(&primaries[number]);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->flags = flags;
    made->users = 1;
    CUresult result = start(made, number, device);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    pthread_mutex_lock(&lock);
    made->next = contexts;
    contexts = made;
    pthread_mutex_unlock(&lock);
    *context = made;
    return cuCtxPushCurrent_v2(made);
}

CUDA_API CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice number) {
    return cuCtxCreate_v2(context, flags, number);
}

CUDA_API CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinities, int count,
                                 unsigned int flags, CUdevice number) {
    (void)affinities;
    return count ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : cuCtxCreate_v2(context, flags, number);
}

CUDA_API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                                 CUdevice number) {
    if (params && params->numExecAffinityParams)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY; /* that needs MPS */
    return cuCtxCreate_v2(context, flags, number);
}

CUDA_API CUresult cuCtxDestroy_v2(CUcontext context) {
    TRY(cuda_ready());
    if (!context || context->magic != CONTEXT_MAGIC || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    CUresult result = context->live ? stop(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    pthread_mutex_unlock(&lock);
    cuda_not_current(context);
    return result;
}

CUDA_API CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

/* One use more of the current context, and one less. After the last it is destroyed. */
CUDA_API CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
    CUcontext found;
    TRY(cuda_current(&found));
    if (!context || flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    found->users++;
    pthread_mutex_unlock(&lock);
    *context = found;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxDetach(CUcontext context) {
    CUcontext found;
    TRY(cuda_current(&found));
    CUresult result = CUDA_SUCCESS;
    if (context != found)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    if (!context->users)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--context->users == 0 && context->live)
        result = stop(context);
    pthread_mutex_unlock(&lock);
    if (!cuda_is_live(context))
        cuda_not_current(context);
    return result;
}

CUDA_API CUresult cuCtxGetFlags(unsigned int *flags) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSetFlags(unsigned int flags) {
    CUcontext context;
    TRY(cuda_current(&context));
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSynchronize(void) {
    CUcontext context;
    TRY(cuda_current(&context));
    return cuda_context_wait(context);
}
