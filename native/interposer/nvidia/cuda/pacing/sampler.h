/*
 * The sampler. It reads the CUevents that mark the begin and end of work (cuEventElapsedTime), finds out by
 * probes which context has the device, and settles launches' charges with their use. It is a thread of ours,
 * one a process. If it cannot be started, threads of the program do its work.
 */
#pragma once

#include "tracker.h"

/* Counts up with each measurement: a launch marked at an earlier count may be marked again. */
extern uint32_t xpu_sampler_tick __attribute__((visibility("hidden"))); /* atomic */

/* Makes it look at the trackers, because a stream has got work. */
void xpu_sampler_wake(void);
/* Returns when all ended work is measured, or after 5 ms. */
void xpu_sampler_look(void);
/* Looks on this thread, if `xpu_sampler_without_thread` and no other thread has just looked. */
void xpu_sampler_look_without_thread(void);
/* Waits until the sampler is in no call of the driver for this tracker, some tenths of a second at most. */
void xpu_sampler_leave(struct xpu_tracker *tracker);

/* Whether only threads of the program look: no other can be started, or the program is ending. */
bool xpu_sampler_without_thread(void);
