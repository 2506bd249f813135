/*
 * libcuda: launches. A kernel computes nothing. It takes its time on the device: the time in its name
 * (module.c), or a few microseconds and a little for each wave of blocks.
 */
#define _GNU_SOURCE
#include "../core/work.h"

static CUresult run(const CUDA_KERNEL_NODE_PARAMS *kernel, CUstream handle) {
    struct sim_command command;
    CUcontext context;
    CUstream stream;
    TRY(cuda_stream(handle, &stream, &context));
    TRY(cuda_kernel_command(kernel, context, &command));
    return cuda_submit(handle, command, NULL);
}

static CUresult launch(const CUDA_KERNEL_NODE_PARAMS *kernel, CUstream stream) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = *kernel};
    CUresult result;
    return cuda_captured(stream, &node, &result) ? result : run(kernel, stream);
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                 unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                 void **arguments, void **extra) {
    CUDA_KERNEL_NODE_PARAMS kernel = {function, grid_x,       grid_y,    grid_z, block_x, block_y,
                                      block_z,  shared_bytes, arguments, extra,  NULL,    NULL};
    return launch(&kernel, stream);
}

CUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                   void **extra) {
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                          config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream,
                          arguments, extra);
}

/* All of its blocks run at once, or it is not launched. */
CUDA_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                            unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                            unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                            void **arguments) {
    CUcontext context;
    CUstream found;
    const struct cuda_device *device;
    int each = 0;
    CUresult result = cuda_stream(stream, &found, &context);
    if (result == CUDA_SUCCESS)
        result = cuda_device(context->device, &device);
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    if (result == CUDA_SUCCESS && (threads == 0 || threads > 1024))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, function, (int)threads, shared_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t sms = device->instance ? device->instance->sm_count : device->gpu->info.sm_count;
    if ((uint64_t)grid_x * grid_y * grid_z > (uint64_t)each * sms)
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                          arguments, NULL);
}
