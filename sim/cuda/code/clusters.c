/*
 * libcuda: clusters of blocks, from compute capability 9.0 on: a kernel's settings for them, and how many of
 * them fit. A cluster is that many blocks. The model does not say which multiprocessors its blocks may share.
 */
#define _GNU_SOURCE
#include "../core/work.h"

enum { PORTABLE = 8, NON_PORTABLE = 16 }; /* blocks of the largest cluster */

static uint64_t largest(CUfunction function) {
    return *cuda_cluster_attribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)
               ? NON_PORTABLE
               : PORTABLE;
}

/* Blocks of a cluster, by the launch or otherwise by the kernel; 0: it is impossible. */
static uint64_t size_of(CUfunction function, const CUlaunchConfig *config) {
    const int *kernel = cuda_cluster_attribute(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
    uint64_t size[3] = {1, 1, 1};
    for (int i = 0; i < 3; i++)
        size[i] = kernel[i] ? (uint64_t)kernel[i] : 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            size[0] = config->attrs[i].value.clusterDim.x;
            size[1] = config->attrs[i].value.clusterDim.y;
            size[2] = config->attrs[i].value.clusterDim.z;
        }
    for (int i = 0; i < 3; i++)
        if (size[i] > NON_PORTABLE)
            return 0;
    return size[0] * size[1] * size[2];
}

/* The multiprocessors of the current device, if it has clusters, and the blocks of a launch that fit on one.
 */
static CUresult room(CUfunction function, const CUlaunchConfig *config, int *multiprocessors, int *blocks) {
    CUdevice device;
    int clusters = 0;
    TRY(cuda_kernel(function));
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (threads == 0 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(cuCtxGetDevice(&device));
    TRY(cuDeviceGetAttribute(&clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device));
    if (!clusters)
        return CUDA_ERROR_NOT_SUPPORTED;
    TRY(cuDeviceGetAttribute(multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, (int)threads,
                                                       config->sharedMemBytes);
}

CUDA_API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                               const CUlaunchConfig *config) {
    int multiprocessors = 0, blocks = 0;
    if (!clusters)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(room(function, config, &multiprocessors, &blocks));
    uint64_t size = size_of(function, config);
    if (size == 0 || size > largest(function))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    *clusters = (int)((uint64_t)multiprocessors * (uint64_t)blocks / size);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function,
                                                     const CUlaunchConfig *config) {
    int multiprocessors = 0, blocks = 0;
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(room(function, config, &multiprocessors, &blocks));
    *size = blocks ? (int)largest(function) : 0;
    return CUDA_SUCCESS;
}
