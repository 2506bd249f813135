/*
 * Which device of the container's pages a CUdevice, a CUcontext or a memory location means.
 */
#pragma once

#include "headers/cuda/cuda_api.h"

#include <stdbool.h>

/* CUDA_ERROR_NOT_PERMITTED, with a line on stderr, if the pages are missing or invalid. */
CUresult xpu_permitted(void);

/* Index in the pages of a device as CUDA numbers it in this process. -1: not granted, or no such device. */
int xpu_index_of(CUdevice device);
/* The same, with the driver's error if it does not identify the device. */
CUresult xpu_find_index(CUdevice device, int *index);
/* The same by one load: -1 also before the first look-up. If there is an index, the pages are valid. */
enum { XPU_NUMBERS = 64, XPU_FIRST_INDEX = 2 };
extern uint8_t xpu_indexes[XPU_NUMBERS] __attribute__((visibility("hidden")));

static inline int xpu_index_known(CUdevice device) {
    return (unsigned)device < XPU_NUMBERS
               ? __atomic_load_n(&xpu_indexes[device], __ATOMIC_RELAXED) - XPU_FIRST_INDEX
               : -1;
}

/* The same for calls that may take memory: CUDA_ERROR_NOT_PERMITTED, with a line on stderr, if the device is
 * not granted or the pages are invalid; the driver's error if there is no such device. */
CUresult xpu_granted(CUdevice device, int *index);
/* The same for the thread's current context. */
CUresult xpu_granted_here(int *index);
/* CUDA's number of the device of a context; the driver's error if it has none. */
CUresult xpu_context_device(CUcontext context, CUdevice *device);
/* Whether memory at a location is a device's, and which one's. */
static inline bool xpu_location_device(const CUmemLocation *location, CUdevice *device) {
    const bool domain = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    *device = domain ? location->id & 0xff : location->id;
    return domain || location->type == CU_MEM_LOCATION_TYPE_DEVICE;
}

/* CUDA_ERROR_NOT_SUPPORTED, with a line on stderr, for a kind of location that is neither a device's nor the
 * host's: a newer driver may take device memory there, uncounted. */
CUresult xpu_location_known(const CUmemLocation *location);

/* The context of work on the stream: the stream's own, or the current one for the default streams. */
CUresult xpu_stream_context(CUstream stream, CUcontext *context);
