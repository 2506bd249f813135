/*
 * libcuda: events, also those of another process by an IPC handle.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <stdlib.h>
#include <string.h>

/* The event that the driver makes for a request in the current context. */
static CUresult make(struct sim_request request, unsigned int flags, CUevent *event) {
    CUcontext context;
    struct sim_reply reply;
    TRY(cuda_current(&context));
    struct CUevent_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    request.context = context->id;
    CUresult result = cuda_result(sim_call(&request, NULL, &reply, NULL, 0));
    if (result == CUDA_SUCCESS && !reply.value[0])
        result = CUDA_ERROR_INVALID_CONTEXT; /* the exporter cannot import */
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    made->magic = EVENT_MAGIC;
    made->number = (uint32_t)reply.value[0];
    made->context = made->mark.context = context;
    made->flags = flags;
    made->interprocess = request.operation == SIM_EVENT_OPEN || (flags & CU_EVENT_INTERPROCESS);
    *event = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    TRY(cuda_ready());
    if (!event || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    return make((struct sim_request){.operation = SIM_EVENT_CREATE}, flags, event);
}

CUDA_API CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
    struct sim_reply reply;
    TRY(cuda_event_check(event));
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(event->flags & CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(cuda_call(event->context, SIM_EVENT_SHARE, event->number, &reply));
    memset(handle, 0, sizeof *handle);
    memcpy(handle, reply.value, 2 * sizeof *reply.value);
    return CUDA_SUCCESS;
}

/* It is an event without timing, and has no handle of its own. */
CUDA_API CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
    struct sim_request request = {.operation = SIM_EVENT_OPEN};
    TRY(cuda_ready());
    if (!event)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(request.argument, &handle, sizeof request.argument);
    CUresult result = make(request, CU_EVENT_DISABLE_TIMING, event);
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_INVALID_HANDLE : result;
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event) {
    CUresult result = cuda_event_check(event);
    if (result == CUDA_SUCCESS)
        result = cuda_call(event->context, SIM_EVENT_DESTROY, event->number, NULL);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return result;
    event->magic = 0;
    free(event->tail.nodes);
    free(event);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

static CUresult record(CUstream handle, CUevent event) {
    CUresult result =
        cuda_submit(handle, (struct sim_command){.kind = SIM_RECORD, .number = event->number}, &event->mark);
    /* The next wait for it, in any process, must find this record. */
    if (result == CUDA_SUCCESS && event->interprocess)
        result = cuda_look(event->context);
    return result;
}

CUDA_API CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned int flags) {
    CUcontext context;
    CUstream stream;
    bool captured = false;
    CUresult result = cuda_event_check(event);
    if (result == CUDA_SUCCESS)
        result = cuda_stream(handle, &stream, &context);
    if (result == CUDA_SUCCESS && flags > 1)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && context != event->context)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = cuda_capture_record(handle, event, &captured);
    if (result == CUDA_SUCCESS && !captured) {
        result = record(handle, event);
        event->captured = 0;
    }
    return result;
}

CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream) {
    return cuEventRecordWithFlags(event, stream, 0);
}

/* CUDA_ERROR_CAPTURED_EVENT: its work has not been given to a device. The question breaks a running capture,
 * by NVIDIA's programming guide. */
static CUresult recorded(CUevent event) {
    CUresult result = cuda_event_check(event);
    if (result != CUDA_SUCCESS || !event->captured)
        return result;
    cuda_capture_break(event);
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUDA_API CUresult cuEventSynchronize(CUevent event) {
    CUresult result = recorded(event);
    if (result != CUDA_SUCCESS || !event->interprocess)
        return result == CUDA_SUCCESS ? cuda_wait(&event->mark) : result;
    TRY(cuda_call(event->context, SIM_EVENT_SYNC, event->number, NULL));
    cuda_waited();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventQuery(CUevent event) {
    TRY(recorded(event));
    if (event->interprocess)
        return cuda_call(event->context, SIM_EVENT_QUERY, event->number, NULL);
    return cuda_done(&event->mark);
}

CUDA_API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    struct sim_reply from, to;
    TRY(recorded(start));
    TRY(recorded(end));
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!start->mark.position || !end->mark.position || start->context->device != end->context->device ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(cuda_call(start->context, SIM_EVENT_TIME, start->number, &from));
    TRY(cuda_call(end->context, SIM_EVENT_TIME, end->number, &to));
    *milliseconds = (float)((double)(int64_t)(to.value[0] - from.value[0]) / 1e6);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
