/*
 * The device memory of a CUarray or CUmipmappedArray, by its descriptor.
 */
#ifndef XPU_INTERPOSER_ARRAY_LAYOUT_H
#define XPU_INTERPOSER_ARRAY_LAYOUT_H

#include "headers/cuda/cuda_api.h"

/* Bytes that an array with that many mipmap levels (1: a plain one) takes at least; 0 for one that gets its
 * memory later; all ones where that is more than can be said. */
uint64_t xpu_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels);

#endif
