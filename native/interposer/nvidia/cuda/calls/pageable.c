/*
 * System-allocated memory (malloc, mmap), which cards with HMM or ATS use directly.
 *
 * A prefetch moves it to the card, and no call shows when it leaves the card again: the program frees it by
 * calls that are not CUDA's. It could be charged, but never uncharged. Prefetches and preferred locations are
 * hints, and by CUDA's reference no program needs them for right results. So for such memory and a device
 * they are not passed on. When a kernel touches it, the driver still moves it, page by page, and takes it
 * back to the host when a process asks for memory of the card: that part is not counted
 * (docs/concepts/limits.md). The attribute that tells programs of this feature stays true, because programs
 * for GH200 are written for it.
 */
#define _GNU_SOURCE
#include "cuda/driver/devices.h"
#include "cuda/driver/fallbacks.h"
#include "cuda/driver/real.h"

XPU_INTERPOSE(cuMemAdvise)
XPU_INTERPOSE(cuMemAdvise_v2)
XPU_INTERPOSE(cuMemDiscardAndPrefetchBatchAsync)
XPU_INTERPOSE(cuMemDiscardAndPrefetchBatchAsync_ptsz)
XPU_INTERPOSE(cuMemPrefetchAsync)
XPU_INTERPOSE(cuMemPrefetchAsync_ptsz)
XPU_INTERPOSE(cuMemPrefetchAsync_v2)
XPU_INTERPOSE(cuMemPrefetchAsync_v2_ptsz)
XPU_INTERPOSE(cuMemPrefetchBatchAsync)
XPU_INTERPOSE(cuMemPrefetchBatchAsync_ptsz)
XPU_NEED(cuDeviceGetAttribute)
XPU_NEED(cuPointerGetAttribute)

static bool has(CUdeviceptr pointer, CUpointer_attribute attribute, unsigned int wanted) {
    unsigned int found = 0;
    return REAL(cuPointerGetAttribute)(&found, attribute, pointer) == CUDA_SUCCESS && found == wanted;
}

/* Neither managed nor a device's. Other memory that CUDA knows is pinned and cannot move: a hint for it is an
 * error, which no program expects. If the device cannot use such memory, the driver returns the error. */
static bool is_pageable(CUdeviceptr pointer, CUdevice device) {
    int usable = 0;
    return !has(pointer, CU_POINTER_ATTRIBUTE_IS_MANAGED, 1) &&
           !has(pointer, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE) &&
           REAL(cuDeviceGetAttribute)(&usable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device) ==
               CUDA_SUCCESS &&
           usable;
}

/* Whether the call would move memory of malloc to a device. */
static bool moves(CUdeviceptr pointer, size_t bytes, CUdevice device) {
    bool does = device >= 0 && is_pageable(pointer, device);
    if (does)
        XPU_DEBUG("%zu bytes that the system allocated are not moved to a device: they could not be counted",
                  bytes);
    return does;
}

static bool moves_to(CUdeviceptr pointer, size_t bytes, const CUmemLocation *location) {
    CUdevice device;
    return xpu_location_device(location, &device) && moves(pointer, bytes, device);
}

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    return moves(pointer, bytes, device) ? CUDA_SUCCESS
                                         : REAL(cuMemPrefetchAsync)(pointer, bytes, device, stream);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    return moves(pointer, bytes, device) ? CUDA_SUCCESS
                                         : REAL(cuMemPrefetchAsync_ptsz)(pointer, bytes, device, stream);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned int flags,
                               CUstream stream) {
    return moves_to(pointer, bytes, &location)
               ? CUDA_SUCCESS
               : REAL(cuMemPrefetchAsync_v2)(pointer, bytes, location, flags, stream);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                    unsigned int flags, CUstream stream) {
    return moves_to(pointer, bytes, &location)
               ? CUDA_SUCCESS
               : REAL(cuMemPrefetchAsync_v2_ptsz)(pointer, bytes, location, flags, stream);
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device) {
    return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION && moves(pointer, bytes, device)
               ? CUDA_SUCCESS
               : REAL(cuMemAdvise)(pointer, bytes, advice, device);
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUmemLocation location) {
    return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION && moves_to(pointer, bytes, &location)
               ? CUDA_SUCCESS
               : REAL(cuMemAdvise_v2)(pointer, bytes, advice, location);
}

/* ---- on drivers before R535, which know devices and the host only ---- */

XPU_FALLBACK(cuMemAdvise_v2, cuMemAdvise)
XPU_FALLBACK(cuMemPrefetchAsync_v2, cuMemPrefetchAsync)
XPU_FALLBACK(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync_ptsz)

static CUdevice fallback_place(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : CU_DEVICE_CPU;
}

static CUresult fallback_cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                                        CUmemLocation location) {
    return REAL(cuMemAdvise)(pointer, bytes, advice, fallback_place(&location));
}

static CUresult fallback_cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                               unsigned int flags, CUstream stream) {
    return flags ? CUDA_ERROR_INVALID_VALUE
                 : REAL(cuMemPrefetchAsync)(pointer, bytes, fallback_place(&location), stream);
}

static CUresult fallback_cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                                    unsigned int flags, CUstream stream) {
    return flags ? CUDA_ERROR_INVALID_VALUE
                 : REAL(cuMemPrefetchAsync_ptsz)(pointer, bytes, fallback_place(&location), stream);
}

/* ---- batches ---- */

/* A batch is one hint, and is left undone as a whole. */
static bool any_moves(const CUdeviceptr *pointers, const size_t *sizes, size_t count,
                      const CUmemLocation *locations, const size_t *firsts, size_t location_count) {
    if (!pointers || !sizes || !locations || !firsts || !location_count)
        return false; /* the driver will return the error */
    for (size_t at = 0, location = 0; at < count; at++) {
        while (location + 1 < location_count && firsts[location + 1] <= at)
            location++;
        if (moves_to(pointers[at], sizes[at], &locations[location]))
            return true;
    }
    return false;
}

#define BATCH(name_)                                                                                         \
    CUresult name_(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations,             \
                   size_t *firsts, size_t location_count, unsigned long long flags, CUstream stream) {       \
        return any_moves(pointers, sizes, count, locations, firsts, location_count)                          \
                   ? CUDA_SUCCESS                                                                            \
                   : REAL(name_)(pointers, sizes, count, locations, firsts, location_count, flags, stream);  \
    }
BATCH(cuMemPrefetchBatchAsync)
BATCH(cuMemPrefetchBatchAsync_ptsz)
BATCH(cuMemDiscardAndPrefetchBatchAsync)
BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)
