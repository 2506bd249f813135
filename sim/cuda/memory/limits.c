/*
 * libcuda: a context's limits. Their need beyond a context's initial memory is device memory: the heap that
 * kernels allocate from, the buffer that they print to, and a stack for each thread that the device can have
 * resident.
 *
 * A real driver may take it as late as at the next launch; here it is taken at once.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

#include <stdlib.h>

enum { LIMITS = CU_LIMIT_PERSISTING_L2_CACHE_SIZE + 1, CIG_SINCE = 12050 };

static const size_t at_start[LIMITS] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

struct limits {
    CUcontext context;
    size_t value[LIMITS];
    struct backing *extra[LIMITS];
    struct limits *next;
};

static struct limits *all;

static struct limits *limits_of(CUcontext context) {
    for (struct limits *limits = all; limits; limits = limits->next)
        if (limits->context == context)
            return limits;
    struct limits *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->context = context;
    for (int i = 0; i < LIMITS; i++)
        made->value[i] = at_start[i];
    made->next = all;
    all = made;
    return made;
}

void cuda_forget_limits(CUcontext context) {
    struct limits **link = &all;
    while (*link) {
        struct limits *limits = *link;
        if (context && limits->context != context) {
            link = &limits->next;
            continue;
        }
        *link = limits->next;
        for (int i = 0; i < LIMITS; i++)
            cuda_drop(limits->extra[i]);
        free(limits);
    }
}

/* The device's bytes for a value; SIZE_MAX: more than possible. */
static size_t cost(CUcontext context, CUlimit limit, size_t value) {
    int threads = 0, sms = 0;
    size_t bytes;
    if (limit != CU_LIMIT_STACK_SIZE)
        return limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE ? value : 0;
    (void)cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, context->device);
    (void)cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context->device);
    return __builtin_mul_overflow((size_t)threads * (size_t)sms, value, &bytes) ? SIZE_MAX : bytes;
}

static CUresult set(struct limits *limits, CUlimit limit, size_t value) {
    size_t has = cost(limits->context, limit, at_start[limit]), wanted = cost(limits->context, limit, value);
    struct backing *extra = NULL;
    if (wanted > has) {
        size_t size = round_up(wanted - has, PAGE);
        TRY(size ? cuda_take(limits->context, limits->context->device, size, false, &extra)
                 : CUDA_ERROR_OUT_OF_MEMORY);
    }
    cuda_drop(limits->extra[limit]);
    limits->extra[limit] = extra;
    limits->value[limit] = value;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    CUcontext context;
    TRY(cuda_current(&context));
    if ((unsigned)limit >= LIMITS)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY && value > 128)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    struct limits *limits = limits_of(context);
    CUresult result = limits ? set(limits, limit, value) : CUDA_ERROR_OUT_OF_MEMORY;
    return cuda_leave(result);
}

CUDA_API CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    CUcontext context;
    TRY(cuda_current(&context));
    bool cig = limit == CU_LIMIT_CIG_ENABLED && cuda_driver_version() >= CIG_SINCE;
    if ((unsigned)limit >= LIMITS && !cig)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (cig) { /* no context is for graphics; cuBLAS has no kernel for a context that does not answer this */
        *value = 0;
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&cuda_memory);
    const struct limits *limits = limits_of(context);
    *value = limits ? limits->value[limit] : at_start[limit];
    return cuda_leave(CUDA_SUCCESS);
}
