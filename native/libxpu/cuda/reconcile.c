/*
 * Reconciling: the driver's figure is the authority on what this process has, the table on what it asked for.
 *
 * The figure and the table cannot be read in one instant. A reading is good when no operation on memory was
 * under way around it; otherwise the overhead may only be raised, by what the driver counts beyond the whole
 * of the account. Managed memory and imports are a special case: they are in the figure as far as they happen
 * to be on the device, so that the overhead is known only within bounds, and kept where it lies in them.
 */
#define _GNU_SOURCE
#include "reconcile.h"
#include "claim.h"
#include "pool.h"
#include "real.h"

#include <time.h>

static uint64_t begun, ended;         /* operations; atomic */
static uint64_t read_at[XPU_DEVICES]; /* second of the last reading + 1; atomic */
static uint64_t at_rest[XPU_DEVICES]; /* overhead when nothing else was there; atomic */
static uint64_t made[XPU_DEVICES];    /* what contexts and modules were seen to take; atomic */
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

/* The overhead lies within [low, high]; or only `low` is known, where the reading was disturbed. */
struct reading {
    uint64_t low, high;
    bool quiet;
};

static uint64_t beyond(uint64_t all, uint64_t part) { return all > part ? all - part : 0; }

/* `mine`: operations of the caller's own that are under way and change nothing meanwhile. */
static bool read_once(int device, uint64_t mine, struct reading *reading) {
    uint64_t figure;
    uint64_t done = __atomic_load_n(&ended, __ATOMIC_SEQ_CST);
    uint64_t started = __atomic_load_n(&begun, __ATOMIC_SEQ_CST);
    uint64_t own_before = xpu_own(device);
    if (!xpu_figure(device, &figure))
        return false;
    uint64_t own = xpu_own(device), overhead = xpu_own_kind(device, XPU_OVERHEAD);
    uint64_t vague = xpu_own_kind(device, XPU_MANAGED) + xpu_own_kind(device, XPU_EXTERNAL);
    uint64_t tracked = beyond(own, overhead + xpu_own_kind(device, XPU_ORPHAN));
    reading->quiet = started == done + mine && __atomic_load_n(&begun, __ATOMIC_SEQ_CST) == started;
    if (reading->quiet) {
        reading->low = beyond(figure, tracked);
        reading->high = beyond(figure, beyond(tracked, vague));
    } else {
        reading->low = overhead + beyond(figure, own > own_before ? own : own_before);
        reading->high = UINT64_MAX;
    }
    return true;
}

static bool read_overhead(int device, uint64_t mine, struct reading *reading) {
    bool known = false;
    for (int tries = 0; tries < 3; tries++) {
        known = read_once(device, mine, reading);
        if (!known || reading->quiet)
            break;
    }
    return known;
}

static uint64_t within(const struct reading *reading, uint64_t value) {
    return value < reading->low ? reading->low : value > reading->high ? reading->high : value;
}

/* One thread at a time changes a device's overhead; the others have nothing to wait for. */
static bool enter(int device) { return !__atomic_exchange_n(&busy[device], 1, __ATOMIC_ACQUIRE); }
static void leave(int device) { __atomic_store_n(&busy[device], 0, __ATOMIC_RELEASE); }

static void set_overhead(int device, uint64_t right) {
    uint64_t now = xpu_own_kind(device, XPU_OVERHEAD);
    if (right > now)
        xpu_charge_anyway(device, XPU_OVERHEAD, right - now);
    else
        xpu_give_back(device, XPU_OVERHEAD, now - right);
    if (right != now)
        XPU_DEBUG("device %d: overhead %s, was %s", device, XPU_MIB(right), XPU_MIB(now));
}

static bool nothing_else(int device) { return xpu_own(device) == xpu_own_kind(device, XPU_OVERHEAD); }

static void take_off(uint64_t *sum, uint64_t bytes) {
    uint64_t now = __atomic_load_n(sum, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(sum, &now, beyond(now, bytes), false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
}

/* Where managed memory leaves it open, it is what contexts and modules took. A disturbed reading does not
 * tell what has ended. */
static uint64_t overhead_of(int device, const struct reading *reading) {
    uint64_t expected = __atomic_load_n(&made[device], __ATOMIC_RELAXED);
    if (!reading->quiet)
        return within(reading, xpu_own_kind(device, XPU_OVERHEAD));
    if (expected > reading->high)
        take_off(&made[device], expected - reading->high);
    return within(reading, expected);
}

/* False where the driver says nothing; true also if another thread is at it. */
static bool adjust(int device, uint64_t mine) {
    struct reading reading;
    const char *why;
    if (!xpu_slot_take(&why) || !enter(device))
        return true;
    __atomic_store_n(&small[device], 0, __ATOMIC_RELAXED);
    xpu_pools_refresh(device);
    bool known = read_overhead(device, mine, &reading);
    if (known)
        set_overhead(device, overhead_of(device, &reading));
    if (nothing_else(device))
        __atomic_store_n(&at_rest[device], xpu_own_kind(device, XPU_OVERHEAD), __ATOMIC_RELAXED);
    leave(device);
    return known;
}

void xpu_reconcile(int device) { (void)adjust(device, 0); }
void xpu_reconcile_within(int device) { (void)adjust(device, 1); }

void xpu_shrunk(int device, uint64_t taken, bool last) {
    uint64_t all = xpu_own_kind(device, XPU_OVERHEAD);
    take_off(&made[device], last ? UINT64_MAX : taken);
    if (!adjust(device, 0))
        set_overhead(device, last ? 0 : beyond(all, taken));
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
        xpu_own_kind(device, XPU_OVERHEAD) > __atomic_load_n(&at_rest[device], __ATOMIC_RELAXED))
        xpu_reconcile(device);
}

/* Those below 2 MiB share steps of that size, which they may leave half empty: what the driver has beyond
 * them is overhead, and must be known before it adds up. */
void xpu_reconcile_small(int device, int64_t change) {
    const int64_t most = 8 << 20;
    int64_t all = __atomic_add_fetch(&small[device], change, __ATOMIC_RELAXED);
    if (__builtin_expect(all > most || all < -most, 0))
        xpu_reconcile(device);
}

/* Whether the driver's figure alone will tell what the call takes. */
static bool figure_tells(int device) {
    uint64_t figure;
    return !xpu_own_kind(device, XPU_MANAGED) && !xpu_own_kind(device, XPU_EXTERNAL) &&
           xpu_figure(device, &figure);
}

static uint64_t used_by_others(int device) { return beyond(xpu_used(device), xpu_own(device)); }

CUresult xpu_growth_begin(struct xpu_growth *growth, int device, uint64_t expected) {
    struct xpu_claim claim = {0};
    xpu_reconcile(device); /* so that nothing else is taken for its own */
    CUresult result = xpu_claim_at(&claim, device, XPU_OVERHEAD, expected);
    *growth = (struct xpu_growth){.device = device, .reserved = claim.bytes};
    if (result == CUDA_SUCCESS && !figure_tells(device)) {
        growth->others_before = used_by_others(device);
        growth->free_known = xpu_card_free(device, &growth->free_before);
    }
    return result;
}

CUresult xpu_growth_begin_assumed(struct xpu_growth *growth, int device, uint64_t taken) {
    struct xpu_claim claim = {0};
    uint64_t never = 0;
    __atomic_compare_exchange_n(&read_at[device], &never, this_second(), false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    CUresult result = xpu_claim_at(&claim, device, XPU_OVERHEAD, taken);
    *growth = (struct xpu_growth){.device = device, .reserved = claim.bytes, .assumed = true};
    return result;
}

/* A context's size by one look at the card, in which neighbours may have taken or freed: believed where it is
 * the first, or like the one before it, or a little less than is known. What is beyond belief is theirs. */
static uint64_t size_of_context(struct xpu_growth *growth, uint64_t seen) {
    const uint64_t most = 1 << 30, alike = 16 << 20, usual = growth->reserved;
    const char *why;
    uint64_t *guess = &xpu_pages_open(&why)->usage->totals[growth->device].guess;
    seen = seen < most ? seen : most;
    uint64_t before = __atomic_exchange_n(guess, seen + 1, __ATOMIC_RELAXED) - 1;
    growth->alike = before != UINT64_MAX && beyond(seen, before) <= alike && beyond(before, seen) <= alike;
    return growth->alike || !usual || (seen <= usual && seen >= usual / 2) ? seen : usual;
}

/* What the real call took, by the change of the card's free memory, less what is known to be others'. */
static uint64_t taken_of_card(struct xpu_growth *growth) {
    uint64_t free_after;
    if (growth->shared || !growth->free_known || !xpu_card_free(growth->device, &free_after))
        return 0;
    uint64_t taken = beyond(growth->free_before, free_after);
    taken = beyond(taken, beyond(used_by_others(growth->device), growth->others_before));
    return growth->context ? size_of_context(growth, taken) : taken;
}

/* Brings the overhead from `now`, of which `reserved` was for the call, to `right`. */
static bool charge_growth(const struct xpu_growth *growth, uint64_t now, uint64_t right) {
    if (right <= now) {
        xpu_give_back(growth->device, XPU_OVERHEAD, now - right);
        return true;
    }
    if (xpu_charge(growth->device, XPU_OVERHEAD, right - now))
        return true;
    xpu_refused(growth->device, right - now);
    xpu_give_back(growth->device, XPU_OVERHEAD, growth->reserved);
    return false;
}

static void recognize(const struct xpu_growth *growth) {
    uint64_t figure, free_after;
    if (growth->ids.known && !xpu_figure(growth->device, &figure) &&
        xpu_card_free(growth->device, &free_after))
        xpu_figure_recognize(growth->device, &growth->ids, beyond(growth->free_before, free_after));
}

/* What the overhead is after the call. Where the driver's figure leaves it open, it is told by the change of
 * the card's free memory. */
static uint64_t overhead_after(struct xpu_growth *growth, uint64_t now) {
    struct reading reading;
    bool known = read_overhead(growth->device, 1, &reading);
    growth->exact = known && reading.low == reading.high;
    if (growth->exact)
        return reading.low;
    uint64_t guess = beyond(now, growth->reserved) + taken_of_card(growth);
    return known ? within(&reading, guess) : guess;
}

CUresult xpu_growth_end(struct xpu_growth *growth, CUresult result, uint64_t *taken) {
    *taken = growth->reserved;
    if (result != CUDA_SUCCESS) {
        xpu_give_back(growth->device, XPU_OVERHEAD, growth->reserved);
    } else if (growth->assumed) {
        /* As it is. */
    } else if (enter(growth->device)) {
        recognize(growth);
        uint64_t now = xpu_own_kind(growth->device, XPU_OVERHEAD), right = overhead_after(growth, now);
        *taken = beyond(right, beyond(now, growth->reserved));
        if (!charge_growth(growth, now, right))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        leave(growth->device);
    } else {
        /* Another thread is asking the driver, perhaps from before the call: the next claim asks again. */
        __atomic_store_n(&read_at[growth->device], 0, __ATOMIC_RELAXED);
    }
    if (result == CUDA_SUCCESS)
        __atomic_fetch_add(&made[growth->device], *taken, __ATOMIC_RELAXED);
    xpu_operation_end();
    return result;
}
