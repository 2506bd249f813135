/*
 * Streams and events beyond their creation: attributes, callbacks, and the capture of a stream's work.
 * _ptsz: the same, with the default stream of the thread in place of the context's.
 */
#pragma once

#include "device.h"

#ifndef __cuda_cuda_h__

typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;

enum { CU_STREAM_DEFAULT = 0, CU_STREAM_NON_BLOCKING = 1 };

typedef enum CUstreamCaptureStatus_enum {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
} CUstreamCaptureStatus;

typedef enum CUstreamCaptureMode_enum {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
} CUstreamCaptureMode;

typedef enum CUstreamUpdateCaptureDependencies_flags_enum {
    CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1,
} CUstreamUpdateCaptureDependencies_flags;

typedef struct CUgraphEdgeData_st {
    unsigned char from_port, to_port, type;
    unsigned char reserved[5];
} CUgraphEdgeData;

typedef union CUstreamBatchMemOpParams_union {
    cuuint64_t pad[6];
} CUstreamBatchMemOpParams;

#endif

CUDA_API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority);
CUDA_API CUresult cuStreamGetPriority(CUstream stream, int *priority);
CUDA_API CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority);
CUDA_API CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags);
CUDA_API CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags);
CUDA_API CUresult cuStreamGetId(CUstream stream, unsigned long long *id);
CUDA_API CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id);
CUDA_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUDA_API CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context);
CUDA_API CUresult cuStreamGetDevice(CUstream stream, CUdevice *device);
CUDA_API CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device);
CUDA_API CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUDA_API CUresult cuStreamQuery_ptsz(CUstream stream);
CUDA_API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags);
CUDA_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *user_data,
                                      unsigned int flags);
CUDA_API CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *user_data,
                                           unsigned int flags);
CUDA_API CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes,
                                         unsigned int flags);
CUDA_API CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr pointer, size_t bytes,
                                              unsigned int flags);
CUDA_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream);
CUDA_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags);
CUDA_API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags);

CUDA_API CUresult cuStreamBeginCapture(CUstream stream);
CUDA_API CUresult cuStreamBeginCapture_ptsz(CUstream stream);
CUDA_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
CUDA_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode);
CUDA_API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              CUstreamCaptureMode mode);
CUDA_API CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                   const CUgraphNode *dependencies,
                                                   const CUgraphEdgeData *edges, size_t count,
                                                   CUstreamCaptureMode mode);
CUDA_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUDA_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
CUDA_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
CUDA_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status);
CUDA_API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id);
CUDA_API CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id);
CUDA_API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                            CUgraph *graph, const CUgraphNode **dependencies, size_t *count);
CUDA_API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status,
                                                 cuuint64_t *id, CUgraph *graph,
                                                 const CUgraphNode **dependencies, size_t *count);
CUDA_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                            CUgraph *graph, const CUgraphNode **dependencies,
                                            const CUgraphEdgeData **edges, size_t *count);
CUDA_API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status,
                                                 cuuint64_t *id, CUgraph *graph,
                                                 const CUgraphNode **dependencies,
                                                 const CUgraphEdgeData **edges, size_t *count);
CUDA_API CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count,
                                                    unsigned int flags);
CUDA_API CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *dependencies,
                                                         size_t count, unsigned int flags);
CUDA_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

/* Values in memory that streams write and wait for. */
#define VALUE_CALLS(name, type)                                                                              \
    CUDA_API CUresult name(CUstream stream, CUdeviceptr pointer, type value, unsigned int flags);            \
    CUDA_API CUresult name##_ptsz(CUstream stream, CUdeviceptr pointer, type value, unsigned int flags);
VALUE_CALLS(cuStreamWriteValue32_v2, uint32_t)
VALUE_CALLS(cuStreamWriteValue64_v2, cuuint64_t)
VALUE_CALLS(cuStreamWriteValue32, uint32_t)
VALUE_CALLS(cuStreamWriteValue64, cuuint64_t)
VALUE_CALLS(cuStreamWaitValue32, uint32_t)
VALUE_CALLS(cuStreamWaitValue64, cuuint64_t)
#undef VALUE_CALLS
CUDA_API CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                     CUstreamBatchMemOpParams *operations, unsigned int flags);
CUDA_API CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned int count,
                                          CUstreamBatchMemOpParams *operations, unsigned int flags);
