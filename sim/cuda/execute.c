/*
 * libcuda: launches. A kernel computes nothing; it takes its time on the device: what its name says
 * (module.c), or a few microseconds and a little for each wave of blocks.
 */
#define _GNU_SOURCE
#include "work.h"

enum { BASE_NS = 3000, WAVE_NS = 1000 };

static CUfunction function_of(const CUDA_KERNEL_NODE_PARAMS *kernel) {
    return kernel->func ? kernel->func : (CUfunction)(void *)kernel->kern;
}

static bool fits(const CUDA_KERNEL_NODE_PARAMS *kernel) {
    uint64_t plane = (uint64_t)kernel->blockDimX * kernel->blockDimY;
    return kernel->gridDimX && kernel->gridDimY && kernel->gridDimZ && kernel->gridDimX <= INT32_MAX &&
           kernel->gridDimY <= 65535 && kernel->gridDimZ <= 65535 && kernel->blockDimZ &&
           kernel->blockDimZ <= 64 && plane && plane <= 1024 && plane * kernel->blockDimZ <= 1024;
}

CUresult cuda_kernel_check(const CUDA_KERNEL_NODE_PARAMS *kernel) {
    CUresult result;
    if (!cuda_kernel(function_of(kernel), &result))
        return result;
    return fits(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_kernel_command(const CUDA_KERNEL_NODE_PARAMS *kernel, CUcontext context,
                             struct sim_command *command) {
    const struct cuda_device *device;
    CUresult result = cuda_device(context->device, &device);
    if (result == CUDA_SUCCESS)
        result = cuda_kernel_check(kernel);
    if (result != CUDA_SUCCESS)
        return result;
    const struct CUfunc_st *function = cuda_kernel(function_of(kernel), &result);
    *command = (struct sim_command){
        .kind = (uint16_t)function->kind, .number = function->flag_number, .value = function->ns};
    if (!function->ns) {
        uint64_t sms = device->instance ? device->instance->sm_count : device->gpu->info.sm_count;
        uint64_t blocks = (uint64_t)kernel->gridDimX * kernel->gridDimY * kernel->gridDimZ;
        uint64_t waves = blocks / (sms ? sms : 1);
        command->value =
            waves < (SIM_MAX_KERNEL_NS - BASE_NS) / WAVE_NS ? BASE_NS + waves * WAVE_NS : SIM_MAX_KERNEL_NS;
    }
    return CUDA_SUCCESS;
}

static CUresult run(const CUDA_KERNEL_NODE_PARAMS *kernel, CUstream handle) {
    uint64_t cost = cuda_hello()->launch_ns, begun = cuda_spending(cost);
    struct sim_command command;
    CUcontext context;
    CUstream stream;
    CUresult result = cuda_stream(handle, &stream, &context);
    if (result == CUDA_SUCCESS)
        result = cuda_kernel_command(kernel, context, &command);
    /* First, as on a card the device is told at the end of the call. */
    if (cost)
        cuda_spend(begun, cost);
    if (result == CUDA_SUCCESS)
        result = cuda_submit(handle, command, NULL);
    return result;
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

/* All its blocks run at once, or it is not launched. */
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
