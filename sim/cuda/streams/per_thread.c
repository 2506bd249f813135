/*
 * libcuda: the second symbol of each function on a stream, whose default stream is the calling thread's.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#define PTSZ(name, parameters, arguments)                                                                    \
    CUDA_API CUresult name##_ptsz parameters { return name arguments; }

PTSZ(cuStreamGetPriority, (CUstream stream, int *priority), (PER_THREAD(stream), priority))
PTSZ(cuStreamGetFlags, (CUstream stream, unsigned int *flags), (PER_THREAD(stream), flags))
PTSZ(cuStreamGetId, (CUstream stream, unsigned long long *id), (PER_THREAD(stream), id))
PTSZ(cuStreamGetCtx, (CUstream stream, CUcontext *context), (PER_THREAD(stream), context))
PTSZ(cuStreamGetDevice, (CUstream stream, CUdevice *device), (PER_THREAD(stream), device))
PTSZ(cuStreamSynchronize, (CUstream stream), (PER_THREAD(stream)))
PTSZ(cuStreamQuery, (CUstream stream), (PER_THREAD(stream)))
PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
     (PER_THREAD(stream), event, flags))
PTSZ(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *user_data, unsigned int flags),
     (PER_THREAD(stream), callback, user_data, flags))
PTSZ(cuEventRecord, (CUevent event, CUstream stream), (event, PER_THREAD(stream)))
PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
     (event, PER_THREAD(stream), flags))
PTSZ(cuStreamBeginCapture, (CUstream stream), (PER_THREAD(stream)))
PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (PER_THREAD(stream), mode))
PTSZ(cuStreamBeginCaptureToGraph,
     (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
      size_t count, CUstreamCaptureMode mode),
     (PER_THREAD(stream), graph, dependencies, edges, count, mode))
PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (PER_THREAD(stream), graph))
PTSZ(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), (PER_THREAD(stream), status))
PTSZ(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
     (PER_THREAD(stream), status, id))
PTSZ(cuStreamGetCaptureInfo_v2,
     (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
      const CUgraphNode **dependencies, size_t *count),
     (PER_THREAD(stream), status, id, graph, dependencies, count))
PTSZ(cuStreamGetCaptureInfo_v3,
     (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
      const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
     (PER_THREAD(stream), status, id, graph, dependencies, edges, count))
PTSZ(cuStreamUpdateCaptureDependencies,
     (CUstream stream, CUgraphNode *dependencies, size_t count, unsigned int flags),
     (PER_THREAD(stream), dependencies, count, flags))
PTSZ(cuLaunchKernel,
     (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
      CUstream stream, void **arguments, void **extra),
     (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, PER_THREAD(stream),
      arguments, extra))

CUDA_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                        void **extra) {
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    CUlaunchConfig by_thread = *config;
    by_thread.hStream = PER_THREAD(config->hStream);
    return cuLaunchKernelEx(&by_thread, function, arguments, extra);
}

PTSZ(cuLaunchCooperativeKernel,
     (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
      CUstream stream, void **arguments),
     (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, PER_THREAD(stream),
      arguments))
PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *user_data),
     (PER_THREAD(stream), function, user_data))

CUDA_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                    CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUstream given = params->hUploadStream;
    params->hUploadStream = PER_THREAD(given);
    CUresult result = cuGraphInstantiateWithParams(exec, graph, params);
    params->hUploadStream = given;
    return result;
}

PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), (exec, PER_THREAD(stream)))
PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), (exec, PER_THREAD(stream)))
