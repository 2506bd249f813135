/*
 * Measuring: markers are read, it is probed whose turn it is, and what launches were charged is settled with
 * what they have used. Who looks is a thread of ours, one a process; where that cannot be started, the
 * program's.
 */
#ifndef XPU_INTERPOSER_TURNS_H
#define XPU_INTERPOSER_TURNS_H

#include "lane.h"

/* Counts up while anything is measured: what was marked at an earlier count may be marked again. */
extern uint32_t xpu_turns_tick __attribute__((visibility("hidden"))); /* atomic */

/* Has it look at the lanes, as a stream has got work. */
void xpu_turns_wake(void);
/* Returns when what has ended by now is measured, or after 5 ms. */
void xpu_turns_look(void);
/* On this thread of the program, if `xpu_turns_without_thread` and nobody has looked just now. */
void xpu_turns_look_without_thread(void);
/* Waits until who looks is in no call of the driver for this lane, some tenths of a second at most. */
void xpu_turns_leave(struct xpu_lane *lane);

/* Whether only threads of the program look: no other can be started, or the program is ending. */
bool xpu_turns_without_thread(void);

#endif
