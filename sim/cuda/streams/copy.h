/*
 * Inside libcuda: the common parts of all kinds of copies.
 */
#pragma once

#include "../core/memory.h"

/* Begins a copy: waits for earlier work if necessary, then takes the lock. cuda_copy_end releases it. */
CUresult cuda_copy_begin(bool waits, CUstream stream);
void cuda_copy_end(void);
/* Whether [pointer, pointer + bytes) is memory that CUDA knows and may touch. With the lock held. */
bool cuda_accessible(CUdeviceptr pointer, size_t bytes);
