/*
 * Whether a launch may go now: the pacer's waits (pacer.h).
 */
#ifndef XPU_INTERPOSER_GATE_H
#define XPU_INTERPOSER_GATE_H

#include "pacer.h"

/* Waits until the launch may go, and takes its predicted cost from the budget. True: it had to wait for it.
 */
bool xpu_gate_pass(const struct xpu_pace *pace, struct xpu_lane *lane);
/* A launch has not been made: its cost is there for the thread's next one. */
void xpu_gate_give_back(struct xpu_lane *lane, uint64_t ns);
/* Whether nothing that the container launches can be more than its share. */
bool xpu_gate_is_free(int device, uint32_t share, uint64_t now);
/* Between two looks at the budget: ns, a few milliseconds at most. A signal ends it early. */
void xpu_gate_pause(uint64_t ns);

#endif
