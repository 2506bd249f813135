/*
 * The account's calls for the interposers: charge, uncharge, and use. Each call is a few atomic operations on
 * mapped pages, and nothing else, unless it is a process's first or memory was refused.
 */
#include "account.h"
#include "atomic.h"
#include "reap.h"
#include "total.h"

static bool counted(int device, enum xpu_kind kind) {
    return xpu_is_device(device) && (unsigned)kind < XPU_KINDS;
}

static void add(uint64_t *place, uint64_t change) { XPU_STORE(*place, XPU_LOAD(*place) + change); }

uint64_t xpu_process_used(int device) {
    int slot = xpu_process_slot();
    return xpu_is_device(device) && slot >= 0 ? XPU_LOAD(xpu_slot_device_at((unsigned)slot, device)->used)
                                              : 0;
}

uint64_t xpu_process_used_of(int device, enum xpu_kind kind) {
    int slot = xpu_process_slot();
    return counted(device, kind) && slot >= 0
               ? XPU_LOAD(xpu_slot_device_at((unsigned)slot, device)->kinds[kind])
               : 0;
}

uint64_t xpu_used(int device) {
    if (!xpu_is_device(device))
        return 0;
    xpu_reap();
    xpu_exported_settle(device);
    return xpu_total(device) * XPU_GRAIN;
}

static bool charge(int device, enum xpu_kind kind, uint64_t grains, enum xpu_bound bound) {
    if (!xpu_change_begin())
        return false;
    uint64_t done = xpu_total_add((unsigned)xpu_process_slot(), device, grains, bound);
    add(&xpu_process_device(device)->kinds[kind], done * XPU_GRAIN);
    xpu_change_end();
    return done == grains;
}

bool xpu_charge(int device, enum xpu_kind kind, uint64_t bytes) {
    if (!counted(device, kind))
        return false;
    uint64_t grains = xpu_grains(bytes);
    if (charge(device, kind, grains, XPU_WITHIN_LIMIT))
        return true;
    const char *why;
    if (!xpu_slot_take(&why)) {
        XPU_DEBUG("device %d: refused: %s", device, why);
        return false;
    }
    xpu_reap();
    xpu_exported_settle(device);
    return charge(device, kind, grains, XPU_WITHIN_LIMIT);
}

void xpu_charge_anyway(int device, enum xpu_kind kind, uint64_t bytes) {
    if (counted(device, kind))
        charge(device, kind, xpu_grains(bytes), XPU_WHATEVER);
}

void xpu_uncharge(int device, enum xpu_kind kind, uint64_t bytes) {
    if (!counted(device, kind) || xpu_process_slot() < 0)
        return;
    if (!xpu_lock()) {
        xpu_defer_free(device, kind, bytes);
        return;
    }
    if (xpu_process_slot() >= 0)
        xpu_uncharge_locked(device, kind, bytes);
    xpu_change_end();
}

void xpu_move(int device, enum xpu_kind from, enum xpu_kind to, uint64_t bytes) {
    if (!counted(device, from) || !counted(device, to) || xpu_process_slot() < 0 || !xpu_lock())
        return;
    uint64_t held = XPU_LOAD(xpu_process_device(device)->kinds[from]) / XPU_GRAIN, grains = xpu_grains(bytes);
    uint64_t moved = (grains < held ? grains : held) * XPU_GRAIN;
    add(&xpu_process_device(device)->kinds[from], -moved);
    add(&xpu_process_device(device)->kinds[to], moved);
    xpu_change_end();
}

void xpu_uncharge_exported(int device, enum xpu_kind kind, uint64_t bytes) {
    xpu_move(device, kind, XPU_FREED_EXPORTED, bytes);
    if (xpu_is_device(device))
        xpu_exported_settle(device);
}

void xpu_memory_refused(int device, uint64_t bytes) {
    static int told_by;
    uint64_t limit = xpu_limit(device), used = xpu_total(device) * XPU_GRAIN;
    uint64_t left = used < limit ? limit - used : 0;
    XPU_DEBUG("device %d: refused %s: %s free of %s", device, XPU_MIB(bytes), XPU_MIB(left), XPU_MIB(limit));
    /* Not said if it would fit now: another process has freed memory meanwhile, or the account could not be
     * changed. */
    if (bytes > left || used > limit)
        xpu_log_once(
            &told_by,
            "xpu: out of memory by this container's limit, not the card's: %s requested, %s free of the "
            "%s of its slice of GPU %d (XPU_LOG=off hides this line)",
            XPU_MIB(bytes), XPU_MIB(left), XPU_MIB(limit), device);
}
