/*
 * A table in which each hash of a key has some places. If more kinds meet there, the one that was measured
 * longest ago is forgotten, and measured anew at its next launch.
 */
#include "costs.h"
#include "cuda/driver/real.h"

#include <string.h>

enum {
    PLACES = 2048, /* a power of two */
    WAYS = 8,      /* places of a hash: a large model has a thousand kinds of launches */
    /* The assumed cost of an unmeasured launch: a program can have a few of these under way at once (DEPTH_NS
     * in gate.c). */
    UNKNOWN_NS = 1000000,
    /* The part of a new measurement that counts is one in this many; for an unsure one it is smaller. */
    WEIGHT = 4,
    UNSURE_WEIGHT = 16,
    /* A kind is measured again after this many looks that were due, some 20 to 60 ms. */
    DUE_TICKS = 32,
    /* For this time each launch of a kind is measured after one took longer than known. On a busy host the
     * measuring thread finds some thirty of them a second at most. */
    WATCHED_NS = 1000000000,
};

struct place {
    uint64_t key;          /* 0: free; all atomic */
    uint64_t ns;           /* 0: not measured */
    uint32_t tick;         /* of the last launch that a marker followed */
    int64_t watched_until; /* CLOCK_MONOTONIC */
};
static struct place places[PLACES];

static void forget(void) { memset(places, 0, sizeof places); }
XPU_AT_FORK(forget)

xpu_cost xpu_cost_of(const void *what, uint32_t shape) {
    uint64_t key = ((uint64_t)(uintptr_t)what ^ (uint64_t)shape << 40 ^ shape) | 1;
    uint64_t mixed = key * 0x9e3779b97f4a7c15u;
    unsigned home = (unsigned)(mixed >> 53) & (PLACES - 1), oldest = home;
    for (unsigned i = 0; i < WAYS; i++) {
        unsigned at = (home + i) & (PLACES - 1);
        uint64_t found = __atomic_load_n(&places[at].key, __ATOMIC_RELAXED);
        if (__builtin_expect(found == key, 1))
            return (xpu_cost)at;
        uint32_t age = __atomic_load_n(&places[oldest].tick, __ATOMIC_RELAXED) -
                       __atomic_load_n(&places[at].tick, __ATOMIC_RELAXED);
        if (!found || (int32_t)age > 0)
            oldest = at;
        if (!found)
            break;
    }
    __atomic_store_n(&places[oldest].ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&places[oldest].watched_until, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&places[oldest].key, key, __ATOMIC_RELAXED);
    return (xpu_cost)oldest;
}

uint64_t xpu_cost_ns(xpu_cost cost, bool *known) {
    uint64_t ns = __atomic_load_n(&places[cost].ns, __ATOMIC_RELAXED);
    *known = ns != 0;
    return ns ? ns : UNKNOWN_NS;
}

bool xpu_cost_is_due(xpu_cost cost, uint32_t tick) {
    return tick - __atomic_load_n(&places[cost].tick, __ATOMIC_RELAXED) >= DUE_TICKS;
}

void xpu_cost_marked(xpu_cost cost, uint32_t tick) {
    __atomic_store_n(&places[cost].tick, tick, __ATOMIC_RELAXED);
}

void xpu_cost_watch(xpu_cost cost, int64_t now) {
    __atomic_store_n(&places[cost].watched_until, now + WATCHED_NS, __ATOMIC_RELAXED);
}

bool xpu_cost_is_watched(xpu_cost cost, int64_t now) {
    return now < __atomic_load_n(&places[cost].watched_until, __ATOMIC_RELAXED);
}

void xpu_cost_learn(xpu_cost cost, double ns, enum xpu_cost_sure sure) {
    double before = (double)__atomic_load_n(&places[cost].ns, __ATOMIC_RELAXED);
    bool much = sure == XPU_COST_SURE || (sure == XPU_COST_UNSURE && ns < before);
    double after = before ? before + (ns - before) / (much ? WEIGHT : UNSURE_WEIGHT) : ns;
    __atomic_store_n(&places[cost].ns, after > 1 ? (uint64_t)after : 1, __ATOMIC_RELAXED);
}
