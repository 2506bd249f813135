/*
 * The part of the CUDA driver API that this project's own C code uses: what the simulated libcuda has, and
 * what the wrapper libraries see. As in NVIDIA's cuda.h: a fresh machine has no CUDA toolkit to build
 * against. Where there is one, a test includes its cuda.h first and then this file, so that the compiler
 * compares each declaration.
 *
 * In each part the types stand within #ifndef __cuda_cuda_h__, since the real header, where it came first,
 * has its own.
 */
#ifndef XPU_CUDA_API_H
#define XPU_CUDA_API_H

#include "array.h"
#include "core.h"
#include "endpoint.h"
#include "graph.h"
#include "managed.h"
#include "memory.h"
#include "vmm.h"

#endif
