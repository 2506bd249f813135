/*
 * Contexts and devices beyond their creation: facts, settings, devices among each other; fills of several
 * rows.
 */
#pragma once

#include "module.h"

#ifndef __cuda_cuda_h__

typedef enum CUdevice_P2PAttribute_enum {
    CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1,
    CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2,
    CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
    CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED = 4,
} CUdevice_P2PAttribute;

#endif

CUDA_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context);
CUDA_API CUresult cuCtxSynchronize_v2(CUcontext context);
CUDA_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUDA_API CUresult cuCtxGetCacheConfig(CUfunc_cache *preference);
CUDA_API CUresult cuCtxSetCacheConfig(CUfunc_cache preference);
CUDA_API CUresult cuCtxGetSharedMemConfig(CUsharedconfig *banks);
CUDA_API CUresult cuCtxSetSharedMemConfig(CUsharedconfig banks);
CUDA_API CUresult cuCtxResetPersistingL2Cache(void);
CUDA_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags);
CUDA_API CUresult cuCtxDisablePeerAccess(CUcontext peer);
CUDA_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
CUDA_API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice source,
                                          CUdevice destination);
CUDA_API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id);

CUDA_API CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                  size_t height);
CUDA_API CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                       size_t height);
CUDA_API CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                    size_t height, CUstream stream);
CUDA_API CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                         size_t height, CUstream stream);
CUDA_API CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                   size_t height);
CUDA_API CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                        size_t height);
CUDA_API CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                     size_t height, CUstream stream);
CUDA_API CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                          size_t height, CUstream stream);
CUDA_API CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                   size_t height);
CUDA_API CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                        size_t height);
CUDA_API CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                     size_t height, CUstream stream);
CUDA_API CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                          size_t height, CUstream stream);
