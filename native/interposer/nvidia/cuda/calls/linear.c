/*
 * Linear memory: plain, pitched and managed, and its end. A free of memory that is unknown here (host memory,
 * a pool's, another process's) goes to the driver and changes nothing.
 */
#define _GNU_SOURCE
#include "cuda/driver/real.h"
#include "cuda/memory/reservation.h"
#include "cuda/memory/sizes.h"

XPU_INTERPOSE(cuMemAlloc)
XPU_INTERPOSE(cuMemAlloc_v2)
XPU_INTERPOSE(cuMemAllocManaged)
XPU_INTERPOSE(cuMemAllocPitch)
XPU_INTERPOSE(cuMemAllocPitch_v2)
XPU_INTERPOSE(cuMemFree)
XPU_INTERPOSE(cuMemFree_v2)

/* The step that rows are padded to. The reservation is made before the driver returns the pitch. */
enum { LIKELY_PITCH = 512 };

static uint64_t likely_pitched(uint64_t width, uint64_t height) {
    return xpu_round_up_to_step(xpu_times(xpu_round_up(width, LIKELY_PITCH), height));
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    XPU_ALLOCATES(XPU_LINEAR, xpu_round_up_to_step(bytes), REAL(cuMemAlloc_v2)(pointer, bytes), XPU_POINTERS,
                  *pointer, REAL(cuMemFree_v2)(*pointer));
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes) {
    XPU_ALLOCATES(XPU_LINEAR, xpu_round_up_to_step(bytes), REAL(cuMemAlloc)(pointer, bytes), XPU_POINTERS,
                  *pointer, REAL(cuMemFree)(*pointer));
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    XPU_ALLOCATES(XPU_MANAGED, xpu_round_up_to_step(bytes), REAL(cuMemAllocManaged)(pointer, bytes, flags),
                  XPU_POINTERS, *pointer, REAL(cuMemFree_v2)(*pointer));
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned int element) {
    struct xpu_reservation reservation;
    CUresult result = xpu_reserve_here(&reservation, XPU_LINEAR, likely_pitched(width, height));
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    result = made == CUDA_SUCCESS
                 ? xpu_reservation_resize(&reservation, xpu_round_up_to_step(xpu_times(*pitch, height)))
                 : made;
    result = xpu_reservation_end(&reservation, result, XPU_POINTERS, made == CUDA_SUCCESS ? *pointer : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemFree_v2)(*pointer);
    return result;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                         unsigned int height, unsigned int element) {
    struct xpu_reservation reservation;
    CUresult result = xpu_reserve_here(&reservation, XPU_LINEAR, likely_pitched(width, height));
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    result = made == CUDA_SUCCESS
                 ? xpu_reservation_resize(&reservation, xpu_round_up_to_step(xpu_times(*pitch, height)))
                 : made;
    result = xpu_reservation_end(&reservation, result, XPU_POINTERS, made == CUDA_SUCCESS ? *pointer : 0);
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemFree)(*pointer);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) { XPU_FREES(XPU_POINTERS, pointer, REAL(cuMemFree_v2)(pointer)); }

CUresult cuMemFree(CUdeviceptr_v1 pointer) { XPU_FREES(XPU_POINTERS, pointer, REAL(cuMemFree)(pointer)); }
