/*
 * libcuda: streams. Their work goes by submit.c.
 *
 * The calling thread does copies and calls host functions: a copy at once, because kernels write nothing; a
 * host function when the stream's work before it is over.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <stdlib.h>

static uint64_t latest_id = 2; /* 1 and 2 are the default streams; atomic */

static uint64_t next_id(void) { return __atomic_add_fetch(&latest_id, 1, __ATOMIC_RELAXED); }

CUDA_API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!stream || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    *stream = malloc(sizeof **stream);
    if (!*stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    **stream = (struct CUstream_st){.magic = STREAM_MAGIC,
                                    .context = context,
                                    .flags = flags,
                                    .priority = priority > 0    ? 0
                                                : priority < -5 ? -5
                                                                : priority,
                                    .id = next_id()};
    cuda_stream_begin(*stream);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

CUDA_API CUresult cuStreamDestroy_v2(CUstream stream) {
    TRY(cuda_ready());
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
        stream->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    cuda_capture_drop(stream);
    cuda_stream_end(stream);
    stream->magic = 0; /* its work goes on; calls cannot find it any more */
    free(stream->tail.nodes);
    free(stream);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

CUDA_API CUresult cuStreamSynchronize(CUstream stream) {
    CUresult result;
    return cuda_capture_forbids(stream, &result) ? result : cuda_stream_wait(stream);
}

CUDA_API CUresult cuStreamQuery(CUstream handle) {
    CUcontext context;
    CUstream stream;
    CUresult result = cuda_stream(handle, &stream, &context);
    if (result != CUDA_SUCCESS || cuda_capture_forbids(handle, &result))
        return result;
    return cuda_stream_done(handle);
}

/* The wait is for the latest record at this moment. Only the driver knows that record if other processes have
 * the event. */
static CUresult wait_on_device(CUstream handle, CUevent event) {
    struct sim_command command = {
        .kind = SIM_WAIT_SHARED, .context = event->context->id, .number = event->number};
    if (!event->interprocess) {
        command.kind = SIM_WAIT;
        command.number = event->mark.channel;
        command.value = event->mark.position;
        if (cuda_seen_done(&event->mark))
            return CUDA_SUCCESS;
    }
    return cuda_submit(handle, command, NULL);
}

CUDA_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
    CUcontext context;
    CUstream stream;
    bool captured = false;
    TRY(cuda_stream(handle, &stream, &context));
    TRY(cuda_event_check(event));
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(cuda_capture_wait(handle, event, &captured));
    if (!captured)
        TRY(wait_on_device(handle, event));
    return CUDA_SUCCESS;
}

/* Questions to a stream: `answer` is an expression of `stream` (NULL: the legacy one) and `context`. */
#define STREAM_FACT(function, type, answer)                                                                  \
    CUDA_API CUresult function(CUstream handle, type *value) {                                               \
        CUcontext context;                                                                                   \
        CUstream stream;                                                                                     \
        CUresult result = cuda_stream(handle, &stream, &context);                                            \
        if (result == CUDA_SUCCESS && !value)                                                                \
            result = CUDA_ERROR_INVALID_VALUE;                                                               \
        if (result == CUDA_SUCCESS)                                                                          \
            *value = (answer);                                                                               \
        return result;                                                                                       \
    }
STREAM_FACT(cuStreamGetCtx, CUcontext, context)
STREAM_FACT(cuStreamGetDevice, CUdevice, context->device)
STREAM_FACT(cuStreamGetFlags, unsigned int, stream ? stream->flags : CU_STREAM_DEFAULT)
STREAM_FACT(cuStreamGetPriority, int, stream ? stream->priority : 0)

CUDA_API CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
    CUcontext context;
    CUstream stream;
    TRY(cuda_stream(handle, &stream, &context));
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream && !stream->id)
        stream->id = next_id(); /* a thread's default stream */
    *id = stream ? stream->id : 1;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user_data) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_HOST,
                              .host = {.fn = function, .userData = user_data}};
    CUresult result;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    if (cuda_captured(stream, &node, &result))
        return result;
    TRY(cuda_stream_wait(stream));
    function(user_data);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *user_data,
                                      unsigned int flags) {
    CUresult result;
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (cuda_capture_forbids(stream, &result))
        return result;
    TRY(cuda_stream_wait(stream));
    callback(stream, CUDA_SUCCESS, user_data);
    return CUDA_SUCCESS;
}
