/*
 * The difference of the device's clock from ours, by the quickest probes: none completes before it was
 * recorded. Pure arithmetic: no driver, no clock, no lock.
 */
#pragma once

#include <stdint.h>

struct xpu_clocks {
    int64_t offset; /* of the device's clock to CLOCK_MONOTONIC, ns */
    int64_t at;     /* the time at which that was known, CLOCK_MONOTONIC ns; 0: unknown */
};

/* A probe was recorded at `recorded` by our clock, and completed at `completed` by the device's. Returns by
 * how many ns that took longer than the quickest recent one. Probes come in the order of their recording. */
int64_t xpu_clocks_compare(struct xpu_clocks *clocks, int64_t recorded, int64_t completed);
