/*
 * Logical endpoints (CUDA 13.3), the successors of multicast objects. Memory that this process binds to one
 * lives until it is unbound, or the endpoint is destroyed here. The endpoints' own memory is in the driver's
 * report.
 *
 * An imported endpoint may lead to memory of other processes, which must stay charged that long.
 */
#define _GNU_SOURCE
#include "cuda/driver/real.h"
#include "cuda/memory/bindings.h"
#include "cuda/memory/reconcile.h"
#include "cuda/memory/reservation.h"
#include "cuda/memory/share.h"

XPU_INTERPOSE(cuLogicalEndpointBindAddr)
XPU_INTERPOSE(cuLogicalEndpointBindMem)
XPU_INTERPOSE(cuLogicalEndpointDestroy)
XPU_INTERPOSE(cuLogicalEndpointImport)
XPU_INTERPOSE(cuLogicalEndpointUnbind)

static struct xpu_binding_place place_in(CUlogicalEndpointId id, cuuint64_t offset, cuuint64_t size) {
    return (struct xpu_binding_place){XPU_ENDPOINTS, id, offset, size};
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                  CUmemGenericAllocationHandle memory, cuuint64_t memory_offset,
                                  cuuint64_t size, unsigned long long flags) {
    XPU_BINDS(xpu_binding_begin, place_in(id, offset, size), memory,
              REAL(cuLogicalEndpointBindMem)(id, device, offset, memory, memory_offset, size, flags));
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset, void *pointer,
                                   cuuint64_t size, unsigned long long flags) {
    XPU_BINDS(xpu_binding_begin_at, place_in(id, offset, size), (uintptr_t)pointer,
              REAL(cuLogicalEndpointBindAddr)(id, device, offset, pointer, size, flags));
}

CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device, cuuint64_t offset,
                                 cuuint64_t size) {
    const struct xpu_binding_place place = place_in(id, offset, size);
    struct xpu_binding *taken = xpu_unbind_begin(place.space, id, device, &place);
    xpu_operation_begin();
    CUresult result = xpu_unbind_end(REAL(cuLogicalEndpointUnbind)(id, device, offset, size), taken);
    xpu_operation_end();
    return result;
}

CUresult cuLogicalEndpointImport(CUlogicalEndpointId id, const void *handle,
                                 CUlogicalEndpointIpcHandleType type) {
    struct xpu_entry entry = {.key = id, .space = XPU_ENDPOINTS, .kind = XPU_VMM};
    xpu_share_open_begin();
    CUresult result = REAL(cuLogicalEndpointImport)(id, handle, type);
    xpu_share_open_end(result, &entry);
    return result;
}

/* An endpoint that was made here has no entry: it has no charge. */
CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id) {
    struct xpu_binding *taken = xpu_unbind_begin(XPU_ENDPOINTS, id, 0, NULL);
    struct xpu_entry entry;
    bool imported = xpu_table_find(XPU_ENDPOINTS, id, &entry);
    xpu_operation_begin();
    CUresult result = xpu_unbind_end(REAL(cuLogicalEndpointDestroy)(id), taken);
    if (result == CUDA_SUCCESS && imported)
        xpu_share_drop(XPU_ENDPOINTS, id, entry.serial);
    xpu_operation_end();
    return result;
}
