/*
 * Start, and a program's view: a card as large as the limit, whose used memory is the account's sum for the
 * container's processes.
 *
 * No device attribute has the size of memory (CUdevice_attribute of CUDA 13.0: its attributes about memory
 * are bus width, clock, L2, constant and shared memory, and the supported kinds).
 */
#define _GNU_SOURCE
#include "cuda/driver/devices.h"
#include "cuda/driver/mps.h"
#include "cuda/driver/real.h"
#include "cuda/memory/reconcile.h"

XPU_INTERPOSE(cuDeviceTotalMem)
XPU_INTERPOSE(cuDeviceTotalMem_v2)
XPU_INTERPOSE(cuInit)
XPU_INTERPOSE(cuMemGetInfo)
XPU_INTERPOSE(cuMemGetInfo_v2)

/* Takes nothing yet: a program that only looks leaves no trace in the account. */
CUresult cuInit(unsigned int flags) {
    const char *why;
    CUresult result = xpu_pages_open(&why) ? CUDA_SUCCESS : xpu_permitted();
    if (result == CUDA_SUCCESS)
        result = xpu_mps_prepare();
    return result == CUDA_SUCCESS ? xpu_mps_check(REAL(cuInit)(flags)) : result;
}

static size_t least(uint64_t one, uint64_t other) { return one < other ? one : other; }

/* For values beyond 32 bits this does as the driver does. */
static unsigned int narrow(size_t bytes) { return (unsigned int)least(bytes, UINT32_MAX); }

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    int index;
    CUresult result = xpu_granted_here(&index);
    if (result == CUDA_SUCCESS)
        result = xpu_mps_explained(REAL(cuMemGetInfo_v2)(free_bytes, total));
    if (result != CUDA_SUCCESS)
        return result;
    xpu_reconcile(index);
    uint64_t limit = xpu_limit(index), used = xpu_used(index);
    if (limit < *total)
        *total = limit;
    *free_bytes = least(*free_bytes, used < limit ? limit - used : 0);
    return result;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total) {
    size_t wide_free, wide_total;
    CUresult result = REAL(cuMemGetInfo)(free_bytes, total);
    if (result == CUDA_SUCCESS)
        result = cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS) {
        *free_bytes = narrow(wide_free);
        *total = narrow(wide_total);
    }
    return result;
}

static CUresult total_of(size_t *bytes, CUdevice device, int index) {
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = least(*bytes, xpu_limit(index));
    return result;
}

/* `index` has its address taken, which would cost every call of cuDeviceTotalMem_v2 a stack frame if this
 * function were a part of it. */
__attribute__((noinline)) static CUresult total_of_new(size_t *bytes, CUdevice device) {
    int index;
    CUresult result = xpu_granted(device, &index);
    return result == CUDA_SUCCESS ? total_of(bytes, device, index) : result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    int index = xpu_index_known(device);
    return __builtin_expect(index >= 0, 1) ? total_of(bytes, device, index) : total_of_new(bytes, device);
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    size_t wide;
    CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
    if (result == CUDA_SUCCESS)
        result = cuDeviceTotalMem_v2(&wide, device);
    if (result == CUDA_SUCCESS)
        *bytes = narrow(wide);
    return result;
}
