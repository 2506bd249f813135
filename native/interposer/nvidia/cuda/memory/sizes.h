/*
 * Sizes chosen by programs: none overflows, and one that is too large stays too large.
 */
#pragma once

#include <stdint.h>

static inline uint64_t xpu_times(uint64_t one, uint64_t other) {
    uint64_t product;
    return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX : product;
}

/* The least multiple of `piece` that is not smaller. */
static inline uint64_t xpu_round_up(uint64_t length, uint64_t piece) {
    return length > UINT64_MAX - piece ? UINT64_MAX : (length + piece - 1) / piece * piece;
}
