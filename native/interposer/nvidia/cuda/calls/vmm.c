/*
 * Mappable memory is charged once, when it is created, and lives while it has a handle or is mapped. So its
 * entry has a reference for each handle that was created or retained, and for each mapping.
 */
#define _GNU_SOURCE
#include "cuda/driver/devices.h"
#include "cuda/driver/real.h"
#include "cuda/memory/reconcile.h"
#include "cuda/memory/share.h"

#include <stdlib.h>

XPU_INTERPOSE(cuMemCreate)
XPU_INTERPOSE(cuMemExportToShareableHandle)
XPU_INTERPOSE(cuMemImportFromShareableHandle)
XPU_INTERPOSE(cuMemMap)
XPU_INTERPOSE(cuMemRelease)
XPU_INTERPOSE(cuMemRetainAllocationHandle)
XPU_INTERPOSE(cuMemUnmap)

/* Under the address in the table. */
struct mapping {
    CUdeviceptr address;
    size_t size;
    CUmemGenericAllocationHandle handle;
    uint64_t serial; /* of the memory's entry; 0: not counted (the host's, multicast) */
    struct mapping *next;
};

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    struct xpu_reservation reservation;
    CUdevice device;
    CUresult result = properties ? xpu_location_known(&properties->location) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || !properties || !xpu_location_device(&properties->location, &device))
        return REAL(cuMemCreate)(handle, size, properties, flags);
    result = xpu_reserve_on(&reservation, device, XPU_VMM, size);
    if (result != CUDA_SUCCESS)
        return result;
    CUresult made = REAL(cuMemCreate)(handle, size, properties, flags);
    result = xpu_reservation_end_with(&reservation, made, XPU_ALLOCATIONS, made == CUDA_SUCCESS ? *handle : 0,
                                      &(struct xpu_entry){.count = 1});
    if (made == CUDA_SUCCESS && result != CUDA_SUCCESS)
        (void)REAL(cuMemRelease)(*handle);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct xpu_entry entry;
    if (!xpu_table_find(XPU_ALLOCATIONS, handle, &entry))
        return REAL(cuMemRelease)(handle);
    xpu_operation_begin();
    CUresult result = REAL(cuMemRelease)(handle);
    if (result == CUDA_SUCCESS)
        xpu_share_drop(XPU_ALLOCATIONS, handle, entry.serial);
    xpu_operation_end();
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    uint64_t serial;
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        (void)xpu_share_hold(XPU_ALLOCATIONS, *handle, &serial);
    return result;
}

static void end(struct mapping *mapping) {
    if (mapping->serial)
        xpu_share_drop(XPU_ALLOCATIONS, mapping->handle, mapping->serial);
    free(mapping);
}

static bool keep(struct mapping *mapping) {
    struct xpu_entry entry = {
        .key = mapping->address, .extra = (uintptr_t)mapping, .kind = XPU_VMM, .space = XPU_MAPPINGS};
    struct xpu_entry replaced;
    if (!xpu_table_put(&entry, &replaced))
        return false;
    if (replaced.serial) /* unmapped past this library: the driver maps nothing twice at an address */
        end((struct mapping *)(uintptr_t)replaced.extra);
    return true;
}

/* The reference is taken before the call, because another thread may release the handle. */
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *mapping = (struct mapping){.address = address, .size = size, .handle = handle};
    bool known = xpu_share_hold(XPU_ALLOCATIONS, handle, &mapping->serial);
    CUresult result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && !keep(mapping)) {
        (void)REAL(cuMemUnmap)(address, size);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        if (known)
            xpu_share_drop(XPU_ALLOCATIONS, handle, mapping->serial);
        free(mapping);
    }
    return result;
}

/* Takes the mappings that follow each other from `address` on out of the table, before the driver unmaps
 * them: another thread may map other memory there at once. */
static struct mapping *take_mappings(CUdeviceptr address, size_t size) {
    struct mapping *taken = NULL;
    struct xpu_entry entry;
    CUdeviceptr at = address;
    while (at - address < size && xpu_table_take(XPU_MAPPINGS, at, 0, &entry)) {
        struct mapping *mapping = (struct mapping *)(uintptr_t)entry.extra;
        mapping->next = taken;
        taken = mapping;
        at += mapping->size;
    }
    return taken;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    struct mapping *mappings = take_mappings(address, size), *next;
    xpu_operation_begin();
    CUresult result = REAL(cuMemUnmap)(address, size);
    for (; mappings; mappings = next) {
        next = mappings->next;
        if (result != CUDA_SUCCESS && keep(mappings))
            continue;
        end(mappings);
    }
    xpu_operation_end();
    return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    bool fresh = xpu_share_mark(XPU_ALLOCATIONS, handle);
    CUresult result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    if (result != CUDA_SUCCESS && fresh)
        xpu_share_unmark(XPU_ALLOCATIONS, handle);
    return result;
}

/* It is charged to its maker, and not here. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type) {
    struct xpu_entry entry = {.space = XPU_ALLOCATIONS, .kind = XPU_VMM};
    xpu_share_open_begin();
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
    if (result == CUDA_SUCCESS)
        entry.key = *handle;
    xpu_share_open_end(result, &entry);
    return result;
}
