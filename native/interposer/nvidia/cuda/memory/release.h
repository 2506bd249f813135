/*
 * What an entry of the table stands for is released: uncharged, unless the file that made it has registered a
 * way of its own. So lower files end what upper ones made, and call none of them.
 */
#ifndef XPU_INTERPOSER_RELEASE_H
#define XPU_INTERPOSER_RELEASE_H

#include "table.h"

typedef void xpu_release_function(const struct xpu_entry *entry);

struct xpu_release {
    xpu_release_function *function;
    enum xpu_space space;
    int kind; /* enum xpu_kind; -1: any, and the function is called besides */
};

#define XPU_RELEASE_RECORD(function_, space_, kind_)                                                         \
    static const struct xpu_release xpu_release_##function_##_##space_                                       \
        __attribute__((section("xpu_releases"), used, aligned(8))) = {function_, space_, kind_};

/* At file level: entries of that space and kind are released by the function, and not uncharged by their
 * bytes. Imported and exported ones are released as such in any case. */
#define XPU_RELEASE(space_, kind_, function_) XPU_RELEASE_RECORD(function_, space_, kind_)
/* At file level: the function is called before any entry of that space is released, for what depends on it.
 */
#define XPU_BEFORE_RELEASE(space_, function_) XPU_RELEASE_RECORD(function_, space_, -1)

/* Releases what an entry that was taken out of the table stands for. */
void xpu_entry_release(const struct xpu_entry *entry);
/* Puts the entry into the table, and releases a stale one that was there under the same key. False: no
 * memory. */
bool xpu_entry_put(struct xpu_entry *entry);

#endif
