/*
 * Inside libcuda: the common parts of all kinds of copies.
 */
#ifndef XPU_SIM_CUDA_COPY_H
#define XPU_SIM_CUDA_COPY_H

#include "../core/memory.h"

/* Begins a copy: waits for the work before it if it has to, then takes the lock. cuda_copy_end gives it up.
 */
CUresult cuda_copy_begin(bool waits, CUstream stream);
void cuda_copy_end(void);
/* Is [pointer, pointer + bytes) memory that CUDA knows, and that may be touched? With the lock held. */
bool cuda_accessible(CUdeviceptr pointer, size_t bytes);

#endif
