/*
 * The table of interposed functions, and the addresses of the real ones.
 *
 * The DT_NEEDED of this library names the real one. So the real one is loaded whenever this one is, and a
 * handle of it stays valid and is kept. Each function is looked up at its first call. Two threads may look it
 * up together: both store the same address.
 */
#define _GNU_SOURCE
#include "real.h"
#include "fallbacks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

extern struct xpu_function __start_xpu_functions[] __attribute__((visibility("hidden")));
extern struct xpu_function __stop_xpu_functions[] __attribute__((visibility("hidden")));
extern const struct xpu_fallback __start_xpu_fallback[] __attribute__((visibility("hidden")));
extern const struct xpu_fallback __stop_xpu_fallback[] __attribute__((visibility("hidden")));
extern void (*const __start_xpu_at_fork[])(void) __attribute__((visibility("hidden")));
extern void (*const __stop_xpu_at_fork[])(void) __attribute__((visibility("hidden")));

/* Stands for a function that the driver lacks and no older one replaces. It may be called with any arguments.
 * It answers like a driver that has the function but cannot do it on this card: programs then take another
 * way. NOT_FOUND would look like a missing kernel of the program. */
static CUresult missing(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static void forked(void) {
    for (void (*const *function)(void) = __start_xpu_at_fork; function < __stop_xpu_at_fork; function++)
        (*function)();
}

static void watch_forks(void) {
    static int watched;
    if (!__atomic_exchange_n(&watched, 1, __ATOMIC_RELAXED))
        (void)pthread_atfork(NULL, NULL, forked);
}

static void *open_library(void) {
    static void *kept;
    void *library = __atomic_load_n(&kept, __ATOMIC_ACQUIRE);
    if (!library) {
        library = dlopen(XPU_REAL_CUDA, RTLD_LAZY | RTLD_NOLOAD);
        __atomic_store_n(&kept, library, __ATOMIC_RELEASE);
        watch_forks();
    }
    return library;
}

static void *fallback(const char *name) {
    for (const struct xpu_fallback *one = __start_xpu_fallback; one < __stop_xpu_fallback; one++)
        if (strcmp(one->name, name) == 0 && xpu_has(one->by))
            return one->function;
    return (void *)missing;
}

void *xpu_real_find(struct xpu_function *function) {
    void *library = open_library(), *real = library ? dlsym(library, function->name) : NULL;
    if (!real)
        real = fallback(function->name);
    __atomic_store_n(&function->real, real, __ATOMIC_RELAXED);
    return real;
}

bool xpu_has(struct xpu_function *function) { return xpu_real(function) != (void *)missing; }

void *xpu_interposed(void *address) {
    for (struct xpu_function *function = __start_xpu_functions; function < __stop_xpu_functions; function++)
        if (function->interposed && xpu_real(function) == address)
            return function->interposed;
    return address;
}
