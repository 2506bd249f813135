/*
 * How far the device's clock is from ours, by the quickest probes: none completes before it was recorded.
 * Pure arithmetic: no driver, no clock, no lock.
 */
#ifndef XPU_INTERPOSER_CLOCKS_H
#define XPU_INTERPOSER_CLOCKS_H

#include <stdint.h>

struct xpu_clocks {
    int64_t offset; /* of the device's clock to CLOCK_MONOTONIC, ns */
    int64_t at;     /* when that was known, CLOCK_MONOTONIC ns; 0: it is not */
};

/* A probe was recorded at `recorded` by our clock, and completed at `completed` by the device's. Returns how
 * much longer that took than the quickest of late, ns; probes come in the order in which they were recorded.
 */
int64_t xpu_clocks_compare(struct xpu_clocks *clocks, int64_t recorded, int64_t completed);

#endif
