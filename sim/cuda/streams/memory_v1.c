/*
 * libcuda: the memory functions with 32-bit addresses, which the real library still exports under the names
 * without a number. Their allocations are below 4 GiB, because they cannot return another address.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

CUDA_API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    size_t total;
    TRY(cuDeviceTotalMem_v2(&total, device));
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = total < UINT32_MAX ? (unsigned int)total : UINT32_MAX;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total) {
    size_t wide_free, wide_total;
    TRY(cuMemGetInfo_v2(&wide_free, &wide_total));
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    *free_bytes = wide_free < UINT32_MAX ? (unsigned int)wide_free : UINT32_MAX;
    *total = wide_total < UINT32_MAX ? (unsigned int)wide_total : UINT32_MAX;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
    CUcontext context;
    CUdeviceptr wide;
    TRY(cuda_current(&context));
    if (!pointer || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(cuda_linear(context, RANGE_LINEAR, bytes, (uintptr_t)1 << 32, &wide));
    *pointer = (CUdeviceptr_v1)wide;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                                  unsigned int height, unsigned int element) {
    uint64_t row = ((uint64_t)width + 511) & ~(uint64_t)511, bytes = row * height;
    if (!pitch || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT32_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    TRY(cuMemAlloc(pointer, (unsigned int)bytes));
    *pitch = (unsigned int)row;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemFree(CUdeviceptr_v1 pointer) { return cuMemFree_v2(pointer); }

CUDA_API CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *description) {
    if (!description)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY_DESCRIPTOR wide = {description->Width, description->Height, description->Format,
                                  description->NumChannels};
    return cuArrayCreate_v2(array, &wide);
}

CUDA_API CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *description) {
    if (!description)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR wide = {description->Width,  description->Height,      description->Depth,
                                    description->Format, description->NumChannels, description->Flags};
    return cuArray3DCreate_v2(array, &wide);
}
