/*
 * The part of the CUDA driver API that this project's own C code uses: the functions of the simulated
 * libcuda, and those that our own library in its place interposes. It agrees with NVIDIA's cuda.h, so that no
 * machine needs a CUDA toolkit to build; tests/unit/test_driver_headers.py compares each declaration with
 * that header.
 *
 * In each part the types are within #ifndef __cuda_cuda_h__: if the real header was included before, it has
 * its own, and the compiler compares the functions.
 */
#pragma once

#include "array.h"
#include "core.h"
#include "endpoint.h"
#include "graph.h"
#include "managed.h"
#include "memory.h"
#include "vmm.h"
