#include "clocks.h"

/* Clocks differ by no more than this, of a million: oscillators differ by some tens, and CLOCK_MONOTONIC is
 * slewed by up to 500. With too little, the device's clock would run away, all probes would seem to have
 * waited for others, and the container would not be charged at all. Too much costs little: after a long time
 * slice of others, a probe that waited for its last microseconds counts as one that did not wait. */
static const int64_t DRIFT_PPM = 1000;

int64_t xpu_clocks_compare(struct xpu_clocks *clocks, int64_t recorded, int64_t completed) {
    int64_t seen = completed - recorded;
    int64_t most = clocks->offset + (recorded - clocks->at) * DRIFT_PPM / 1000000;
    clocks->offset = !clocks->at || seen < most ? seen : most;
    clocks->at = recorded;
    return seen - clocks->offset;
}
