/*
 * libcuda: a kernel by its handle, and its command for the device.
 */
#define _GNU_SOURCE
#include "../core/work.h"

enum { BASE_NS = 3000, WAVE_NS = 1000 };

CUresult cuda_kernel(CUfunction function) {
    CUmodule module;
    TRY(cuda_ready());
    if (!function || function->magic != FUNCTION_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    return function->library ? cuda_library_module(function->library, &module) : CUDA_SUCCESS;
}

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
    TRY(cuda_kernel(function_of(kernel)));
    return fits(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_kernel_command(const CUDA_KERNEL_NODE_PARAMS *kernel, CUcontext context,
                             struct sim_command *command) {
    const struct cuda_device *device;
    TRY(cuda_device(context->device, &device));
    TRY(cuda_kernel_check(kernel));
    const struct CUfunc_st *function = function_of(kernel);
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

int *cuda_cluster_attribute(CUfunction function, CUfunction_attribute attribute) {
    return attribute >= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH &&
                   attribute <= CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
               ? &function->cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH]
               : NULL;
}
