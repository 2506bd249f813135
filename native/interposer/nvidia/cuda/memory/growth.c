/*
 * Memory of contexts and modules. Programs do not ask for it in bytes, and only the driver knows it
 * afterwards. It is charged as overhead: before the call by the usual size so far; after it by the driver's
 * report or, if the driver reports nothing of this process, by the fall of the card's free memory.
 */
#define _GNU_SOURCE
#include "growth.h"
#include "cuda/driver/devices.h"
#include "reconcile.h"
#include "reservation.h"

/* Whether the driver's report alone will show the call's memory. */
static bool reported_tells(int device) {
    uint64_t reported;
    return !xpu_process_used_of(device, XPU_MANAGED) && !xpu_process_used_of(device, XPU_EXTERNAL) &&
           xpu_reported(device, &reported);
}

static uint64_t used_by_others(int device) { return xpu_excess(xpu_used(device), xpu_process_used(device)); }

CUresult xpu_growth_begin(struct xpu_growth *growth, int device, uint64_t expected) {
    struct xpu_reservation reservation = {0};
    xpu_reconcile(device); /* so that earlier changes are not taken for the call's */
    CUresult result = xpu_reserve_at(&reservation, device, XPU_OVERHEAD, expected);
    *growth = (struct xpu_growth){.device = device, .reserved = reservation.bytes};
    if (result == CUDA_SUCCESS && !reported_tells(device)) {
        growth->others_before = used_by_others(device);
        growth->free_known = xpu_card_free(device, &growth->free_before);
    }
    return result;
}

CUresult xpu_growth_begin_assumed(struct xpu_growth *growth, int device, uint64_t taken) {
    struct xpu_reservation reservation = {0};
    xpu_reconcile_not_now(device);
    CUresult result = xpu_reserve_at(&reservation, device, XPU_OVERHEAD, taken);
    *growth = (struct xpu_growth){.device = device, .reserved = reservation.bytes, .assumed = true};
    return result;
}

/* A context's size, by the fall of the card's free memory. Other containers may have taken or freed memory
 * meanwhile. So the size is believed if it is the first, or like the one before it, or a little less than the
 * known one. The rest belongs to the others. */
static uint64_t size_of_context(struct xpu_growth *growth, uint64_t seen) {
    const uint64_t most = 1 << 30, alike = 16 << 20, usual = growth->reserved;
    const char *why;
    uint64_t *guess = &xpu_pages_open(&why)->usage->totals[growth->device].guess;
    seen = seen < most ? seen : most;
    uint64_t before = __atomic_exchange_n(guess, seen + 1, __ATOMIC_RELAXED) - 1;
    growth->alike =
        before != UINT64_MAX && xpu_excess(seen, before) <= alike && xpu_excess(before, seen) <= alike;
    return growth->alike || !usual || (seen <= usual && seen >= usual / 2) ? seen : usual;
}

/* The memory of the real call: the fall of the card's free memory, less that of other known processes. */
static uint64_t taken_of_card(struct xpu_growth *growth) {
    uint64_t free_after;
    if (growth->shared || !growth->free_known || !xpu_card_free(growth->device, &free_after))
        return 0;
    uint64_t taken = xpu_excess(growth->free_before, free_after);
    taken = xpu_excess(taken, xpu_excess(used_by_others(growth->device), growth->others_before));
    return growth->context ? size_of_context(growth, taken) : taken;
}

/* Changes the overhead from `now`, of which `reserved` was for the call, to `right`. */
static bool charge_growth(const struct xpu_growth *growth, uint64_t now, uint64_t right) {
    if (right <= now) {
        xpu_uncharge(growth->device, XPU_OVERHEAD, now - right);
        return true;
    }
    if (xpu_charge(growth->device, XPU_OVERHEAD, right - now))
        return true;
    xpu_memory_refused(growth->device, right - now);
    xpu_uncharge(growth->device, XPU_OVERHEAD, growth->reserved);
    return false;
}

static void recognize(const struct xpu_growth *growth) {
    uint64_t reported, free_after;
    if (growth->ids.known && !xpu_reported(growth->device, &reported) &&
        xpu_card_free(growth->device, &free_after))
        xpu_reported_recognize(growth->device, &growth->ids, xpu_excess(growth->free_before, free_after));
}

/* The overhead after the call. If the report leaves it open, the card's free memory gives it. */
static uint64_t overhead_after(struct xpu_growth *growth, uint64_t now) {
    struct xpu_overhead_reading reading;
    bool known = xpu_overhead_read(growth->device, 1, &reading);
    growth->exact = known && reading.low == reading.high;
    if (growth->exact)
        return reading.low;
    uint64_t guess = xpu_excess(now, growth->reserved) + taken_of_card(growth);
    return known ? xpu_overhead_within(&reading, guess) : guess;
}

CUresult xpu_growth_end(struct xpu_growth *growth, CUresult result, uint64_t *taken) {
    *taken = growth->reserved;
    if (result != CUDA_SUCCESS) {
        xpu_uncharge(growth->device, XPU_OVERHEAD, growth->reserved);
    } else if (growth->assumed) {
        /* It stays. */
    } else if (xpu_overhead_enter(growth->device)) {
        recognize(growth);
        uint64_t now = xpu_process_used_of(growth->device, XPU_OVERHEAD), right = overhead_after(growth, now);
        *taken = xpu_excess(right, xpu_excess(now, growth->reserved));
        if (!charge_growth(growth, now, right))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        xpu_overhead_leave(growth->device);
    } else {
        /* Another thread is asking the driver, perhaps since before the call: the next reservation asks
         * again. */
        xpu_reconcile_soon(growth->device);
    }
    if (result == CUDA_SUCCESS)
        xpu_overhead_made(growth->device, *taken);
    xpu_operation_end();
    return result;
}

/* ---- taken memory as entries of the table ---- */

static bool add_taken(struct xpu_entry *entry, void *data) {
    int64_t change = *(int64_t *)data;
    entry->extra = change < 0 && entry->extra < -(uint64_t)change ? 0 : entry->extra + (uint64_t)change;
    return true;
}

bool xpu_overhead_change(enum xpu_space space, uint64_t key, int64_t change) {
    struct xpu_entry entry;
    return xpu_table_change(space, key, add_taken, &change, &entry);
}

bool xpu_overhead_keep(enum xpu_space space, uint64_t key, CUcontext context, int device, uint64_t taken) {
    struct xpu_entry replaced, entry = {.key = key,
                                        .context = context,
                                        .extra = taken,
                                        .device = (int8_t)device,
                                        .kind = XPU_OVERHEAD,
                                        .space = (uint8_t)space};
    /* Without memory for the entry, only the driver's report will show its end. */
    if (!xpu_table_put(&entry, &replaced))
        return false;
    if (replaced.serial) /* it has ended, and the thread that ended it would report that too late */
        xpu_shrunk(replaced.device, replaced.extra, false);
    return !replaced.serial;
}

void xpu_overhead_end(enum xpu_space space, uint64_t key) {
    struct xpu_entry entry;
    int device;
    if (xpu_table_take(space, key, 0, &entry))
        xpu_shrunk(entry.device, entry.extra, false);
    else if (xpu_granted_here(&device) == CUDA_SUCCESS)
        xpu_shrunk(device, 0, false); /* an object without memory at its creation may have taken some since */
}
