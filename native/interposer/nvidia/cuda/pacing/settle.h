/*
 * Corrects the container's budget, which was charged by predictions, by measurements.
 */
#pragma once

#include "tracker.h"

/* Corrects by all that is known of the tracker's context now. For the sampler. */
void xpu_settle(struct xpu_tracker *tracker);
/* Puts a tracker out of use whose context has ended, or is about to. Its predictions are dropped. */
void xpu_tracker_drop(struct xpu_tracker *tracker);
