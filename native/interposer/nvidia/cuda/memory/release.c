/*
 * Releases entries, by the functions that the linker has gathered. There are few, and a look at each costs
 * less than a lock.
 */
#include "release.h"

extern const struct xpu_release __start_xpu_releases[] __attribute__((visibility("hidden")));
extern const struct xpu_release __stop_xpu_releases[] __attribute__((visibility("hidden")));

static void uncharge(const struct xpu_entry *entry) {
    xpu_uncharge(entry->device, (enum xpu_kind)entry->kind, entry->bytes);
}

void xpu_entry_release(const struct xpu_entry *entry) {
    xpu_release_function *release = uncharge;
    for (const struct xpu_release *at = __start_xpu_releases; at < __stop_xpu_releases; at++) {
        if (at->space != entry->space)
            continue;
        if (at->kind < 0)
            at->function(entry);
        else if (at->kind == entry->kind)
            release = at->function;
    }
    if (entry->flags & XPU_IMPORTED)
        xpu_imported(-1);
    else if (entry->flags & XPU_EXPORTED)
        xpu_uncharge_exported(entry->device, (enum xpu_kind)entry->kind, entry->bytes);
    else
        release(entry);
}

bool xpu_entry_put(struct xpu_entry *entry) {
    struct xpu_entry replaced;
    if (!xpu_table_put(entry, &replaced))
        return false;
    if (replaced.serial)
        xpu_entry_release(&replaced);
    return true;
}
