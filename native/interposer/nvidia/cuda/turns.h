/*
 * The measuring thread of this process: it reads markers, probes whose turn it is, and settles what launches
 * were charged with what they have used.
 */
#ifndef XPU_INTERPOSER_TURNS_H
#define XPU_INTERPOSER_TURNS_H

#include "lane.h"

/* Counts up while anything is measured: what was marked at an earlier count may be marked again. */
extern uint32_t xpu_turns_tick __attribute__((visibility("hidden"))); /* atomic */

/* Has it look at the lanes, as a stream has got work. False: there is no such thread, and none can be made.
 */
bool xpu_turns_wake(void);
/* Waits until the thread is in no call of the driver for this lane, some tenths of a second at most. */
void xpu_turns_leave(struct xpu_lane *lane);

/* The program is ending, and nothing is measured any more. */
bool xpu_turns_ended(void);

#endif
