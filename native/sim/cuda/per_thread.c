/*
 * libcuda: the second symbol of each function on a stream, whose default stream
 * is the calling thread's.
 */
#define _GNU_SOURCE
#include "work.h"

CUDA_API CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority) {
    return cuStreamGetPriority(PER_THREAD(stream), priority);
}

CUDA_API CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags) {
    return cuStreamGetFlags(PER_THREAD(stream), flags);
}

CUDA_API CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id) {
    return cuStreamGetId(PER_THREAD(stream), id);
}

CUDA_API CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context) {
    return cuStreamGetCtx(PER_THREAD(stream), context);
}

CUDA_API CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device) {
    return cuStreamGetDevice(PER_THREAD(stream), device);
}

CUDA_API CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return cuStreamSynchronize(PER_THREAD(stream));
}

CUDA_API CUresult cuStreamQuery_ptsz(CUstream stream) { return cuStreamQuery(PER_THREAD(stream)); }

CUDA_API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
    return cuStreamWaitEvent(PER_THREAD(stream), event, flags);
}

CUDA_API CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *user_data,
                                           unsigned int flags) {
    return cuStreamAddCallback(PER_THREAD(stream), callback, user_data, flags);
}

CUDA_API CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr pointer, size_t bytes,
                                              unsigned int flags) {
    return cuStreamAttachMemAsync(PER_THREAD(stream), pointer, bytes, flags);
}

CUDA_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return cuEventRecord(event, PER_THREAD(stream));
}

CUDA_API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
    return cuEventRecordWithFlags(event, PER_THREAD(stream), flags);
}

CUDA_API CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return cuStreamBeginCapture(PER_THREAD(stream));
}

CUDA_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return cuStreamBeginCapture_v2(PER_THREAD(stream), mode);
}

CUDA_API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                   const CUgraphNode *dependencies,
                                                   const CUgraphEdgeData *edges, size_t count,
                                                   CUstreamCaptureMode mode) {
    return cuStreamBeginCaptureToGraph(PER_THREAD(stream), graph, dependencies, edges, count, mode);
}

CUDA_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return cuStreamEndCapture(PER_THREAD(stream), graph);
}

CUDA_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status) {
    return cuStreamIsCapturing(PER_THREAD(stream), status);
}

CUDA_API CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus *status,
                                              cuuint64_t *id) {
    return cuStreamGetCaptureInfo(PER_THREAD(stream), status, id);
}

CUDA_API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status,
                                                 cuuint64_t *id, CUgraph *graph,
                                                 const CUgraphNode **dependencies, size_t *count) {
    return cuStreamGetCaptureInfo_v2(PER_THREAD(stream), status, id, graph, dependencies, count);
}

CUDA_API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status,
                                                 cuuint64_t *id, CUgraph *graph,
                                                 const CUgraphNode **dependencies,
                                                 const CUgraphEdgeData **edges, size_t *count) {
    return cuStreamGetCaptureInfo_v3(PER_THREAD(stream), status, id, graph, dependencies, edges, count);
}

CUDA_API CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *dependencies,
                                                         size_t count, unsigned int flags) {
    return cuStreamUpdateCaptureDependencies(PER_THREAD(stream), dependencies, count, flags);
}

CUDA_API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                      unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                      unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                      void **arguments, void **extra) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                          PER_THREAD(stream), arguments, extra);
}

CUDA_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                        void **extra) {
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    CUlaunchConfig by_thread = *config;
    by_thread.hStream = PER_THREAD(config->hStream);
    return cuLaunchKernelEx(&by_thread, function, arguments, extra);
}

CUDA_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x,
                                                 unsigned int grid_y, unsigned int grid_z,
                                                 unsigned int block_x, unsigned int block_y,
                                                 unsigned int block_z, unsigned int shared_bytes,
                                                 CUstream stream, void **arguments) {
    return cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                     shared_bytes, PER_THREAD(stream), arguments);
}

CUDA_API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *user_data) {
    return cuLaunchHostFunc(PER_THREAD(stream), function, user_data);
}

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

CUDA_API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return cuGraphUpload(exec, PER_THREAD(stream));
}

CUDA_API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return cuGraphLaunch(exec, PER_THREAD(stream));
}
