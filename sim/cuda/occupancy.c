/*
 * libcuda: what a kernel is said to need, and how many blocks of it fit. Every kernel here needs the same: 32
 * registers a thread and the shared memory that its launch asks for.
 */
#define _GNU_SOURCE
#include "work.h"

enum {
    REGISTERS = 32,
    SHARED_DEFAULT = 49152, /* bytes of a block that has not asked for more */
    SHARED_MULTIPROCESSOR = 65536,
    BLOCKS_MULTIPROCESSOR = 16,
};

static CUresult number_of(CUdevice device, CUdevice_attribute attribute, int *value) {
    return cuDeviceGetAttribute(value, attribute, device);
}

static CUresult attribute_of(const struct CUfunc_st *function, CUfunction_attribute attribute,
                             CUdevice device, int *value) {
    int major = 0, minor = 0;
    *value = 0;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = REGISTERS;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->dynamic_shared ? function->dynamic_shared : SHARED_DEFAULT;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = function->carveout;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        (void)cuDeviceComputeCapability(&major, &minor, device);
        *value = major * 10 + minor;
        return CUDA_SUCCESS;
    }
    return (int)attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_attribute(struct CUfunc_st *function, CUfunction_attribute attribute, int value) {
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value > SHARED_MULTIPROCESSOR)
            return CUDA_ERROR_INVALID_VALUE;
        function->dynamic_shared = value;
    } else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        function->carveout = value;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    CUresult result;
    CUdevice device;
    if (!cuda_kernel(function, &result))
        return result;
    result = cuCtxGetDevice(&device);
    if (result != CUDA_SUCCESS)
        return result;
    return value ? attribute_of(function, attribute, device, value) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    CUresult result;
    return cuda_kernel(function, &result) ? set_attribute(function, attribute, value) : result;
}

CUDA_API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache preference) {
    CUresult result;
    if (!cuda_kernel(function, &result))
        return result;
    return preference <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                       CUdevice number) {
    const struct cuda_device *device;
    CUresult result = cuda_device(number, &device);
    if (result != CUDA_SUCCESS || !cuda_kernel((CUfunction)(void *)kernel, &result))
        return result;
    return value ? attribute_of((CUfunction)(void *)kernel, attribute, number, value)
                 : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                       CUdevice number) {
    const struct cuda_device *device;
    CUresult result = cuda_device(number, &device);
    if (result != CUDA_SUCCESS)
        return result;
    return cuFuncSetAttribute((CUfunction)(void *)kernel, attribute, value);
}

CUDA_API CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache preference, CUdevice number) {
    const struct cuda_device *device;
    CUresult result = cuda_device(number, &device);
    return result == CUDA_SUCCESS ? cuFuncSetCacheConfig((CUfunction)(void *)kernel, preference) : result;
}

CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                              int block_size, size_t dynamic_bytes) {
    CUresult result;
    CUdevice device;
    int threads = 0;
    if (!cuda_kernel(function, &result))
        return result;
    if (!blocks || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS)
        result = number_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &threads);
    if (result != CUDA_SUCCESS)
        return result;
    int warps = (block_size + 31) / 32 * 32;
    *blocks = block_size > 1024 ? 0 : threads / warps;
    if (*blocks > BLOCKS_MULTIPROCESSOR)
        *blocks = BLOCKS_MULTIPROCESSOR;
    if (dynamic_bytes && (size_t)*blocks > SHARED_MULTIPROCESSOR / dynamic_bytes)
        *blocks = (int)(SHARED_MULTIPROCESSOR / dynamic_bytes);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                                       int block_size, size_t dynamic_bytes,
                                                                       unsigned int flags) {
    return flags > 1
               ? CUDA_ERROR_INVALID_VALUE
               : cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, dynamic_bytes);
}

CUDA_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid_size, int *block_size,
                                                            CUfunction function,
                                                            CUoccupancyB2DSize dynamic_of,
                                                            size_t dynamic_bytes, int limit,
                                                            unsigned int flags) {
    int best = 0, sms = 0;
    CUdevice device;
    if (!grid_size || !block_size || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS)
        result = number_of(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms);
    *grid_size = *block_size = 0;
    for (int size = limit > 0 && limit < 1024 ? limit / 32 * 32 : 1024; size > 0 && result == CUDA_SUCCESS;
         size -= 32) {
        int blocks;
        size_t dynamic = dynamic_of ? dynamic_of(size) : dynamic_bytes;
        result = cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, size, dynamic);
        if (result == CUDA_SUCCESS && blocks * size > best) {
            best = blocks * size;
            *block_size = size;
            *grid_size = blocks * sms;
        }
    }
    return result;
}

CUDA_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid_size, int *block_size, CUfunction function,
                                                   CUoccupancyB2DSize dynamic_of, size_t dynamic_bytes,
                                                   int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_size, block_size, function, dynamic_of,
                                                     dynamic_bytes, limit, 0);
}

CUDA_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks,
                                                          int block_size) {
    CUresult result;
    if (!cuda_kernel(function, &result))
        return result;
    if (!bytes || blocks <= 0 || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = SHARED_MULTIPROCESSOR / (size_t)blocks;
    return CUDA_SUCCESS;
}
