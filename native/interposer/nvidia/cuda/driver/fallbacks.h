/*
 * Replaces functions that the driver lacks by those that it has.
 *
 * dlsym of an interposed function finds ours on drivers of every branch. A program may conclude that the
 * driver has it (Numba up to 0.61 looks for name_v2 before name). An older function with the same effect then
 * serves it: XPU_FALLBACK(name, by) says that fallback_name, of name's type, does it with the function `by`.
 * REAL(name) is then fallback_name if the driver has `by` and no `name`, so that the account sees no
 * difference. cuGetProcAddress asks the driver, and hands out the driver's own set.
 */
#pragma once

#include "real.h"

struct xpu_fallback {
    const char *name;
    void *function;
    struct xpu_function *by;
};

#define XPU_FALLBACK(name_, by_)                                                                             \
    static __typeof__(name_) fallback_##name_;                                                               \
    static const struct xpu_fallback xpu_fallback_##name_                                                    \
        __attribute__((section("xpu_fallback"), used, aligned(8))) = {#name_, (void *)fallback_##name_,      \
                                                                      &xpu_function_##by_};
