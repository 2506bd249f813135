/*
 * Functions that are wrapped or called here and that the simulated driver does not have. Types and values as
 * in CUDA 13.0's cuda.h.
 */
#ifndef XPU_CUDA_NEWER_H
#define XPU_CUDA_NEWER_H

#include "../../cuda-api/cuda_api.h"

CUDA_API CUresult cuCtxSynchronize_v2(CUcontext context);

#endif
