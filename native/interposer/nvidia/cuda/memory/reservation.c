/*
 * Reservations: the charge before the driver is asked, and its settlement afterwards.
 */
#define _GNU_SOURCE
#include "reservation.h"
#include "cuda/driver/devices.h"
#include "cuda/driver/mps.h"
#include "cuda/driver/real.h"
#include "reconcile.h"
#include "release.h"
#include "shrinker.h"

XPU_NEED(cuCtxGetCurrent)

/* Rounded as in the account, so that several charges add up to the sum that is uncharged at once. */
static uint64_t whole_grains(uint64_t bytes) { return xpu_round_up(bytes, XPU_GRAIN); }

/* Called with the operation under way. If the charge does not fit, it reads the driver's report, makes the
 * driver give back its unused memory, and tries once more. */
static CUresult charge(int device, enum xpu_kind kind, uint64_t bytes) {
    if (__builtin_expect(xpu_charge(device, kind, bytes), 1))
        return CUDA_SUCCESS;
    xpu_reconcile_within(device);
    xpu_unused_trim(device);
    if (xpu_charge(device, kind, bytes))
        return CUDA_SUCCESS;
    xpu_memory_refused(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult xpu_reserve_at(struct xpu_reservation *reservation, int device, enum xpu_kind kind, uint64_t bytes) {
    const char *why = NULL;
    if (!xpu_slot_take(&why)) {
        xpu_device_refused(why);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    xpu_reconcile_sometimes(device);
    *reservation = (struct xpu_reservation){.bytes = whole_grains(bytes), .device = device, .kind = kind};
    xpu_operation_begin();
    CUresult result = charge(device, kind, reservation->bytes);
    if (result != CUDA_SUCCESS)
        xpu_operation_end();
    return result;
}

CUresult xpu_reserve_on(struct xpu_reservation *reservation, CUdevice device, enum xpu_kind kind,
                        uint64_t bytes) {
    int index;
    CUresult result = xpu_granted(device, &index);
    return result == CUDA_SUCCESS ? xpu_reserve_at(reservation, index, kind, bytes) : result;
}

CUresult xpu_reserve_here(struct xpu_reservation *reservation, enum xpu_kind kind, uint64_t bytes) {
    int index;
    CUcontext context;
    CUresult result = xpu_granted_here(&index);
    if (result == CUDA_SUCCESS)
        result = REAL(cuCtxGetCurrent)(&context);
    if (result == CUDA_SUCCESS)
        result = xpu_reserve_at(reservation, index, kind, bytes);
    if (result == CUDA_SUCCESS)
        reservation->context = context;
    return result;
}

CUresult xpu_reservation_resize(struct xpu_reservation *reservation, uint64_t bytes) {
    bytes = whole_grains(bytes);
    if (bytes > reservation->bytes) {
        CUresult result = charge(reservation->device, reservation->kind, bytes - reservation->bytes);
        if (result != CUDA_SUCCESS)
            return result;
    } else if (bytes < reservation->bytes) {
        xpu_uncharge(reservation->device, reservation->kind, reservation->bytes - bytes);
    }
    reservation->bytes = bytes;
    return CUDA_SUCCESS;
}

static bool is_small(const struct xpu_entry *entry) { return entry->bytes && entry->bytes < XPU_STEP; }

CUresult xpu_reservation_end_with(struct xpu_reservation *reservation, CUresult result, enum xpu_space space,
                                  uint64_t key, const struct xpu_entry *own) {
    struct xpu_entry entry = *own;
    entry.key = key;
    entry.context = reservation->context;
    entry.bytes = reservation->bytes;
    entry.device = (int8_t)reservation->device;
    entry.kind = (uint8_t)reservation->kind;
    entry.space = (uint8_t)space;
    if (result == CUDA_SUCCESS && !xpu_entry_put(&entry))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (xpu_mps_explained(result) != CUDA_SUCCESS)
        xpu_entry_release(&entry);
    xpu_operation_end();
    if (result == CUDA_SUCCESS && is_small(&entry))
        xpu_reconcile_small(entry.device, (int64_t)entry.bytes);
    return result;
}

CUresult xpu_reservation_end(struct xpu_reservation *reservation, CUresult result, enum xpu_space space,
                             uint64_t key) {
    return xpu_reservation_end_with(reservation, result, space, key, &(struct xpu_entry){0});
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
        xpu_entry_release(&taken);
    xpu_operation_end();
    if (result == CUDA_SUCCESS && is_small(entry))
        xpu_reconcile_small(entry->device, -(int64_t)entry->bytes);
    xpu_reconcile_freed(entry->device);
}
