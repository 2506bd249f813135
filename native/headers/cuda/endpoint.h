/*
 * Logical endpoints (CUDA 13.3), the successors of multicast objects: kernels of several devices address
 * memory by them.
 */
#pragma once

#include "vmm.h"

#ifndef __cuda_cuda_h__

typedef uint32_t cuuint32_t;
typedef cuuint32_t CUlogicalEndpointId;

typedef enum CUlogicalEndpointIpcHandleType_enum {
    CU_LOGICAL_ENDPOINT_IPC_HANDLE_TYPE_FABRIC = 1,
} CUlogicalEndpointIpcHandleType;

typedef enum CUlogicalEndpointType_enum {
    CU_LOGICAL_ENDPOINT_TYPE_UNICAST = 1,
    CU_LOGICAL_ENDPOINT_TYPE_MULTICAST = 2,
} CUlogicalEndpointType;

typedef struct CUlogicalEndpointProp_struct {
    CUlogicalEndpointType type;
    union {
        struct {
            CUdevice device;
        } unicast;
        struct {
            unsigned int numDevices;
        } multicast;
    };
    unsigned long long size;
    unsigned int ipcHandleTypes, flags;
} CUlogicalEndpointProp;

#endif

CUDA_API CUresult cuLogicalEndpointIdReserve(CUlogicalEndpointId *first, cuuint32_t count);
CUDA_API CUresult cuLogicalEndpointIdRelease(CUlogicalEndpointId first, cuuint32_t count);
CUDA_API CUresult cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *properties);
CUDA_API CUresult cuLogicalEndpointAddDevice(CUlogicalEndpointId id, CUdevice device);
CUDA_API CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id);
CUDA_API CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                            void *pointer, cuuint64_t size, unsigned long long flags);
CUDA_API CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                           CUmemGenericAllocationHandle memory, cuuint64_t memory_offset,
                                           cuuint64_t size, unsigned long long flags);
CUDA_API CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                          cuuint64_t size);
CUDA_API CUresult cuLogicalEndpointExport(void *handle, CUlogicalEndpointId id,
                                          CUlogicalEndpointIpcHandleType type);
CUDA_API CUresult cuLogicalEndpointImport(CUlogicalEndpointId id, const void *handle,
                                          CUlogicalEndpointIpcHandleType type);
CUDA_API CUresult cuLogicalEndpointGetLimits(cuuint64_t *alignment, cuuint64_t *most,
                                             const CUlogicalEndpointProp *properties);
CUDA_API CUresult cuLogicalEndpointQuery(CUlogicalEndpointId id, cuuint32_t count, int *ready);
