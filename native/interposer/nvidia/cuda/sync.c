/*
 * Synchronisation: at these calls the driver gives back what its pools keep beyond their release threshold.
 * The account learns it at once, so that another process of the container can have it. Where nothing has gone
 * back to a pool since the last time, they cost one look at a flag.
 */
#include "mps.h"
#include "pacer.h"
#include "pool.h"
#include "real.h"

XPU_INTERPOSE(cuCtxSynchronize)
XPU_INTERPOSE(cuCtxSynchronize_v2)
XPU_INTERPOSE(cuEventSynchronize)
XPU_INTERPOSE(cuStreamSynchronize)
XPU_INTERPOSE(cuStreamSynchronize_ptsz)

static inline CUresult synchronized(CUresult result) {
    if (__builtin_expect(__atomic_load_n(&xpu_pools_stale, __ATOMIC_ACQUIRE), 0) && result == CUDA_SUCCESS)
        xpu_pools_synchronized();
    return xpu_mps_explained(result);
}

CUresult cuCtxSynchronize(void) { return synchronized(REAL(cuCtxSynchronize)()); }
CUresult cuCtxSynchronize_v2(CUcontext context) { return synchronized(REAL(cuCtxSynchronize_v2)(context)); }
CUresult cuEventSynchronize(CUevent event) { return synchronized(REAL(cuEventSynchronize)(event)); }
CUresult cuStreamSynchronize(CUstream stream) {
    if (xpu_pacing())
        xpu_pace_waits(stream, false);
    return synchronized(REAL(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    if (xpu_pacing())
        xpu_pace_waits(stream, true);
    return synchronized(REAL(cuStreamSynchronize_ptsz)(stream));
}
