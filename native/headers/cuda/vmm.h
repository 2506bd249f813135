/*
 * Memory by location: stream-ordered pools, mappable memory (cuMemCreate) with its addresses, and memory
 * handed to another process or API as a file descriptor.
 */
#pragma once

#include "array.h"

#ifndef __cuda_cuda_h__

typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUextMemory_st *CUexternalMemory;

typedef enum CUmemLocationType_enum {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4,
    CU_MEM_LOCATION_TYPE_INVISIBLE = 5,              /* only reported for pools, never requested */
    CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN = 6, /* id: device | domain << 8 */
} CUmemLocationType;

typedef enum CUmemAllocationType_enum {
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
} CUmemAllocationType;

typedef enum CUmemAllocationHandleType_enum {
    CU_MEM_HANDLE_TYPE_NONE = 0,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
} CUmemAllocationHandleType;

typedef enum CUmemAccess_flags_enum {
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
} CUmemAccess_flags;

typedef enum CUmemAllocationGranularity_flags_enum {
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
} CUmemAllocationGranularity_flags;

typedef enum CUmemPool_attribute_enum {
    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7,
    CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8,
} CUmemPool_attribute;

typedef enum CUmemOperationType_enum {
    CU_MEM_OPERATION_TYPE_MAP = 1,
    CU_MEM_OPERATION_TYPE_UNMAP = 2,
} CUmemOperationType;

typedef enum CUmemHandleType_enum { CU_MEM_HANDLE_TYPE_GENERIC = 0 } CUmemHandleType;

typedef enum CUarraySparseSubresourceType_enum {
    CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL = 0,
    CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL = 1,
} CUarraySparseSubresourceType;

typedef enum CUexternalMemoryHandleType_enum {
    CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1,
} CUexternalMemoryHandleType;

enum { CU_MEM_CREATE_USAGE_TILE_POOL = 1 };

typedef struct CUmemLocation_st {
    CUmemLocationType type;
    int id;
} CUmemLocation;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemAllocationProp_st {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemPoolProps_st {
    CUmemAllocationType allocType;
    CUmemAllocationHandleType handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize; /* 0: no own bound */
    unsigned short usage;
    unsigned char gpuDirectRDMACapable;
    unsigned char reserved[53];
} CUmemPoolProps;

typedef struct CUmemPoolPtrExportData_st {
    unsigned char reserved[64];
} CUmemPoolPtrExportData;

typedef struct CUarrayMapInfo_st {
    CUresourcetype resourceType;
    union {
        CUmipmappedArray mipmap;
        CUarray array;
    } resource;
    CUarraySparseSubresourceType subresourceType;
    union {
        struct {
            unsigned int level, layer;
            unsigned int offsetX, offsetY, offsetZ;
            unsigned int extentWidth, extentHeight, extentDepth;
        } sparseLevel;
        struct {
            unsigned int layer;
            unsigned long long offset, size;
        } miptail;
    } subresource;
    CUmemOperationType memOperationType;
    CUmemHandleType memHandleType;
    union {
        CUmemGenericAllocationHandle memHandle;
    } memHandle;
    unsigned long long offset;
    unsigned int deviceBitMask;
    unsigned int flags;
    unsigned int reserved[2];
} CUarrayMapInfo;

typedef struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st {
    CUexternalMemoryHandleType type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
        const void *nvSciBufObject;
    } handle;
    unsigned long long size;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;

typedef struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC_st {
    unsigned long long offset, size;
    unsigned int flags;
    unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

typedef struct CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_st {
    unsigned long long offset;
    CUDA_ARRAY3D_DESCRIPTOR arrayDesc;
    unsigned int numLevels;
    unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;

#endif

CUDA_API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                          CUstream stream);
CUDA_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                               CUstream stream);
CUDA_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUDA_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);
CUDA_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties);
CUDA_API CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUDA_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUDA_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUDA_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUDA_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count);
CUDA_API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location);
CUDA_API CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool,
                                                   CUmemAllocationHandleType type, unsigned long long flags);
CUDA_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
                                                     CUmemAllocationHandleType type,
                                                     unsigned long long flags);
CUDA_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer);
CUDA_API CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
                                         CUmemPoolPtrExportData *data);
CUDA_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUDA_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
CUDA_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUDA_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                         CUmemAllocationType type);
CUDA_API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type);
CUDA_API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);

CUDA_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                                CUmemAllocationGranularity_flags option);
CUDA_API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment,
                                      CUdeviceptr address, unsigned long long flags);
CUDA_API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size);
CUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                              const CUmemAllocationProp *properties, unsigned long long flags);
CUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUDA_API CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags);
CUDA_API CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream);
CUDA_API CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream);
CUDA_API CUresult cuMemUnmap(CUdeviceptr pointer, size_t size);
CUDA_API CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access,
                                 size_t count);
CUDA_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                                 CUdeviceptr pointer);
CUDA_API CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                               CUmemAllocationHandleType type, unsigned long long flags);
CUDA_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                 CUmemAllocationHandleType type);
CUDA_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                         CUmemGenericAllocationHandle handle);
CUDA_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer);

CUDA_API CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                         const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description);
CUDA_API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                                  const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description);
CUDA_API CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory memory,
                                        const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *description);
CUDA_API CUresult cuDestroyExternalMemory(CUexternalMemory memory);

/* Objects to which several devices' memory is bound. */
#ifndef __cuda_cuda_h__
typedef struct CUmulticastObjectProp_st {
    unsigned int numDevices;
    size_t size;
    unsigned long long handleTypes, flags;
} CUmulticastObjectProp;

typedef enum CUmulticastGranularity_flags_enum {
    CU_MULTICAST_GRANULARITY_RECOMMENDED = 1,
} CUmulticastGranularity_flags;
#endif

CUDA_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                                    const CUmulticastObjectProp *properties);
CUDA_API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device);
CUDA_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                     CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                     unsigned long long flags);
CUDA_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer,
                                      size_t size, unsigned long long flags);
CUDA_API CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                         CUdeviceptr pointer, size_t size, unsigned long long flags);
CUDA_API CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                        CUmemGenericAllocationHandle memory, size_t memory_offset,
                                        size_t size, unsigned long long flags);
CUDA_API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                    size_t size);
CUDA_API CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties,
                                            CUmulticastGranularity_flags option);
