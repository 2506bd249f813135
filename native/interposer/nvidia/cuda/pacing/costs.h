/*
 * Learnt costs of launches: ns of the device's time for each function and shape of its grid, and for each
 * executable graph. A cost is a prediction. The launch's real use is measured, except for short work beside
 * other contexts, which counts as predicted (usage.c).
 *
 * Any thread reads this at every launch, without a lock. An entry that another thread changes at that moment
 * gives one wrong prediction.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* An entry of the table, by its index. */
typedef uint16_t xpu_cost;

/* The entry of a function or graph (by address) with a grid of that shape (any number that distinguishes
 * shapes). An entry with another key at its place is forgotten. */
xpu_cost xpu_cost_of(const void *what, uint32_t shape);
/* Nanoseconds; *known: it has been measured before. */
uint64_t xpu_cost_ns(xpu_cost cost, bool *known);
/* Whether no marker has followed a launch of this kind recently: its entry may be out of date. `tick`:
 * xpu_sampler_tick, which each look that is due counts up. */
bool xpu_cost_is_due(xpu_cost cost, uint32_t tick);
void xpu_cost_marked(xpu_cost cost, uint32_t tick);
/* A launch of this kind took much longer than predicted. Others may do so unseen. `now`: CLOCK_MONOTONIC. */
void xpu_cost_watch(xpu_cost cost, int64_t now);
/* Whether that happened recently. */
bool xpu_cost_is_watched(xpu_cost cost, int64_t now);
enum xpu_cost_sure {
    XPU_COST_UNSURE, /* others may have had the device meanwhile: it is more often too much than too little */
    XPU_COST_SURE,
    XPU_COST_EITHER, /* unsure, and as often too little */
};
/* A measurement: `ns` for one launch. */
void xpu_cost_learn(xpu_cost cost, double ns, enum xpu_cost_sure sure);
