/*
 * libcuda: multicast objects, which need switches between cards. The simulated cards have none: they say so
 * (CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED is 0), and so do these functions, which programs look up all the
 * same.
 */
#define _GNU_SOURCE
#include "library.h"

CUDA_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                                    const CUmulticastObjectProp *properties) {
    (void)handle;
    (void)properties;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
    (void)handle;
    (void)device;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                     CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                     unsigned long long flags) {
    (void)handle;
    (void)offset;
    (void)memory;
    (void)memory_offset;
    (void)size;
    (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                    size_t size) {
    (void)handle;
    (void)device;
    (void)offset;
    (void)size;
    return CUDA_ERROR_NOT_SUPPORTED;
}
