/*
 * Programs under NVIDIA's MPS: the driver is told where the container's control daemon is and what this
 * process may have, and is not used where it then works without MPS.
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

/* Says once what a driver's answer means that tells of a server which is gone. */
void xpu_mps_explain(CUresult result);
static inline CUresult xpu_mps_explained(CUresult result) {
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        xpu_mps_explain(result);
    return result;
}

#endif
