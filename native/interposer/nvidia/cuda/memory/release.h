/*
 * Releases the memory of a table's entry: uncharges it, unless the file that made it has registered its own
 * way. So lower files end the objects of upper ones, and call none of them.
 */
#pragma once

#include "table.h"

typedef void xpu_release_function(const struct xpu_entry *entry);

struct xpu_release {
    xpu_release_function *function;
    enum xpu_space space;
    int kind; /* enum xpu_kind; -1: any, and the function is an additional one */
};

#define XPU_RELEASE_RECORD(function_, space_, kind_)                                                         \
    static const struct xpu_release xpu_release_##function_##_##space_                                       \
        __attribute__((section("xpu_releases"), used, aligned(8))) = {function_, space_, kind_};

/* At file level: the function releases entries of that space and kind, which are not uncharged by their
 * bytes. Imported and exported ones are always released as such. */
#define XPU_RELEASE(space_, kind_, function_) XPU_RELEASE_RECORD(function_, space_, kind_)
/* At file level: the function is called before any entry of that space is released, for dependent objects. */
#define XPU_BEFORE_RELEASE(space_, function_) XPU_RELEASE_RECORD(function_, space_, -1)

/* Releases the memory of an entry that was taken out of the table. */
void xpu_entry_release(const struct xpu_entry *entry);
/* Puts the entry into the table, and releases a stale one that was there under the same key. False: no
 * memory. */
bool xpu_entry_put(struct xpu_entry *entry);
