/*
 * Functions that are interposed or called here and that the simulated driver does not have. Types and values
 * as in CUDA 13.1's cuda.h.
 */
#ifndef XPU_INTERPOSER_NEWER_H
#define XPU_INTERPOSER_NEWER_H

#include "headers/cuda/cuda_api.h"

CUDA_API CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                         CUdeviceptr pointer, size_t size, unsigned long long flags);
CUDA_API CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                        CUmemGenericAllocationHandle memory, size_t memory_offset,
                                        size_t size, unsigned long long flags);

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

#endif
