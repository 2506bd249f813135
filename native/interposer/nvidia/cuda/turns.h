/*
 * The measuring thread of this process: it reads markers, probes whose turn it is, and settles what launches
 * were charged with what they have used.
 */
#ifndef XPU_INTERPOSER_TURNS_H
#define XPU_INTERPOSER_TURNS_H

#include "lane.h"

/* Counts up while anything is measured: what was marked at an earlier count may be marked again. */
extern uint32_t xpu_turns_tick __attribute__((visibility("hidden"))); /* atomic */

/* Has it look at the lanes, as a stream has got work. */
void xpu_turns_wake(void);
/* Looks at them on this thread of the program: all that has ended by now is measured. */
void xpu_turns_look(void);
/* The same where no thread of ours can be started, if nobody has looked just now. */
void xpu_turns_look_without_thread(void);
/* Waits until the thread is in no call of the driver for this lane, some tenths of a second at most. */
void xpu_turns_leave(struct xpu_lane *lane);

/* The program is ending, and nothing is measured any more. */
bool xpu_turns_ended(void);

#endif
