/*
 * Arrays and mipmapped arrays: memory whose layout is the device's own.
 */
#pragma once

#include "memory.h"

#ifndef __cuda_cuda_h__

typedef struct CUmipmappedArray_st *CUmipmappedArray;

typedef enum CUresourcetype_enum {
    CU_RESOURCE_TYPE_ARRAY = 0,
    CU_RESOURCE_TYPE_MIPMAPPED_ARRAY = 1,
} CUresourcetype;

typedef enum CUarray_format_enum {
    CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
    CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
    CU_AD_FORMAT_UNSIGNED_INT32 = 0x03,
    CU_AD_FORMAT_SIGNED_INT8 = 0x08,
    CU_AD_FORMAT_SIGNED_INT16 = 0x09,
    CU_AD_FORMAT_SIGNED_INT32 = 0x0a,
    CU_AD_FORMAT_HALF = 0x10,
    CU_AD_FORMAT_FLOAT = 0x20,
    CU_AD_FORMAT_BC1_UNORM = 0x91,
    CU_AD_FORMAT_BC2_UNORM = 0x93,
    CU_AD_FORMAT_BC3_UNORM = 0x95,
    CU_AD_FORMAT_BC7_UNORM = 0x9d,
    CU_AD_FORMAT_NV12 = 0xb0,
} CUarray_format;

enum {
    CUDA_ARRAY3D_LAYERED = 0x01,
    CUDA_ARRAY3D_CUBEMAP = 0x04,
    CUDA_ARRAY3D_SPARSE = 0x40,
    CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
};

typedef struct CUDA_ARRAY_DESCRIPTOR_st {
    size_t Width, Height; /* elements */
    CUarray_format Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct CUDA_ARRAY3D_DESCRIPTOR_st {
    size_t Width, Height, Depth; /* elements; layers in Depth */
    CUarray_format Format;
    unsigned int NumChannels;
    unsigned int Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct CUDA_ARRAY_DESCRIPTOR_v1_st {
    unsigned int Width, Height;
    CUarray_format Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct CUDA_ARRAY3D_DESCRIPTOR_v1_st {
    unsigned int Width, Height, Depth;
    CUarray_format Format;
    unsigned int NumChannels;
    unsigned int Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct CUDA_ARRAY_MEMORY_REQUIREMENTS_st {
    size_t size, alignment; /* bytes */
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct CUDA_ARRAY_SPARSE_PROPERTIES_st {
    struct {
        unsigned int width, height, depth; /* elements */
    } tileExtent;
    unsigned int miptailFirstLevel;
    unsigned long long miptailSize;
    unsigned int flags;
    unsigned int reserved[4];
} CUDA_ARRAY_SPARSE_PROPERTIES;

#endif

CUDA_API CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *description);
CUDA_API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description);
CUDA_API CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *description);
CUDA_API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description);
CUDA_API CUresult cuArrayDestroy(CUarray array);
CUDA_API CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *description, CUarray array);
CUDA_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *description, CUarray array);
CUDA_API CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *description, CUarray array);
CUDA_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *description, CUarray array);
CUDA_API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array,
                                               CUdevice device);
CUDA_API CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array);
CUDA_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *description,
                                         unsigned int levels);
CUDA_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap);
CUDA_API CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned int level);
CUDA_API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements,
                                                        CUmipmappedArray mipmap, CUdevice device);
CUDA_API CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties,
                                                      CUmipmappedArray mipmap);
CUDA_API CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes);
CUDA_API CUresult cuMemcpyDtoA_v2_ptds(CUarray to, size_t offset, CUdeviceptr from, size_t bytes);
CUDA_API CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes);
CUDA_API CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t offset, size_t bytes);
CUDA_API CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t bytes);
CUDA_API CUresult cuMemcpyHtoA_v2_ptds(CUarray to, size_t offset, const void *from, size_t bytes);
CUDA_API CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t bytes);
CUDA_API CUresult cuMemcpyAtoH_v2_ptds(void *to, CUarray from, size_t offset, size_t bytes);
CUDA_API CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                                  size_t bytes);
CUDA_API CUresult cuMemcpyAtoA_v2_ptds(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                                       size_t bytes);
CUDA_API CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t bytes,
                                       CUstream stream);
CUDA_API CUresult cuMemcpyHtoAAsync_v2_ptsz(CUarray to, size_t offset, const void *from, size_t bytes,
                                            CUstream stream);
CUDA_API CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes, CUstream stream);
CUDA_API CUresult cuMemcpyAtoHAsync_v2_ptsz(void *to, CUarray from, size_t offset, size_t bytes,
                                            CUstream stream);
