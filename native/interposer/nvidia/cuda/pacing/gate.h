/*
 * Whether a launch may go now: the pacer's waits (pacer.h).
 */
#pragma once

#include "pacer.h"

/* Waits until the launch may go, and takes its predicted cost from the budget. True: it had to wait for
 * budget. */
bool xpu_gate_pass(const struct xpu_pace *pace, struct xpu_tracker *tracker);
/* The same if nothing can be measured; without a tracker, on the current context's device. `since`: the time
 * at which measuring became impossible, CLOCK_MONOTONIC; 0: it never was possible. */
void xpu_gate_pass_unmeasured(const struct xpu_tracker *tracker, uint64_t since);
/* Waits for an event, if there is none to mark the begin of the stream's work. False: none came. */
bool xpu_gate_wait_for_event(struct xpu_tracker *tracker, const struct xpu_tracked_stream *on);
/* A launch has not been made: the thread's next one gets its cost. */
void xpu_gate_give_back(struct xpu_tracker *tracker, uint64_t ns);
