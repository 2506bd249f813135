/*
 * The overhead of a process on a device: the driver's count beyond the table's sum, thus its contexts,
 * modules and fragmentation. Independent of upper files.
 */
#pragma once

#include "account/account.h"

/* Around each call that changes this process's memory: no reading of the driver between begin and end is
 * compared with the account. */
void xpu_operation_begin(void);
void xpu_operation_end(void);

/* Asks the driver now, and charges or frees the difference, even beyond the limit. */
void xpu_reconcile(int device);
/* The same for a caller with one operation under way, which changes nothing meanwhile. */
void xpu_reconcile_within(int device);
/* The same if a second has passed since the last time. */
void xpu_reconcile_sometimes(int device);
/* After a free: the same, and also if only an overhead is left that was read while there was more. */
void xpu_reconcile_freed(int device);
/* After a change of small allocations by `change` bytes: the same if that adds up. */
void xpu_reconcile_small(int device, int64_t change);
/* The next xpu_reconcile_sometimes asks the driver; or this process's first one waits for its second. */
void xpu_reconcile_soon(int device);
void xpu_reconcile_not_now(int device);

/* After the end of an object of `taken` bytes: the overhead becomes the driver's figure, or falls by that
 * much without one. `last`: nothing of this process is left on the device. */
void xpu_shrunk(int device, uint64_t taken, bool last);
/* Records the seen size of a context or a module. */
void xpu_overhead_made(int device, uint64_t taken);

/* One thread at a time changes a device's overhead. False: another one does, and there is nothing to wait
 * for. */
bool xpu_overhead_enter(int device);
void xpu_overhead_leave(int device);
/* The overhead is within [low, high]; if the reading was disturbed, only `low` is known. */
struct xpu_overhead_reading {
    uint64_t low, high;
    bool quiet;
};
/* `mine`: the caller's own operations under way, which change nothing meanwhile. False: the driver reports
 * nothing of this process. */
bool xpu_overhead_read(int device, uint64_t mine, struct xpu_overhead_reading *reading);
/* The value nearest to `value` that the reading allows. */
uint64_t xpu_overhead_within(const struct xpu_overhead_reading *reading, uint64_t value);

static inline uint64_t xpu_excess(uint64_t all, uint64_t less) { return all > less ? all - less : 0; }
