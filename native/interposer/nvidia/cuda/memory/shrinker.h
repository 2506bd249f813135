/*
 * Memory that the driver keeps unused, which is read again or given back before a refusal. The files that
 * know of such memory (pools, graphs) are above those that need it: they register their functions here.
 */
#pragma once

#include <stdbool.h>

struct xpu_shrinker {
    void (*refresh)(int device);
    bool (*trim)(int device);
    void (*freed_unknown)(void);
};

/* At file level, once in a file. */
#define XPU_SHRINKER(refresh_, trim_, freed_unknown_)                                                        \
    static const struct xpu_shrinker xpu_shrinker                                                            \
        __attribute__((section("xpu_shrinkers"), used, aligned(8))) = {refresh_, trim_, freed_unknown_};

/* Sets the account to the memory that the driver keeps on a device (index in the pages). Called when the
 * total is read: reconciling, views. Cheap if there is none. */
void xpu_unused_refresh(int device);
/* Has the driver give back unused memory, and refreshes; true if that freed any. */
bool xpu_unused_trim(int device);
/* A pointer was freed that the table does not know: it may belong to memory that the driver keeps. */
void xpu_unknown_freed(void);
