/*
 * Checks the account when the children of a test are gone. All memory must be free at once, except MINE,
 * which the test's own process holds.
 */
#pragma once

#include "account.h"
#include "slot.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT = 1 << 20, MINE = 16384, SOME = 8192 };
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail(#condition, __LINE__);                                                                      \
    } while (0)

static int instruction; /* the child stands before it */

/* The children end with this process, which is the first of a PID namespace. */
static void fail(const char *what, int line) {
    fprintf(stderr, "line %d: not so after %d instructions: %s; used %llu, own %llu\n", line, instruction,
            what, (unsigned long long)xpu_used(0), (unsigned long long)xpu_process_used(0));
    exit(1);
}

/* Only this process's slot has something in it. */
static void slots_are_clean(void) {
    unsigned taken = 0;
    for (unsigned slot = 0; slot < xpu_pages()->quota->slot_count; slot++) {
        const struct xpu_slot *found = xpu_slot_at(slot);
        const struct xpu_slot_device *on = xpu_slot_device_at(slot, 0);
        uint64_t kinds = 0;
        for (int kind = 0; kind < XPU_KINDS; kind++)
            kinds += on->kinds[kind];
        CHECK(on->started == on->finished && kinds == on->used && on->exported == 0 && found->imports == 0);
        CHECK(on->finished - on->seen <= 1); /* nobody has set it back */
        if (*xpu_mark(slot)) {
            CHECK(found->pid == (uint32_t)getpid() && on->used == MINE);
            taken++;
        } else {
            CHECK(on->used == 0);
        }
    }
    CHECK(taken == 1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void account_is_exact(void) {
    double started = now();
    CHECK(xpu_charge(0, XPU_LINEAR, LIMIT - MINE));
    CHECK(now() - started < 0.1);
    CHECK(!xpu_charge(0, XPU_LINEAR, 1));
    CHECK(xpu_process_used(0) == LIMIT);
    xpu_uncharge(0, XPU_LINEAR, LIMIT - MINE);
    CHECK(xpu_used(0) == MINE && xpu_process_used(0) == MINE);
    slots_are_clean();
}
