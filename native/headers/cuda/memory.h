/*
 * Plain device memory: linear, pitched, managed; host memory; copies. The versions without a number are those
 * of 32-bit addresses. vmm.h has pools and mappable memory, array.h has arrays.
 */
#pragma once

#include "core.h"

#ifndef __cuda_cuda_h__

typedef unsigned int CUdeviceptr_v1;
typedef struct CUarray_st *CUarray;

enum {
    CU_IPC_HANDLE_SIZE = 64,
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
    CU_MEMHOSTALLOC_PORTABLE = 1,
    CU_MEMHOSTALLOC_DEVICEMAP = 2,
    CU_MEMHOSTALLOC_WRITECOMBINED = 4,
};

typedef enum CUmemAttach_flags_enum {
    CU_MEM_ATTACH_GLOBAL = 1,
    CU_MEM_ATTACH_HOST = 2,
} CUmemAttach_flags;

typedef enum CUmemorytype_enum {
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_ARRAY = 3,
    CU_MEMORYTYPE_UNIFIED = 4,
} CUmemorytype;

typedef enum CUpointer_attribute_enum {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_POINTER_ATTRIBUTE_MAPPED = 13,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,
} CUpointer_attribute;

typedef struct CUipcMemHandle_st {
    char reserved[CU_IPC_HANDLE_SIZE];
} CUipcMemHandle;

typedef struct CUipcEventHandle_st {
    char reserved[CU_IPC_HANDLE_SIZE];
} CUipcEventHandle;

typedef struct CUDA_MEMCPY2D_st {
    size_t srcXInBytes, srcY;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D_st {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

#endif

/* Sizes of the present versions. */
CUDA_API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device);
CUDA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUDA_API CUresult cuMemGetInfo(unsigned int *free, unsigned int *total);
CUDA_API CUresult cuMemGetInfo_v2(size_t *free, size_t *total);

CUDA_API CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes);
CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUDA_API CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                                  unsigned int height, unsigned int element);
CUDA_API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                     unsigned int element);
CUDA_API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags);
CUDA_API CUresult cuMemFree(CUdeviceptr_v1 pointer);
CUDA_API CUresult cuMemFree_v2(CUdeviceptr pointer);
CUDA_API CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 pointer);
CUDA_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer);
CUDA_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer);
CUDA_API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
                                         CUdeviceptr pointer);
CUDA_API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                        CUdeviceptr pointer);

CUDA_API CUresult cuMemAllocHost(void **pointer, unsigned int bytes);
CUDA_API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes);
CUDA_API CUresult cuMemFreeHost(void *pointer);
CUDA_API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags);
CUDA_API CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *device, void *host, unsigned int flags);
CUDA_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned int flags);
CUDA_API CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer);
CUDA_API CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags);
CUDA_API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags);
CUDA_API CUresult cuMemHostUnregister(void *pointer);

CUDA_API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer);
CUDA_API CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);
CUDA_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags);
CUDA_API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer);
CUDA_API CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event);
CUDA_API CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle);

/* _ptds, _ptsz: the same, with the default stream of the thread in place of the context's. */
CUDA_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUDA_API CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUDA_API CUresult cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned int bytes);
CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUDA_API CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes);
CUDA_API CUresult cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned int bytes);
CUDA_API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUDA_API CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes);
CUDA_API CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes);
CUDA_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUDA_API CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUDA_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                               size_t bytes);
CUDA_API CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                    CUcontext from_context, size_t bytes);
CUDA_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                    CUcontext from_context, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                         CUcontext from_context, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream);
CUDA_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream);
CUDA_API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes,
                                    CUstream stream);
CUDA_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy);
CUDA_API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy);
CUDA_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy);
CUDA_API CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy);
CUDA_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream);
CUDA_API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *copy, CUstream stream);
CUDA_API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy);
CUDA_API CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy);
CUDA_API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream);
CUDA_API CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *copy, CUstream stream);
CUDA_API CUresult cuMemsetD8(CUdeviceptr_v1 to, unsigned char value, unsigned int count);
CUDA_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count);
CUDA_API CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count);
CUDA_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
CUDA_API CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
CUDA_API CUresult cuMemsetD16(CUdeviceptr_v1 to, unsigned short value, unsigned int count);
CUDA_API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count);
CUDA_API CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count);
CUDA_API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream);
CUDA_API CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream);
CUDA_API CUresult cuMemsetD32(CUdeviceptr_v1 to, unsigned int value, unsigned int count);
CUDA_API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count);
CUDA_API CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned int value, size_t count);
CUDA_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream);
CUDA_API CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned int value, size_t count, CUstream stream);
