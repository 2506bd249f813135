/*
 * libcuda: launches of CUDA 1 to 3, where the function has the block shape; and one launch on each of several
 * devices, of CUDA 9.
 */
#define _GNU_SOURCE
#include "../core/work.h"

CUDA_API CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    TRY(cuda_kernel(function));
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    function->block[0] = (unsigned)x;
    function->block[1] = (unsigned)y;
    function->block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    TRY(cuda_kernel(function));
    if (width <= 0 || height <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    /* Without a shape set before: CUDA_ERROR_INVALID_VALUE. */
    return cuLaunchKernel(function, (unsigned)width, (unsigned)height, 1, function->block[0],
                          function->block[1], function->block[2], 0, stream, NULL, NULL);
}

CUDA_API CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    return cuLaunchGridAsync(function, width, height, NULL);
}

CUDA_API CUresult cuLaunch(CUfunction function) { return cuLaunchGridAsync(function, 1, 1, NULL); }

/* Each launch's own device, by its stream. None may appear twice. */
static CUresult devices_of(const CUDA_LAUNCH_PARAMS *launches, unsigned int count, CUcontext *contexts) {
    for (unsigned int i = 0; i < count; i++) {
        CUstream stream = launches[i].hStream;
        if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
            return CUDA_ERROR_INVALID_HANDLE;
        TRY(cuStreamGetCtx(stream, &contexts[i]));
        for (unsigned int j = 0; j < i; j++)
            if (contexts[j]->device == contexts[i]->device)
                return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
                                                       unsigned int flags) {
    CUcontext contexts[SIM_MAX_DEVICES], popped;
    if (!launches || !count || count > SIM_MAX_DEVICES || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = devices_of(launches, count, contexts);
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        result = cuCtxPushCurrent(contexts[i]);
        if (result != CUDA_SUCCESS)
            break;
        result = cuLaunchCooperativeKernel(one->function, one->gridDimX, one->gridDimY, one->gridDimZ,
                                           one->blockDimX, one->blockDimY, one->blockDimZ,
                                           one->sharedMemBytes, one->hStream, one->kernelParams);
        (void)cuCtxPopCurrent(&popped);
    }
    return result;
}
