/*
 * Multicast objects. The object itself is an entry without bytes; its memory is in the driver's report.
 * Memory bound to it lives until it is unbound, or the object has neither handle nor mapping any more.
 */
#define _GNU_SOURCE
#include "cuda/driver/real.h"
#include "cuda/memory/bindings.h"
#include "cuda/memory/reconcile.h"
#include "cuda/memory/release.h"
#include "cuda/memory/reservation.h"

XPU_INTERPOSE(cuMulticastBindAddr)
XPU_INTERPOSE(cuMulticastBindAddr_v2)
XPU_INTERPOSE(cuMulticastBindMem)
XPU_INTERPOSE(cuMulticastBindMem_v2)
XPU_INTERPOSE(cuMulticastCreate)
XPU_INTERPOSE(cuMulticastUnbind)
XPU_NEED(cuMemRelease)

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    struct xpu_entry entry = {.count = 1, .kind = XPU_VMM, .space = XPU_ALLOCATIONS};
    CUresult result = REAL(cuMulticastCreate)(handle, properties);
    if (result != CUDA_SUCCESS)
        return result;
    entry.key = *handle;
    if (xpu_entry_put(&entry))
        return CUDA_SUCCESS;
    (void)REAL(cuMemRelease)(*handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct xpu_binding_place place_in(CUmemGenericAllocationHandle object, size_t offset, size_t size) {
    return (struct xpu_binding_place){XPU_ALLOCATIONS, object, offset, size};
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
                            CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                            unsigned long long flags) {
    XPU_BINDS(xpu_binding_begin, place_in(object, offset, size), memory,
              REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, size, flags));
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                               unsigned long long flags) {
    XPU_BINDS(xpu_binding_begin, place_in(object, offset, size), memory,
              REAL(cuMulticastBindMem_v2)(object, device, offset, memory, memory_offset, size, flags));
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr pointer,
                             size_t size, unsigned long long flags) {
    XPU_BINDS(xpu_binding_begin_at, place_in(object, offset, size), pointer,
              REAL(cuMulticastBindAddr)(object, offset, pointer, size, flags));
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                CUdeviceptr pointer, size_t size, unsigned long long flags) {
    XPU_BINDS(xpu_binding_begin_at, place_in(object, offset, size), pointer,
              REAL(cuMulticastBindAddr_v2)(object, device, offset, pointer, size, flags));
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size) {
    const struct xpu_binding_place place = place_in(object, offset, size);
    struct xpu_binding *taken = xpu_unbind_begin(place.space, object, device, &place);
    xpu_operation_begin();
    CUresult result = xpu_unbind_end(REAL(cuMulticastUnbind)(object, device, offset, size), taken);
    xpu_operation_end();
    return result;
}
