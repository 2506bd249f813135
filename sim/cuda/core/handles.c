/*
 * libcuda: the stream behind a handle, and whether a handle is an event's.
 */
#define _GNU_SOURCE
#include "work.h"

static __thread struct CUstream_st of_thread;

/* A thread's own default stream in the current context. Its channel never changes, so that earlier work in a
 * context stays before later work. */
static void bring_here(CUstream stream, CUcontext context) {
    static uint32_t latest; /* atomic */
    if (!stream->magic)
        stream->number = __atomic_add_fetch(&latest, 1, __ATOMIC_RELAXED);
    stream->magic = STREAM_MAGIC;
    if (stream->context == context && stream->unique == context->unique)
        return;
    pthread_mutex_lock(&context->lock);
    stream->context = context;
    stream->unique = context->unique;
    stream->channel = stream->number % (context->work.connections ? context->work.connections : 1);
    stream->last = context->work.issued[stream->channel];
    stream->joined = 0;
    pthread_mutex_unlock(&context->lock);
}

CUresult cuda_stream(CUstream handle, CUstream *stream, CUcontext *context) {
    bool is_default = !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    TRY(is_default ? cuda_current(context) : cuda_ready());
    if (handle == CU_STREAM_PER_THREAD) {
        bring_here(&of_thread, *context);
        handle = &of_thread;
    }
    *stream = is_default && handle != &of_thread ? NULL : handle;
    if (is_default)
        return CUDA_SUCCESS;
    if (handle->magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    *context = handle->context;
    return cuda_is_live(*context) ? cuda_fault(*context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult cuda_event_check(CUevent event) {
    TRY(cuda_ready());
    if (!event || event->magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    return cuda_is_live(event->context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
