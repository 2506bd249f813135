/*
 * The launches' use of the device's time, from the events of a tracker (timeline.h). For the sampler.
 */
#pragma once

#include "timeline.h"

/* One point, in the order of time. It may add others to the timeline. */
void xpu_usage_at(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                  const struct xpu_time_point *point);
/* At `at` the stream has no unread marker: it may be idle. */
void xpu_usage_maybe_idle(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                          struct xpu_tracked_stream *on, int64_t at);
