/*
 * Programs under NVIDIA's MPS: tells the driver the container's control daemon and this process's limits, and
 * does not use the driver if it then works without MPS.
 */
#ifndef XPU_INTERPOSER_MPS_H
#define XPU_INTERPOSER_MPS_H

#include "headers/cuda/cuda_api.h"

/* Before the driver is initialized. */
CUresult xpu_mps_prepare(void);
/* After it: whether it works under MPS, where it has to. */
CUresult xpu_mps_check(CUresult initialized);

/* Whether this process has to be under MPS and is not: nothing is permitted to it then. */
CUresult xpu_mps_permitted(void);

/* Explains once a driver's answer that means that the server is gone. */
void xpu_mps_explain(CUresult result);
static inline CUresult xpu_mps_explained(CUresult result) {
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        xpu_mps_explain(result);
    return result;
}

#endif
