/*
 * A libcuda for benchmarks alone. Every call takes a few nanoseconds, so that the cost of an interposer
 * shows. It has one device, the primary context, and memory that is only numbers.
 */
#define _GNU_SOURCE
#include "../../native/headers/cuda/cuda_api.h"

#include <stdlib.h>
#include <string.h>

/* Addresses are reused, as by a driver, but not at once. */
enum { BLOCKS = 4096 };
static const CUdeviceptr FIRST = 0x7f0000000000, BLOCK = 2 << 20;
static const size_t TOTAL = (size_t)64 << 30;

static int context; /* its address is the handle */
static unsigned int next_block;
static __thread CUcontext current;

CUresult cuInit(unsigned int flags) {
    (void)flags;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    *version = 12020;
    return CUDA_SUCCESS;
}

static const struct function {
    const char *asked;
    void *given;
} functions[] = {
    {"cuCtxGetDevice", (void *)&cuCtxGetDevice},   {"cuMemAlloc", (void *)&cuMemAlloc_v2},
    {"cuMemFree", (void *)&cuMemFree_v2},          {"cuMemGetInfo", (void *)&cuMemGetInfo_v2},
    {"cuCtxGetCurrent", (void *)&cuCtxGetCurrent},
};

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    (void)cuda_version, (void)flags, (void)status;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].asked, symbol) == 0) {
            *function = functions[i].given;
            return CUDA_SUCCESS;
        }
    *function = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, cuda_version, flags, NULL);
}

CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    (void)device;
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (char)i;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = TOTAL;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *given) {
    *given = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext given) {
    current = given;
    return CUDA_SUCCESS;
}

/* There is one context. */
CUresult cuCtxPushCurrent_v2(CUcontext given) { return cuCtxSetCurrent(given); }

CUresult cuCtxPopCurrent_v2(CUcontext *given) {
    *given = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *given, CUdevice device) {
    (void)device;
    setenv("CONSTANT_CUDA_CONTEXT", "1", 0); /* for constant_nvml.c */
    *given = (CUcontext)(void *)&context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    (void)device;
    *flags = 0;
    *active = current != NULL;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *free_bytes = *total = TOTAL;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    if (bytes > BLOCK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned int block = __atomic_fetch_add(&next_block, 1, __ATOMIC_RELAXED);
    *pointer = FIRST + block % BLOCKS * BLOCK;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    return pointer >= FIRST && pointer < FIRST + BLOCKS * BLOCK ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- streams: work is done at once, and takes no time of the device ---- */

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream stream, void **arguments, void **extra) {
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)arguments, (void)extra;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    (void)flags, (void)priority;
    *stream = malloc(1);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    *mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    (void)flags;
    *event = malloc(1);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    (void)start, (void)end;
    *milliseconds = 0;
    return CUDA_SUCCESS;
}
