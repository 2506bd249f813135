/*
 * Calls by which a program waits for streams, or ends them.
 *
 * At synchronisation the driver gives back memory that its pools keep beyond their release threshold. The
 * account learns it at once, so that another process of the container can have it. If nothing has gone back
 * to a pool since the last time, that costs one look at a flag.
 *
 * Under a cap the last launch gets its marker before the program waits for it, because a program records an
 * event in order to wait for it. The pacer's thread records nothing in a stream that has ended or is
 * captured.
 */
#include "cuda/driver/fallbacks.h"
#include "cuda/driver/mps.h"
#include "cuda/driver/real.h"
#include "cuda/memory/table.h"
#include "cuda/pacing/pacer.h"
#include "cuda/pacing/tracker.h"
#include "pool.h"

XPU_INTERPOSE(cuCtxSynchronize)
XPU_INTERPOSE(cuCtxSynchronize_v2)
XPU_INTERPOSE(cuEventRecord)
XPU_INTERPOSE(cuEventRecordWithFlags)
XPU_INTERPOSE(cuEventRecordWithFlags_ptsz)
XPU_INTERPOSE(cuEventRecord_ptsz)
XPU_INTERPOSE(cuEventSynchronize)
XPU_INTERPOSE(cuStreamBeginCapture)
XPU_INTERPOSE(cuStreamBeginCapture_ptsz)
XPU_INTERPOSE(cuStreamBeginCapture_v2)
XPU_INTERPOSE(cuStreamBeginCapture_v2_ptsz)
XPU_INTERPOSE(cuStreamBeginCaptureToGraph)
XPU_INTERPOSE(cuStreamBeginCaptureToGraph_ptsz)
XPU_INTERPOSE(cuStreamCreate)
XPU_INTERPOSE(cuStreamCreateWithPriority)
XPU_INTERPOSE(cuStreamDestroy)
XPU_INTERPOSE(cuStreamDestroy_v2)
XPU_INTERPOSE(cuStreamQuery)
XPU_INTERPOSE(cuStreamQuery_ptsz)
XPU_INTERPOSE(cuStreamSynchronize)
XPU_INTERPOSE(cuStreamSynchronize_ptsz)
XPU_INTERPOSE(cuStreamWaitEvent)
XPU_INTERPOSE(cuStreamWaitEvent_ptsz)
XPU_NEED(cuCtxPopCurrent_v2)
XPU_NEED(cuCtxPushCurrent_v2)
XPU_FALLBACK(cuCtxSynchronize_v2, cuCtxSynchronize)

/* Numba calls it without an argument, because it knows only cuCtxSynchronize: the argument may be any value.
 * So a context that was not made here means the current one, as NULL does. The driver does not get it. */
static CUresult fallback_cuCtxSynchronize_v2(CUcontext context) {
    struct xpu_entry entry;
    if (!context || !xpu_table_find(XPU_CONTEXTS, (uintptr_t)context, &entry))
        return REAL(cuCtxSynchronize)();
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxSynchronize)();
    (void)REAL(cuCtxPopCurrent_v2)(&context);
    return result;
}

static inline CUresult synchronized(CUresult result) {
    if (__builtin_expect(__atomic_load_n(&xpu_pools_stale, __ATOMIC_ACQUIRE), 0) && result == CUDA_SUCCESS)
        xpu_pools_synchronized();
    if (__builtin_expect(xpu_pacing(), 0))
        xpu_pace_has_waited();
    return xpu_mps_explained(result);
}

static inline void waits_for(CUstream stream, bool per_thread) {
    if (__builtin_expect(xpu_pacing(), 0))
        xpu_pace_waits(stream, per_thread);
}

static inline void waits_for_all(CUcontext context) {
    if (__builtin_expect(xpu_pacing(), 0))
        xpu_pace_waits_for_all(context);
}

CUresult cuCtxSynchronize(void) {
    waits_for_all(NULL);
    return synchronized(REAL(cuCtxSynchronize)());
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
    waits_for_all(context);
    return synchronized(REAL(cuCtxSynchronize_v2)(context));
}

CUresult cuEventSynchronize(CUevent event) { return synchronized(REAL(cuEventSynchronize)(event)); }

CUresult cuStreamSynchronize(CUstream stream) {
    waits_for(stream, false);
    return synchronized(REAL(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    waits_for(stream, true);
    return synchronized(REAL(cuStreamSynchronize_ptsz)(stream));
}

/* The marker comes after the answer, which must not be about it. */
static inline CUresult asked(CUstream stream, bool per_thread, CUresult result) {
    if (__builtin_expect(xpu_pacing(), 0) && result == CUDA_ERROR_NOT_READY)
        xpu_pace_waits(stream, per_thread);
    return result;
}

CUresult cuStreamQuery(CUstream stream) { return asked(stream, false, REAL(cuStreamQuery)(stream)); }

CUresult cuStreamQuery_ptsz(CUstream stream) { return asked(stream, true, REAL(cuStreamQuery_ptsz)(stream)); }

CUresult cuEventRecord(CUevent event, CUstream stream) {
    waits_for(stream, false);
    return REAL(cuEventRecord)(event, stream);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    waits_for(stream, true);
    return REAL(cuEventRecord_ptsz)(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    waits_for(stream, false);
    return REAL(cuEventRecordWithFlags)(event, stream, flags);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
    waits_for(stream, true);
    return REAL(cuEventRecordWithFlags_ptsz)(event, stream, flags);
}

/* ---- streams as such ---- */

static inline void is_made(unsigned int flags) {
    if (!(flags & CU_STREAM_NON_BLOCKING))
        xpu_stream_blocks();
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    is_made(flags);
    return REAL(cuStreamCreate)(stream, flags);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    is_made(flags);
    return REAL(cuStreamCreateWithPriority)(stream, flags, priority);
}

static inline CUstream left_alone(CUstream stream) {
    if (__builtin_expect(xpu_pacing(), 0))
        xpu_stream_withdraw(stream);
    return stream;
}

CUresult cuStreamDestroy(CUstream stream) { return REAL(cuStreamDestroy)(left_alone(stream)); }
CUresult cuStreamDestroy_v2(CUstream stream) { return REAL(cuStreamDestroy_v2)(left_alone(stream)); }
CUresult cuStreamBeginCapture(CUstream stream) { return REAL(cuStreamBeginCapture)(left_alone(stream)); }
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return REAL(cuStreamBeginCapture_ptsz)(left_alone(stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return REAL(cuStreamBeginCapture_v2)(left_alone(stream), mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return REAL(cuStreamBeginCapture_v2_ptsz)(left_alone(stream), mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    return REAL(cuStreamBeginCaptureToGraph)(left_alone(stream), graph, dependencies, edges, count, mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count,
                                          CUstreamCaptureMode mode) {
    return REAL(cuStreamBeginCaptureToGraph_ptsz)(left_alone(stream), graph, dependencies, edges, count,
                                                  mode);
}

/* The event may belong to a capture, which the stream joins in this way. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    return REAL(cuStreamWaitEvent)(left_alone(stream), event, flags);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
    return REAL(cuStreamWaitEvent_ptsz)(left_alone(stream), event, flags);
}
