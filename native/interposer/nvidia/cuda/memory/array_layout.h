/*
 * The device memory of a CUarray or CUmipmappedArray, by its descriptor.
 */
#pragma once

#include "headers/cuda/cuda_api.h"

/* The least bytes of an array with that many mipmap levels (1: a plain one). 0: it gets its memory later; all
 * ones: the size overflows. */
uint64_t xpu_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels);
