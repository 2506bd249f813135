/*
 * libcuda: a kernel's stated needs, and how many blocks of it fit. Every kernel here needs the same: 32
 * registers a thread, and the shared memory of its launch.
 */
#define _GNU_SOURCE
#include "../core/work.h"

enum {
    REGISTERS = 32,
    SHARED_DEFAULT = 49152, /* bytes of a block that asks for no more */
};

/* Of the current context's device. */
static CUresult number_of(CUdevice_attribute attribute, int *value) {
    CUdevice device;
    TRY(cuCtxGetDevice(&device));
    return cuDeviceGetAttribute(value, attribute, device);
}

static CUresult attribute_of(CUfunction function, CUfunction_attribute attribute, CUdevice device,
                             int *value) {
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
    if (cuda_cluster_attribute(function, attribute))
        *value = *cuda_cluster_attribute(function, attribute);
    return (int)attribute >= 0 && attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value,
                              CUdevice device) {
    int most = 0, clusters = 0, *place;
    TRY(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
    TRY(cuDeviceGetAttribute(&clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device));
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= most)
        place = &function->dynamic_shared;
    else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && value >= -1 && value <= 100)
        place = &function->carveout;
    else if (clusters && value >= 0 && cuda_cluster_attribute(function, attribute))
        place = cuda_cluster_attribute(function, attribute);
    else
        return CUDA_ERROR_INVALID_VALUE;
    *place = value;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    CUdevice device;
    TRY(cuda_kernel(function));
    TRY(cuCtxGetDevice(&device));
    return value ? attribute_of(function, attribute, device, value) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    CUdevice device;
    TRY(cuda_kernel(function));
    TRY(cuCtxGetDevice(&device));
    return set_attribute(function, attribute, value, device);
}

CUDA_API CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                       CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    TRY(cuda_kernel((CUfunction)(void *)kernel));
    return value ? attribute_of((CUfunction)(void *)kernel, attribute, number, value)
                 : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                       CUdevice number) {
    const struct cuda_device *device;
    TRY(cuda_device(number, &device));
    TRY(cuda_kernel((CUfunction)(void *)kernel));
    return set_attribute((CUfunction)(void *)kernel, attribute, value, number);
}

CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                              int block_size, size_t dynamic_bytes) {
    int threads = 0, shared = 0, most = 0, reserved = 0;
    TRY(cuda_kernel(function));
    if (!blocks || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(number_of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &threads));
    TRY(number_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &shared));
    TRY(number_of(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, &most));
    TRY(number_of(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, &reserved));
    int warps = (block_size + 31) / 32 * 32;
    size_t each = dynamic_bytes + (size_t)reserved;
    *blocks = block_size > 1024 ? 0 : threads / warps;
    if (*blocks > most)
        *blocks = most;
    if (each && (size_t)*blocks > (size_t)shared / each)
        *blocks = (int)((size_t)shared / each);
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
    if (!grid_size || !block_size || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = number_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms);
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
    int shared = 0, reserved = 0;
    TRY(cuda_kernel(function));
    if (!bytes || blocks <= 0 || block_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(number_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &shared));
    TRY(number_of(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, &reserved));
    *bytes = shared / blocks > reserved ? (size_t)(shared / blocks - reserved) : 0;
    return CUDA_SUCCESS;
}
