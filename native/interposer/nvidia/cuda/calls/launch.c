/*
 * Launches: each goes through the pacer if the container has a cap on its device's time. graph.c has those of
 * graphs. Copies, fills and host functions are not paced: other engines and the host do them.
 */
#include "cuda/driver/mps.h"
#include "cuda/driver/real.h"
#include "cuda/pacing/pacer.h"

XPU_INTERPOSE(cuLaunch)
XPU_INTERPOSE(cuLaunchCooperativeKernel)
XPU_INTERPOSE(cuLaunchCooperativeKernelMultiDevice)
XPU_INTERPOSE(cuLaunchCooperativeKernel_ptsz)
XPU_INTERPOSE(cuLaunchGrid)
XPU_INTERPOSE(cuLaunchGridAsync)
XPU_INTERPOSE(cuLaunchKernel)
XPU_INTERPOSE(cuLaunchKernelEx)
XPU_INTERPOSE(cuLaunchKernelEx_ptsz)
XPU_INTERPOSE(cuLaunchKernel_ptsz)
XPU_NEED(cuCtxPopCurrent_v2)
XPU_NEED(cuCtxPushCurrent_v2)
XPU_NEED(cuStreamGetCtx)

/* Tells grids apart. */
static inline uint32_t shape_of(unsigned int x, unsigned int y, unsigned int z, unsigned int threads) {
    return ((x * 0x9e3779b1u + y) * 0x85ebca77u + z) * 0xc2b2ae3du + threads;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream stream, void **arguments, void **extra) {
    XPU_PACED(stream, false, function, shape_of(grid_x, grid_y, grid_z, block_x * block_y * block_z),
              REAL(cuLaunchKernel)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                                   stream, arguments, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                             unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                             unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                             void **arguments, void **extra) {
    XPU_PACED(stream, true, function, shape_of(grid_x, grid_y, grid_z, block_x * block_y * block_z),
              REAL(cuLaunchKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                        shared_bytes, stream, arguments, extra));
}

static uint32_t shape_of_config(const CUlaunchConfig *config) {
    return shape_of(config->gridDimX, config->gridDimY, config->gridDimZ,
                    config->blockDimX * config->blockDimY * config->blockDimZ);
}

/* Another thread may change an argument that a program passes by pointer, while the launch waits. The driver
 * gets the same copy that the pacer saw. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    if (!config || __builtin_expect(!xpu_pacing(), 1))
        return xpu_mps_explained(REAL(cuLaunchKernelEx)(config, function, arguments, extra));
    const CUlaunchConfig own = *config;
    XPU_PACED(own.hStream, false, function, shape_of_config(&own),
              REAL(cuLaunchKernelEx)(&own, function, arguments, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments,
                               void **extra) {
    if (!config || __builtin_expect(!xpu_pacing(), 1))
        return xpu_mps_explained(REAL(cuLaunchKernelEx_ptsz)(config, function, arguments, extra));
    const CUlaunchConfig own = *config;
    XPU_PACED(own.hStream, true, function, shape_of_config(&own),
              REAL(cuLaunchKernelEx_ptsz)(&own, function, arguments, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void **arguments) {
    XPU_PACED(stream, false, function, shape_of(grid_x, grid_y, grid_z, block_x * block_y * block_z),
              REAL(cuLaunchCooperativeKernel)(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                              shared_bytes, stream, arguments));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                        void **arguments) {
    XPU_PACED(stream, true, function, shape_of(grid_x, grid_y, grid_z, block_x * block_y * block_z),
              REAL(cuLaunchCooperativeKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x, block_y,
                                                   block_z, shared_bytes, stream, arguments));
}

/* The function has its own shape and shared memory here, which are not told apart: after a change of them the
 * cost is learnt again. */
CUresult cuLaunch(CUfunction function) { XPU_PACED(NULL, false, function, 1, REAL(cuLaunch)(function)); }

CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    XPU_PACED(NULL, false, function, shape_of((unsigned)width, (unsigned)height, 1, 1),
              REAL(cuLaunchGrid)(function, width, height));
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    XPU_PACED(stream, false, function, shape_of((unsigned)width, (unsigned)height, 1, 1),
              REAL(cuLaunchGridAsync)(function, width, height, stream));
}

enum step { ADMIT, BEGIN, END };

static void of_each(struct xpu_pace *paces, const CUDA_LAUNCH_PARAMS *launches, unsigned int count,
                    enum step step, CUresult result) {
    for (unsigned int i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        CUcontext context = NULL, popped;
        if (step == ADMIT)
            paces[i].tracker = NULL;
        if (REAL(cuStreamGetCtx)(one->hStream, &context) != CUDA_SUCCESS ||
            REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
            continue;
        if (step == ADMIT)
            xpu_pace_admit(&paces[i], one->hStream, false, one->function,
                           shape_of(one->gridDimX, one->gridDimY, one->gridDimZ,
                                    one->blockDimX * one->blockDimY * one->blockDimZ));
        else if (step == BEGIN)
            xpu_pace_begin(&paces[i]);
        else
            xpu_pace_end(&paces[i], result);
        (void)REAL(cuCtxPopCurrent_v2)(&popped);
    }
}

/* One launch on each of several devices, which begin together: all are admitted before any is launched. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
                                              unsigned int flags) {
    struct xpu_pace paces[XPU_DEVICES];
    bool paced = xpu_pacing() && launches && count <= XPU_DEVICES;
    if (paced) {
        of_each(paces, launches, count, ADMIT, CUDA_SUCCESS);
        of_each(paces, launches, count, BEGIN, CUDA_SUCCESS);
    }
    CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
    if (paced)
        of_each(paces, launches, count, END, result);
    return xpu_mps_explained(result);
}
