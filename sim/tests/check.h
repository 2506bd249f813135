/*
 * The common part of these tests' programs: a call that must have a result, and the choice of a check by its
 * name. A difference is printed on standard output, and the program ends with 1.
 */
#pragma once

#include "../../native/headers/cuda/cuda_api.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(wanted, call)                                                                                 \
    do {                                                                                                     \
        long long expect_got = (long long)(call), expect_wanted = (long long)(wanted);                       \
        if (expect_got != expect_wanted) {                                                                   \
            printf("line %d: %s: %lld, not %lld\n", __LINE__, #call, expect_got, expect_wanted);             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define MUST(call) EXPECT(CUDA_SUCCESS, call)
#define HOLDS(condition) EXPECT(1, !!(condition))

struct check {
    const char *name;
    void (*function)(void);
};

/* Runs the check that the program's only argument names. */
static inline void run_check(const struct check *checks, size_t number, int count, char **words) {
    size_t found = 0;
    while (found < number && (count != 2 || strcmp(words[1], checks[found].name) != 0))
        found++;
    HOLDS(found < number);
    checks[found].function();
}

#define RUN_CHECK(checks, count, words) run_check(checks, sizeof(checks) / sizeof *(checks), count, words)
