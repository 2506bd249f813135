/*
 * libcuda: modules, kernels, streams and events.
 *
 * A kernel is its name: `busy_500us`, `busy_20ms` take that time on the device, any other a few
 * microseconds and a little for each wave of blocks. Any name is found in any module.
 */
#define _GNU_SOURCE
#include "library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUfunc_st {
    uint32_t magic;
    uint64_t ns; /* of a busy_... kernel; 0: by its size */
    struct CUfunc_st *next;
};

struct CUmod_st {
    uint32_t magic;
    struct CUfunc_st *functions;
};

struct CUevent_st {
    uint32_t magic;
    uint32_t number; /* the driver's */
    CUcontext context;
    unsigned int flags;
    uint64_t position; /* of its latest record; 0: none */
};

enum { BASE_NS = 3000, WAVE_NS = 1000 };

static uint64_t named_time(const char *name) {
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
    uint64_t amount = 0;
    if (strncmp(name, "busy_", 5) != 0)
        return 0;
    for (name += 5; *name >= '0' && *name <= '9'; name++) {
        amount = amount * 10 + (uint64_t)(*name - '0');
        if (amount > SIM_MAX_KERNEL_NS)
            return 0;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(name, units[i].unit) == 0)
            return amount * units[i].ns <= SIM_MAX_KERNEL_NS ? amount * units[i].ns : SIM_MAX_KERNEL_NS;
    return 0;
}

CUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUcontext context;
    CUresult result = cuda_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!module || !image)
        return CUDA_ERROR_INVALID_VALUE;
    *module = calloc(1, sizeof **module);
    if (!*module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*module)->magic = MODULE_MAGIC;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                     CUjit_option *options, void **values) {
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    return cuModuleLoadData(module, image);
}

CUDA_API CUresult cuModuleUnload(CUmodule module) {
    CUresult result = cuda_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    module->magic = 0;
    while (module->functions) {
        CUfunction function = module->functions;
        module->functions = function->next;
        free(function);
    }
    free(module);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CUresult result = cuda_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!function || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUfunc_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->magic = FUNCTION_MAGIC;
    made->ns = named_time(name);
    do /* threads may look up functions of one module */
        made->next = __atomic_load_n(&module->functions, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&module->functions, &made->next, made, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED));
    *function = made;
    return CUDA_SUCCESS;
}

/* The default stream, by any of its names, is the context itself: it waits for all the others. */
static CUresult stream_of(CUstream stream, CUcontext *context, uint64_t **last) {
    bool is_default = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    CUresult result = is_default ? cuda_current(context) : cuda_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (is_default) {
        *last = &(*context)->last;
        return CUDA_SUCCESS;
    }
    if (stream->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    *context = stream->context;
    *last = &stream->last;
    return cuda_is_live(*context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult submit(CUstream stream, uint32_t operation, uint64_t argument, uint64_t *position) {
    CUcontext context;
    uint64_t *last;
    struct sim_reply reply;
    CUresult result = stream_of(stream, &context, &last);
    if (result == CUDA_SUCCESS)
        result = cuda_call(context, operation, argument, &reply);
    if (result == CUDA_SUCCESS) {
        cuda_latest(last, reply.value[0]);
        cuda_latest(&context->last, reply.value[0]);
        *position = reply.value[0];
    }
    return result;
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                 unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                 void **arguments, void **extra) {
    CUcontext context;
    const struct cuda_device *device;
    uint64_t *last, position;
    (void)shared_bytes, (void)arguments, (void)extra;
    CUresult result = stream_of(stream, &context, &last);
    if (result == CUDA_SUCCESS)
        result = cuda_device(context->device, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!function || function->magic != FUNCTION_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z || grid_x > INT32_MAX ||
        grid_y > 65535 || grid_z > 65535 || block_z > 64 || (uint64_t)block_x * block_y > 1024 ||
        (uint64_t)block_x * block_y * block_z > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t ns = function->ns;
    if (!ns) {
        uint64_t sms = device->part ? device->part->sm_count : device->gpu->info.sm_count;
        uint64_t waves = (uint64_t)grid_x * grid_y * grid_z / (sms ? sms : 1);
        ns = waves < (SIM_MAX_KERNEL_NS - BASE_NS) / WAVE_NS ? BASE_NS + waves * WAVE_NS : SIM_MAX_KERNEL_NS;
    }
    return submit(stream, SIM_LAUNCH, ns, &position);
}

CUDA_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    CUcontext context;
    CUresult result = cuda_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!stream || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = calloc(1, sizeof **stream);
    if (!*stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    **stream = (struct CUstream_st){STREAM_MAGIC, context, 0};
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamDestroy_v2(CUstream stream) {
    CUresult result = cuda_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
        stream->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    stream->magic = 0; /* its work goes on; nobody can ask for it any more */
    free(stream);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

CUDA_API CUresult cuStreamSynchronize(CUstream stream) {
    CUcontext context;
    uint64_t *last;
    CUresult result = stream_of(stream, &context, &last);
    if (result == CUDA_SUCCESS)
        result = cuda_wait(context, __atomic_load_n(last, __ATOMIC_ACQUIRE));
    return result;
}

CUDA_API CUresult cuStreamQuery(CUstream stream) {
    CUcontext context;
    uint64_t *last;
    CUresult result = stream_of(stream, &context, &last);
    if (result == CUDA_SUCCESS)
        result = cuda_call(context, SIM_QUERY, __atomic_load_n(last, __ATOMIC_ACQUIRE), NULL);
    return result;
}

static CUresult event_check(CUevent event) {
    CUresult result = cuda_ready();
    if (result != CUDA_SUCCESS)
        return result;
    if (!event || event->magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    return cuda_is_live(event->context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* All of a context's work runs in one order, so that a later launch waits for the event as it is. */
CUDA_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    CUcontext context;
    uint64_t *last;
    CUresult result = stream_of(stream, &context, &last);
    if (result == CUDA_SUCCESS)
        result = event_check(event);
    if (result == CUDA_SUCCESS && flags > 1)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && event->context != context)
        result = cuEventSynchronize(event); /* another device's: waited for here and now */
    return result;
}

CUDA_API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    CUcontext context;
    struct sim_reply reply;
    CUresult result = cuda_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!event || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUevent_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = cuda_call(context, SIM_EVENT_CREATE, 0, &reply);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *made = (struct CUevent_st){EVENT_MAGIC, (uint32_t)reply.value[0], context, flags, 0};
    *event = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event) {
    CUresult result = event_check(event);
    if (result == CUDA_SUCCESS)
        result = cuda_call(event->context, SIM_EVENT_DESTROY, event->number, NULL);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return result;
    event->magic = 0;
    free(event);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    CUcontext context;
    uint64_t *last;
    CUresult result = event_check(event);
    if (result == CUDA_SUCCESS)
        result = stream_of(stream, &context, &last);
    if (result == CUDA_SUCCESS && context != event->context)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = submit(stream, SIM_EVENT_RECORD, event->number, &event->position);
    return result;
}

CUDA_API CUresult cuEventSynchronize(CUevent event) {
    CUresult result = event_check(event);
    return result == CUDA_SUCCESS ? cuda_wait(event->context, event->position) : result;
}

CUDA_API CUresult cuEventQuery(CUevent event) {
    CUresult result = event_check(event);
    return result == CUDA_SUCCESS ? cuda_call(event->context, SIM_QUERY, event->position, NULL) : result;
}

CUDA_API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    struct sim_reply from, to;
    CUresult result = event_check(start);
    if (result == CUDA_SUCCESS)
        result = event_check(end);
    if (result != CUDA_SUCCESS)
        return result;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!start->position || !end->position || start->context->device != end->context->device ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    result = cuda_call(start->context, SIM_EVENT_TIME, start->number, &from);
    if (result == CUDA_SUCCESS)
        result = cuda_call(end->context, SIM_EVENT_TIME, end->number, &to);
    if (result == CUDA_SUCCESS)
        *milliseconds = (float)((double)(int64_t)(to.value[0] - from.value[0]) / 1e6);
    return result;
}

CUDA_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
