/*
 * Claims: the charge before the driver is asked, and what becomes of it.
 */
#define _GNU_SOURCE
#include "claim.h"
#include "devices.h"
#include "external.h"
#include "pool.h"
#include "real.h"
#include "reconcile.h"
#include "vmm.h"

XPU_NEED(cuCtxGetCurrent)

/* As the account counts it, so that parts add up to what is given back at once. */
static uint64_t whole_grains(uint64_t bytes) { return xpu_whole(bytes, XPU_GRAIN); }

/* With the operation under way. Charges, once more after the driver's figure has been asked where it does not
 * fit. */
static CUresult charge(int device, enum xpu_kind kind, uint64_t bytes) {
    if (__builtin_expect(xpu_charge(device, kind, bytes), 1))
        return CUDA_SUCCESS;
    xpu_reconcile_within(device);
    xpu_pools_trim(device);
    if (xpu_charge(device, kind, bytes))
        return CUDA_SUCCESS;
    xpu_refused(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult xpu_claim_at(struct xpu_claim *claim, int device, enum xpu_kind kind, uint64_t bytes) {
    const char *why = NULL;
    if (!xpu_slot_take(&why)) {
        xpu_refuse(why);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    xpu_reconcile_sometimes(device);
    *claim = (struct xpu_claim){.bytes = whole_grains(bytes), .device = device, .kind = kind};
    xpu_operation_begin();
    CUresult result = charge(device, kind, claim->bytes);
    if (result != CUDA_SUCCESS)
        xpu_operation_end();
    return result;
}

CUresult xpu_claim_on(struct xpu_claim *claim, CUdevice device, enum xpu_kind kind, uint64_t bytes) {
    int index;
    CUresult result = xpu_granted(device, &index);
    return result == CUDA_SUCCESS ? xpu_claim_at(claim, index, kind, bytes) : result;
}

CUresult xpu_claim_here(struct xpu_claim *claim, enum xpu_kind kind, uint64_t bytes) {
    int index;
    CUcontext context;
    CUresult result = xpu_granted_here(&index);
    if (result == CUDA_SUCCESS)
        result = REAL(cuCtxGetCurrent)(&context);
    if (result == CUDA_SUCCESS)
        result = xpu_claim_at(claim, index, kind, bytes);
    if (result == CUDA_SUCCESS)
        claim->context = context;
    return result;
}

CUresult xpu_claim_resize(struct xpu_claim *claim, uint64_t bytes) {
    bytes = whole_grains(bytes);
    if (bytes > claim->bytes) {
        CUresult result = charge(claim->device, claim->kind, bytes - claim->bytes);
        if (result != CUDA_SUCCESS)
            return result;
    } else if (bytes < claim->bytes) {
        xpu_give_back(claim->device, claim->kind, claim->bytes - bytes);
    }
    claim->bytes = bytes;
    return CUDA_SUCCESS;
}

void xpu_entry_give_back(const struct xpu_entry *entry) {
    if (entry->space == XPU_ARRAYS || entry->space == XPU_MIPMAPS)
        xpu_tiles_gone((const void *)(uintptr_t)entry->key);
    else if (entry->space == XPU_ALLOCATIONS)
        xpu_bindings_gone(entry->key);
    if (entry->flags & XPU_IMPORTED)
        xpu_imported(-1);
    else if (entry->flags & XPU_EXPORTED)
        xpu_give_back_exported(entry->device, (enum xpu_kind)entry->kind, entry->bytes);
    else if (entry->kind == XPU_POOL && entry->space == XPU_POINTERS)
        xpu_pool_freed(entry);
    else if (entry->kind == XPU_EXTERNAL && entry->space != XPU_IMPORTS)
        xpu_external_dropped(entry);
    else
        xpu_give_back(entry->device, (enum xpu_kind)entry->kind, entry->bytes);
}

static bool is_small(const struct xpu_entry *entry) { return entry->bytes && entry->bytes < XPU_STEP; }

CUresult xpu_claim_end_with(struct xpu_claim *claim, CUresult result, enum xpu_space space, uint64_t key,
                            const struct xpu_entry *own) {
    struct xpu_entry entry = *own, replaced;
    entry.key = key;
    entry.context = claim->context;
    entry.bytes = claim->bytes;
    entry.device = (int8_t)claim->device;
    entry.kind = (uint8_t)claim->kind;
    entry.space = (uint8_t)space;
    if (result == CUDA_SUCCESS) {
        if (!xpu_table_put(&entry, &replaced))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        else if (replaced.serial)
            xpu_entry_give_back(&replaced);
    }
    if (result != CUDA_SUCCESS)
        xpu_entry_give_back(&entry);
    xpu_operation_end();
    if (result == CUDA_SUCCESS && is_small(&entry))
        xpu_reconcile_small(entry.device, (int64_t)entry.bytes);
    return result;
}

CUresult xpu_claim_end(struct xpu_claim *claim, CUresult result, enum xpu_space space, uint64_t key) {
    return xpu_claim_end_with(claim, result, space, key, &(struct xpu_entry){0});
}

void xpu_free_begin(struct xpu_entry *entry, enum xpu_space space, uint64_t key) {
    if (xpu_table_find(space, key, entry))
        xpu_operation_begin();
    entry->space = (uint8_t)space;
}

void xpu_free_end(struct xpu_entry *entry, CUresult result) {
    struct xpu_entry taken;
    if (!entry->serial) {
        if (result == CUDA_SUCCESS && entry->space == XPU_POINTERS)
            xpu_unknown_freed();
        return;
    }
    if (result == CUDA_SUCCESS &&
        xpu_table_take((enum xpu_space)entry->space, entry->key, entry->serial, &taken))
        xpu_entry_give_back(&taken);
    xpu_operation_end();
    if (result == CUDA_SUCCESS && is_small(entry))
        xpu_reconcile_small(entry->device, -(int64_t)entry->bytes);
    xpu_reconcile_freed(entry->device);
}
