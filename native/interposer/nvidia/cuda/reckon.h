/*
 * What launches have used, from what has happened in a lane (sweep.h). For who looks.
 */
#ifndef XPU_INTERPOSER_RECKON_H
#define XPU_INTERPOSER_RECKON_H

#include "sweep.h"

/* One instant: they come in the order of time. It may add others to the sweep. */
void xpu_happens(struct xpu_sweep *sweep, struct xpu_lane *lane, const struct xpu_instant *instant);
/* At `at` the stream has no marker left to read: it may have nothing to do. */
void xpu_rests_perhaps(struct xpu_sweep *sweep, struct xpu_lane *lane, struct xpu_lane_stream *on,
                       int64_t at);
/* Corrects the container's budget by all of it. */
void xpu_settle(struct xpu_lane *lane);

#endif
