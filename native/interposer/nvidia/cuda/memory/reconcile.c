/*
 * Reconciling. The driver's report is the authority on this process's memory, and the table on its requests.
 * The difference is its overhead.
 *
 * The two cannot be read in one instant. A reading is good if no operation on memory was under way around it;
 * otherwise the overhead may only be raised, by the report's excess over the whole account. Managed memory
 * and imports count in the report only for the part that is on the device. With them the overhead has known
 * bounds, and stays if it is within these.
 */
#define _GNU_SOURCE
#include "reconcile.h"
#include "cuda/driver/real.h"
#include "reported.h"
#include "shrinker.h"

#include <time.h>

static uint64_t begun, ended;         /* operations; atomic */
static uint64_t read_at[XPU_DEVICES]; /* second of the last reading + 1; atomic */
static uint64_t at_rest[XPU_DEVICES]; /* overhead without any allocation; atomic */
static uint64_t made[XPU_DEVICES];    /* memory of contexts and modules that was seen; atomic */
static int64_t small[XPU_DEVICES];    /* change of small allocations since the last reading; atomic */
static int busy[XPU_DEVICES];         /* a thread is changing the overhead; atomic */

static void forget(void) {
    begun = ended = 0;
    for (int i = 0; i < XPU_DEVICES; i++) {
        read_at[i] = 0;
        at_rest[i] = 0;
        made[i] = 0;
        small[i] = 0;
        busy[i] = 0;
    }
}
XPU_AT_FORK(forget)

void xpu_operation_begin(void) { __atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST); }
void xpu_operation_end(void) { __atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST); }

/* `mine`: the caller's own operations under way, which change nothing meanwhile. */
static bool read_once(int device, uint64_t mine, struct xpu_overhead_reading *reading) {
    uint64_t reported;
    uint64_t done = __atomic_load_n(&ended, __ATOMIC_SEQ_CST);
    uint64_t started = __atomic_load_n(&begun, __ATOMIC_SEQ_CST);
    uint64_t own_before = xpu_process_used(device);
    if (!xpu_reported(device, &reported))
        return false;
    uint64_t own = xpu_process_used(device), overhead = xpu_process_used_of(device, XPU_OVERHEAD);
    uint64_t vague = xpu_process_used_of(device, XPU_MANAGED) + xpu_process_used_of(device, XPU_EXTERNAL);
    uint64_t tracked = xpu_excess(own, overhead + xpu_process_used_of(device, XPU_FREED_EXPORTED));
    reading->quiet = started == done + mine && __atomic_load_n(&begun, __ATOMIC_SEQ_CST) == started;
    if (reading->quiet) {
        reading->low = xpu_excess(reported, tracked);
        reading->high = xpu_excess(reported, xpu_excess(tracked, vague));
    } else {
        reading->low = overhead + xpu_excess(reported, own > own_before ? own : own_before);
        reading->high = UINT64_MAX;
    }
    return true;
}

bool xpu_overhead_read(int device, uint64_t mine, struct xpu_overhead_reading *reading) {
    bool known = false;
    for (int tries = 0; tries < 3; tries++) {
        known = read_once(device, mine, reading);
        if (!known || reading->quiet)
            break;
    }
    return known;
}

uint64_t xpu_overhead_within(const struct xpu_overhead_reading *reading, uint64_t value) {
    return value < reading->low ? reading->low : value > reading->high ? reading->high : value;
}

bool xpu_overhead_enter(int device) { return !__atomic_exchange_n(&busy[device], 1, __ATOMIC_ACQUIRE); }

void xpu_overhead_leave(int device) { __atomic_store_n(&busy[device], 0, __ATOMIC_RELEASE); }

static void set_overhead(int device, uint64_t right) {
    uint64_t now = xpu_process_used_of(device, XPU_OVERHEAD);
    if (right > now)
        xpu_charge_anyway(device, XPU_OVERHEAD, right - now);
    else
        xpu_uncharge(device, XPU_OVERHEAD, now - right);
    if (right != now)
        XPU_DEBUG("device %d: overhead %s, was %s", device, XPU_MIB(right), XPU_MIB(now));
}

static bool nothing_else(int device) {
    return xpu_process_used(device) == xpu_process_used_of(device, XPU_OVERHEAD);
}

static void take_off(uint64_t *sum, uint64_t bytes) {
    uint64_t now = __atomic_load_n(sum, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(sum, &now, xpu_excess(now, bytes), false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
}

/* If managed memory leaves the overhead open, it counts as the memory of contexts and modules. A disturbed
 * reading does not show which of them have ended. */
static uint64_t overhead_of(int device, const struct xpu_overhead_reading *reading) {
    uint64_t expected = __atomic_load_n(&made[device], __ATOMIC_RELAXED);
    if (!reading->quiet)
        return xpu_overhead_within(reading, xpu_process_used_of(device, XPU_OVERHEAD));
    if (expected > reading->high)
        take_off(&made[device], expected - reading->high);
    return xpu_overhead_within(reading, expected);
}

/* False without a report of the driver. True also if another thread is reconciling. */
static bool adjust(int device, uint64_t mine) {
    struct xpu_overhead_reading reading;
    const char *why;
    if (!xpu_slot_take(&why) || !xpu_overhead_enter(device))
        return true;
    __atomic_store_n(&small[device], 0, __ATOMIC_RELAXED);
    xpu_unused_refresh(device);
    bool known = xpu_overhead_read(device, mine, &reading);
    if (known)
        set_overhead(device, overhead_of(device, &reading));
    if (nothing_else(device))
        __atomic_store_n(&at_rest[device], xpu_process_used_of(device, XPU_OVERHEAD), __ATOMIC_RELAXED);
    xpu_overhead_leave(device);
    return known;
}

void xpu_reconcile(int device) { (void)adjust(device, 0); }
void xpu_reconcile_within(int device) { (void)adjust(device, 1); }

void xpu_shrunk(int device, uint64_t taken, bool last) {
    uint64_t all = xpu_process_used_of(device, XPU_OVERHEAD);
    take_off(&made[device], last ? UINT64_MAX : taken);
    if (!adjust(device, 0))
        set_overhead(device, last ? 0 : xpu_excess(all, taken));
}

/* Never 0. */
static uint64_t this_second(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec + 1;
}

void xpu_reconcile_sometimes(int device) {
    uint64_t second = this_second(), before = __atomic_load_n(&read_at[device], __ATOMIC_RELAXED);
    if (__builtin_expect(before == second, 1))
        return;
    if (__atomic_compare_exchange_n(&read_at[device], &before, second, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
        xpu_reconcile(device);
}

void xpu_reconcile_freed(int device) {
    xpu_reconcile_sometimes(device);
    if (nothing_else(device) &&
        xpu_process_used_of(device, XPU_OVERHEAD) > __atomic_load_n(&at_rest[device], __ATOMIC_RELAXED))
        xpu_reconcile(device);
}

/* Allocations below 2 MiB share steps of that size and may leave them half empty. The driver's memory beyond
 * them is overhead, which must be known before it adds up. */
void xpu_reconcile_small(int device, int64_t change) {
    const int64_t most = 8 << 20;
    int64_t all = __atomic_add_fetch(&small[device], change, __ATOMIC_RELAXED);
    if (__builtin_expect(all > most || all < -most, 0))
        xpu_reconcile(device);
}

void xpu_overhead_made(int device, uint64_t taken) {
    __atomic_fetch_add(&made[device], taken, __ATOMIC_RELAXED);
}

void xpu_reconcile_soon(int device) { __atomic_store_n(&read_at[device], 0, __ATOMIC_RELAXED); }

void xpu_reconcile_not_now(int device) {
    uint64_t never = 0;
    __atomic_compare_exchange_n(&read_at[device], &never, this_second(), false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
}
