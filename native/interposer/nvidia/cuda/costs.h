/*
 * What launches cost, as learnt: ns of the device's time for each function and shape of its grid, and for
 * each executable graph. A prediction only: whatever it says is set right when the launch has been measured.
 *
 * Read at every launch by any thread, without a lock; an entry that another thread changes at that moment
 * gives a wrong prediction, and no more.
 */
#ifndef XPU_INTERPOSER_COSTS_H
#define XPU_INTERPOSER_COSTS_H

#include <stdbool.h>
#include <stdint.h>

/* One of the table, by its index. */
typedef uint16_t xpu_cost;

/* The entry of a function or graph (by address) with a grid of that shape (any number that tells shapes
 * apart). What was there under another key is forgotten. */
xpu_cost xpu_cost_of(const void *what, uint32_t shape);
/* Nanoseconds; *known: it has been measured before. */
uint64_t xpu_cost_ns(xpu_cost cost, bool *known);
/* Whether no marker has followed a launch of this kind of late: then what is known of it may be out of date.
 * `tick`: xpu_turns_tick, which each look of the measuring thread counts up. */
bool xpu_cost_is_due(xpu_cost cost, uint32_t tick);
void xpu_cost_marked(xpu_cost cost, uint32_t tick);
/* It was measured: `ns` for one launch; `sure`: nobody else had the device meanwhile. What is not sure is
 * more often too much than too little. */
void xpu_cost_learn(xpu_cost cost, double ns, bool sure);

#endif
