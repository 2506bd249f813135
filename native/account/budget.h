/*
 * The budget of a device's time: the work that the container may launch now. All of its processes share it,
 * through one word of the usage page: `paid`, the time up to which launches are paid for at the container's
 * share. A launch of x ns moves it on by x / share; while it lies in the past, the next launch may go ahead.
 *
 * Each process also keeps a word of its own charges, where no other can write it.
 *
 * So a debt has no limit and is exact over any time, and a credit is at most XPU_CREDIT_NS (after long
 * kernels of others up to a second), at whichever point a process dies: docs/developers/pacing.md. No call
 * here waits, takes a lock or calls a driver.
 */
#pragma once

#include "abi/page.h"
#include "clock/clock.h"

#include <stdbool.h>

enum {
    /* Time that a container has not used and may still use: as long as a launch may be late without the
     * container's fault (its thread was not scheduled, or another container had a slice of the device). */
    XPU_CREDIT_NS = 50000000,
    /* The same after a longer pause of its own: a load that comes in bursts gets its share of each, and
     * little more. */
    XPU_IDLE_CREDIT_NS = 20000000,
    /* The same for time in which others kept the device from it with a long kernel while it had work: it
     * catches up. Time of the container's other processes does not count. */
    XPU_KEPT_CREDIT_NS = 1000000000,
    /* The most that a killed process may have used since its last measurement. */
    XPU_UNMEASURED_NS = 5000000,
};

/* No cap on the device's time, or no such device. */
#define XPU_NO_CAP UINT32_MAX

/* Whether the container has a cap on any device. A container without one at its start never gets one. */
bool xpu_any_cap(void);
/* The container's share of the device now, 0 (it may launch nothing) to XPU_WHOLE, or XPU_NO_CAP: the agent's
 * share, or the cap without an agent. */
uint32_t xpu_share(int device, uint64_t now);
/* Whether its share is, or may become, less than the whole device. */
bool xpu_share_varies(int device);

/* Charges `ns` of the device's time before it is used, at a share of 1 to XPU_WHOLE. False, with nothing
 * charged and *until set, while earlier launches are unpaid, and for `spare` ns after that. */
bool xpu_budget_take(int device, uint32_t share, uint64_t ns, uint64_t now, uint64_t spare, uint64_t *until);
/* The same, also for unpaid launches. */
void xpu_budget_take_anyway(int device, uint32_t share, uint64_t ns, uint64_t now);
/* A measurement: the use was `ns` more (or less) than the charge. `settled` ns of earlier charges are no
 * longer a prediction. For `kept` ns this process had work, and others had the device. */
void xpu_budget_settle(int device, int64_t ns, uint64_t settled, uint64_t kept, uint64_t now);
/* Shows the host that a launch is held back, or that nothing could be measured. */
void xpu_budget_waits(int device);
void xpu_budget_guessed(int device);
/* Adds `ns` to the time for which launches were held back. */
void xpu_budget_held(int device, uint64_t ns);
/* Gives back unused charges of a dead process. The caller owns the slot. */
void xpu_budget_recover(unsigned slot, int device);
