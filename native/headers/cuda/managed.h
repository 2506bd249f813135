/*
 * Managed memory: advice on where it should be.
 */
#pragma once

#include "vmm.h"

#ifndef __cuda_cuda_h__

typedef enum CUmem_advise_enum {
    CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
    CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
    CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
    CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
    CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
    CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
} CUmem_advise;

typedef enum CUmem_range_attribute_enum {
    CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION = 2,
    CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY = 3,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION = 4,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE = 5,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID = 6,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE = 7,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID = 8,
} CUmem_range_attribute;

#define CU_DEVICE_CPU ((CUdevice)-1)
#define CU_DEVICE_INVALID ((CUdevice)-2)

#endif

CUDA_API CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream);
CUDA_API CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t bytes, CUdevice device,
                                          CUstream stream);
CUDA_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                        unsigned int flags, CUstream stream);
CUDA_API CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                             unsigned int flags, CUstream stream);
CUDA_API CUresult cuMemPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count,
                                          CUmemLocation *locations, size_t *firsts, size_t location_count,
                                          unsigned long long flags, CUstream stream);
CUDA_API CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr *pointers, size_t *sizes, size_t count,
                                               CUmemLocation *locations, size_t *firsts,
                                               size_t location_count, unsigned long long flags,
                                               CUstream stream);
CUDA_API CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count,
                                                    CUmemLocation *locations, size_t *firsts,
                                                    size_t location_count, unsigned long long flags,
                                                    CUstream stream);
CUDA_API CUresult cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr *pointers, size_t *sizes, size_t count,
                                                         CUmemLocation *locations, size_t *firsts,
                                                         size_t location_count, unsigned long long flags,
                                                         CUstream stream);
CUDA_API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device);
CUDA_API CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                                 CUmemLocation location);
CUDA_API CUresult cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attribute,
                                         CUdeviceptr pointer, size_t bytes);
CUDA_API CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attributes,
                                          size_t count, CUdeviceptr pointer, size_t bytes);
