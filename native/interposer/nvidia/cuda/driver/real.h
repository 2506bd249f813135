/*
 * Reaches the functions of the real libcuda, and lists those that this library interposes.
 *
 * A file that interposes a function says XPU_INTERPOSE(name) and defines it under its exported name; one that
 * only calls a function of the real library says XPU_NEED(name). REAL(name)(…) then calls the real one. The
 * linker gathers these lines in one table, from which cuGetProcAddress hands out functions; no other list is
 * needed.
 *
 * REAL is never NULL. If the driver is older than the function, REAL does the same by older functions
 * (fallbacks.h); if there are none, it returns CUDA_ERROR_NOT_SUPPORTED, and XPU_HAS(name) is false. dlsym of
 * an interposed function finds ours on every driver, while cuGetProcAddress, which newer programs and cudart
 * use, gives the driver's answer. (An IFUNC that resolves to NULL would give it for dlsym too, but it crashes
 * programs that take dlsym's NULL for an error with a text.) So newer functions are interposed only if memory
 * depends on them.
 */
#pragma once

#include "account/account.h"
#include "headers/cuda/cuda_api.h"

struct xpu_function {
    const char *name; /* as exported */
    void *interposed; /* NULL: only called */
    void *real;       /* atomic; NULL: not looked up yet */
};

#define XPU_FUNCTION(name_, interposed_)                                                                     \
    static struct xpu_function xpu_function_##name_                                                          \
        __attribute__((section("xpu_functions"), used, aligned(8))) = {#name_, interposed_, NULL};
#define XPU_INTERPOSE(name_) XPU_FUNCTION(name_, (void *)&name_)
#define XPU_NEED(name_) XPU_FUNCTION(name_, NULL)

/* The real function of the same type. */
#define REAL(name_) ((__typeof__(&name_))xpu_real(&xpu_function_##name_))
#define XPU_HAS(name_) xpu_has(&xpu_function_##name_)

void *xpu_real_find(struct xpu_function *function);
bool xpu_has(struct xpu_function *function);
/* Our function in the place of this address of the real library, or the address itself. */
void *xpu_interposed(void *address);

static inline void *xpu_real(struct xpu_function *function) {
    void *real = __atomic_load_n(&function->real, __ATOMIC_RELAXED);
    return __builtin_expect(real != NULL, 1) ? real : xpu_real_find(function);
}

/* XPU_AT_FORK(f): f() runs in a forked child, with one thread, before anything else of ours. It makes its
 * file's locks new and forgets the parent's state. It takes no lock and allocates nothing. */
#define XPU_AT_FORK(function_)                                                                               \
    static void (*const xpu_at_fork_##function_)(void)                                                       \
        __attribute__((section("xpu_at_fork"), used, aligned(8))) = function_;
