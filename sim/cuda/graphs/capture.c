/*
 * libcuda: the capture of streams. Their work becomes nodes of a graph. If another stream waits for a
 * captured event, that stream joins. At the end all must have come back to the first.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list of running captures */
static struct capture *ongoing;
static uint64_t latest_id; /* atomic */
static __thread CUstreamCaptureMode thread_mode;

void cuda_forget_captures(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }

static void goes_on(struct capture *capture) {
    pthread_mutex_lock(&lock);
    capture->next = ongoing;
    ongoing = capture;
    pthread_mutex_unlock(&lock);
}

static void end(struct capture *capture) {
    struct capture **link = &ongoing;
    pthread_mutex_lock(&lock);
    while (*link && *link != capture)
        link = &(*link)->next;
    if (*link)
        *link = capture->next;
    pthread_mutex_unlock(&lock);
    free(capture);
}

/* The capture of the event's last record, or NULL: it has ended. Breaks it, if asked to. */
static struct capture *capture_of(CUevent event, bool breaks) {
    pthread_mutex_lock(&lock);
    struct capture *found = ongoing;
    while (found && found->id != event->captured)
        found = found->next;
    if (found && breaks)
        found->invalid = true;
    pthread_mutex_unlock(&lock);
    return found;
}

void cuda_capture_break(CUevent event) { (void)capture_of(event, true); }

/* The stream behind a handle if it is captured, otherwise NULL. */
static CUstream captured_stream(CUstream handle) {
    CUstream stream;
    CUcontext context;
    if (cuda_stream(handle, &stream, &context) != CUDA_SUCCESS || !stream || !stream->capture)
        return NULL;
    return stream;
}

bool cuda_captured(CUstream handle, CUgraphNodeParams *params, CUresult *result) {
    CUgraphNode node;
    CUstream stream = captured_stream(handle);
    if (!stream)
        return false;
    if (stream->capture->invalid) {
        *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return true;
    }
    *result = cuda_graph_add(stream->capture->graph, stream->tail.nodes, stream->tail.count, params, &node);
    if (*result == CUDA_SUCCESS && !cuda_tail_set(&stream->tail, &node, 1))
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (*result != CUDA_SUCCESS)
        stream->capture->invalid = true;
    return true;
}

bool cuda_captured_copy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUresult *result) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                              .memcpy.copyParams = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                                                    .srcDevice = from,
                                                    .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                                                    .dstDevice = to,
                                                    .WidthInBytes = bytes,
                                                    .Height = 1,
                                                    .Depth = 1}};
    return cuda_captured(stream, &node, result);
}

bool cuda_capture_forbids(CUstream handle, CUresult *result) {
    CUstream stream = captured_stream(handle);
    if (!stream)
        return false;
    *result = stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                       : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->capture->invalid = true;
    return true;
}

CUresult cuda_capture_record(CUstream handle, CUevent event, bool *captured) {
    CUstream stream = captured_stream(handle);
    *captured = stream;
    if (!stream)
        return CUDA_SUCCESS;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!cuda_tail_set(&event->tail, stream->tail.nodes, stream->tail.count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->captured = stream->capture->id;
    return CUDA_SUCCESS;
}

static void join(CUstream stream, struct capture *capture) {
    stream->capture = capture;
    stream->next_captured = capture->streams;
    capture->streams = stream;
    stream->tail.count = 0;
}

CUresult cuda_capture_wait(CUstream handle, CUevent event, bool *captured) {
    CUstream stream;
    CUcontext context;
    CUresult result = cuda_stream(handle, &stream, &context);
    *captured = event->captured;
    if (result != CUDA_SUCCESS)
        return result;
    if (!event->captured) /* of work outside: a captured stream cannot wait for it */
        return cuda_capture_forbids(handle, &result) ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_SUCCESS;
    if (!stream)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    struct capture *capture = capture_of(event, stream->capture && stream->capture->id != event->captured);
    if (!capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (stream->capture && stream->capture != capture) {
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!stream->capture)
        join(stream, capture);
    return cuda_tail_add(&stream->tail, event->tail.nodes, event->tail.count) ? CUDA_SUCCESS
                                                                              : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A stream that is destroyed meanwhile leaves a capture that cannot end well. */
void cuda_capture_drop(CUstream stream) {
    struct capture *capture = stream->capture;
    if (!capture)
        return;
    capture->invalid = true;
    CUstream *link = &capture->streams;
    while (*link && *link != stream)
        link = &(*link)->next_captured;
    if (*link)
        *link = stream->next_captured;
    if (capture->origin == stream)
        capture->origin = NULL;
    if (!capture->streams) {
        if (!capture->into_existing)
            (void)cuGraphDestroy(capture->graph);
        end(capture);
    }
}

static CUresult begin(CUstream handle, CUgraph graph, const struct tail *tail, CUstreamCaptureMode mode) {
    CUcontext context;
    CUstream stream;
    TRY(cuda_stream(handle, &stream, &context));
    CUresult result = CUDA_SUCCESS;
    if (!stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* the legacy default stream */
    if (stream->capture || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = calloc(1, sizeof *capture);
    if (!capture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->into_existing = graph;
    capture->graph = graph;
    if (!graph)
        result = cuGraphCreate(&capture->graph, 0);
    if (result != CUDA_SUCCESS) {
        free(capture);
        return result;
    }
    capture->id = __atomic_add_fetch(&latest_id, 1, __ATOMIC_RELAXED);
    capture->origin = stream;
    capture->mode = mode;
    goes_on(capture);
    join(stream, capture);
    return cuda_tail_set(&stream->tail, tail->nodes, tail->count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin(stream, NULL, &(struct tail){0}, mode);
}

CUDA_API CUresult cuStreamBeginCapture(CUstream stream) {
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUDA_API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              CUstreamCaptureMode mode) {
    (void)edges;
    if (!cuda_is_graph(graph) || (count && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    return begin(stream, graph, &(struct tail){(CUgraphNode *)(uintptr_t)dependencies, count}, mode);
}

/* Whether each node of a stream has a later one in the graph, or is the first stream's latest node. */
static bool joined(const struct capture *capture, CUstream stream) {
    for (size_t i = 0; i < stream->tail.count; i++) {
        CUgraphNode node = stream->tail.nodes[i];
        bool found = false;
        for (size_t j = 0; j < capture->origin->tail.count && !found; j++)
            found = capture->origin->tail.nodes[j] == node;
        for (size_t j = 0; j < capture->graph->count && !found; j++)
            for (size_t k = 0; k < capture->graph->nodes[j]->before_count && !found; k++)
                found = capture->graph->nodes[j]->before[k] == node;
        if (!found)
            return false;
    }
    return true;
}

CUDA_API CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    CUcontext context;
    CUstream stream;
    TRY(cuda_stream(handle, &stream, &context));
    CUresult result = CUDA_SUCCESS;
    if (!stream || !stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = stream->capture;
    if (capture->origin && capture->origin != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->invalid || !capture->origin)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    for (CUstream one = capture->streams; one && result == CUDA_SUCCESS; one = one->next_captured)
        if (!joined(capture, one))
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    for (CUstream one = capture->streams, next; one; one = next) {
        next = one->next_captured;
        one->capture = NULL;
        one->next_captured = NULL;
        one->tail.count = 0;
    }
    if (result != CUDA_SUCCESS && !capture->into_existing)
        (void)cuGraphDestroy(capture->graph);
    if (graph)
        *graph = result == CUDA_SUCCESS ? capture->graph : NULL;
    end(capture);
    return result;
}

CUDA_API CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                            CUgraph *graph, const CUgraphNode **dependencies,
                                            const CUgraphEdgeData **edges, size_t *count) {
    CUcontext context;
    CUstream stream;
    TRY(cuda_stream(handle, &stream, &context));
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    const struct capture *capture = stream ? stream->capture : NULL;
    *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (edges)
        *edges = NULL; /* all edges are plain ones */
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id)
        *id = capture->id;
    if (graph)
        *graph = capture->graph;
    if (dependencies)
        *dependencies = stream->tail.nodes;
    if (count)
        *count = stream->tail.count;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                            CUgraph *graph, const CUgraphNode **dependencies, size_t *count) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, count);
}

CUDA_API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

CUDA_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    return cuStreamGetCaptureInfo(stream, status, NULL);
}

CUDA_API CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies, size_t count,
                                                    unsigned int flags) {
    CUstream stream = captured_stream(handle);
    if (!stream)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    bool done = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES
                    ? cuda_tail_set(&stream->tail, dependencies, count)
                    : cuda_tail_add(&stream->tail, dependencies, count);
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
