/*
 * Programs under NVIDIA's MPS. The driver gets the container's control daemon and this process's limits. If
 * it then works without MPS, it is not used.
 */
#pragma once

#include "headers/cuda/cuda_api.h"

/* Called before the driver is initialized. */
CUresult xpu_mps_prepare(void);
/* Called after it: whether the driver works under MPS, if it has to. */
CUresult xpu_mps_check(CUresult initialized);

/* Whether this process must be under MPS and is not. Nothing is permitted to it then. */
CUresult xpu_mps_permitted(void);

/* Explains once a driver's error which means that the server has ended. */
void xpu_mps_explain(CUresult result);
static inline CUresult xpu_mps_explained(CUresult result) {
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        xpu_mps_explain(result);
    return result;
}
