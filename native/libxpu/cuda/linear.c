/*
 * Linear memory: plain, pitched and managed, and its end. A free of what is unknown here (host memory, a
 * pool's, another's) goes to the driver and changes nothing.
 */
#define _GNU_SOURCE
#include "claim.h"
#include "real.h"
#include "sizes.h"

XPU_WRAP(cuMemAlloc)
XPU_WRAP(cuMemAlloc_v2)
XPU_WRAP(cuMemAllocManaged)
XPU_WRAP(cuMemAllocPitch)
XPU_WRAP(cuMemAllocPitch_v2)
XPU_WRAP(cuMemFree)
XPU_WRAP(cuMemFree_v2)

/* What rows are padded to, of which the claim is made before the driver says it. */
enum { LIKELY_PITCH = 512 };

static uint64_t likely_pitched(uint64_t width, uint64_t height) {
    return xpu_whole_steps(xpu_times(xpu_whole(width, LIKELY_PITCH), height));
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct xpu_claim claim;
    CUresult result = xpu_claim_here(&claim, XPU_LINEAR, xpu_whole_steps(bytes));
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMemAlloc_v2)(pointer, bytes);
    result = xpu_claim_end(&claim, made, XPU_POINTERS, made == CUDA_SUCCESS ? *pointer : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemFree_v2)(*pointer);
    return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
    struct xpu_claim claim;
    CUresult result = xpu_claim_here(&claim, XPU_LINEAR, xpu_whole_steps(bytes));
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMemAlloc)(pointer, bytes);
    result = xpu_claim_end(&claim, made, XPU_POINTERS, made == CUDA_SUCCESS ? *pointer : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemFree)(*pointer);
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    struct xpu_claim claim;
    CUresult result = xpu_claim_here(&claim, XPU_MANAGED, xpu_whole_steps(bytes));
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    result = xpu_claim_end(&claim, made, XPU_POINTERS, made == CUDA_SUCCESS ? *pointer : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemFree_v2)(*pointer);
    return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned int element) {
    struct xpu_claim claim;
    CUresult result = xpu_claim_here(&claim, XPU_LINEAR, likely_pitched(width, height));
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    result =
        made == CUDA_SUCCESS ? xpu_claim_resize(&claim, xpu_whole_steps(xpu_times(*pitch, height))) : made;
    result = xpu_claim_end(&claim, result, XPU_POINTERS, made == CUDA_SUCCESS ? *pointer : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemFree_v2)(*pointer);
    return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                         unsigned int height, unsigned int element) {
    struct xpu_claim claim;
    CUresult result = xpu_claim_here(&claim, XPU_LINEAR, likely_pitched(width, height));
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    result =
        made == CUDA_SUCCESS ? xpu_claim_resize(&claim, xpu_whole_steps(xpu_times(*pitch, height))) : made;
    result = xpu_claim_end(&claim, result, XPU_POINTERS, made == CUDA_SUCCESS ? *pointer : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemFree)(*pointer);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct xpu_entry entry;
    xpu_free_begin(&entry, XPU_POINTERS, pointer);
    CUresult result = REAL(cuMemFree_v2)(pointer);
    xpu_free_end(&entry, result);
    return result;
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    struct xpu_entry entry;
    xpu_free_begin(&entry, XPU_POINTERS, pointer);
    CUresult result = REAL(cuMemFree)(pointer);
    xpu_free_end(&entry, result);
    return result;
}
