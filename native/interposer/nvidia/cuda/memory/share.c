/*
 * Exports, imports, and references to memory with several.
 */
#define _GNU_SOURCE
#include "share.h"
#include "cuda/driver/real.h"
#include "release.h"

#include <pthread.h>

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void forget(void) { opening = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }
XPU_AT_FORK(forget)

/* Nothing is charged here for a pool's pointer or another's memory. */
static bool mark(struct xpu_entry *entry, void *fresh) {
    *(bool *)fresh = entry->bytes && !(entry->flags & (XPU_EXPORTED | XPU_IMPORTED));
    if (*(bool *)fresh)
        entry->flags |= XPU_EXPORTED;
    return true;
}

static bool unmark(struct xpu_entry *entry, void *marked) {
    *(bool *)marked = (entry->flags & XPU_EXPORTED) != 0;
    entry->flags &= (uint16_t)~XPU_EXPORTED;
    return true;
}

bool xpu_share_mark(enum xpu_space space, uint64_t key) {
    struct xpu_entry entry;
    bool fresh = false;
    if (xpu_table_change(space, key, mark, &fresh, &entry) && fresh)
        xpu_exported(entry.device, (int64_t)entry.bytes);
    return fresh;
}

void xpu_share_unmark(enum xpu_space space, uint64_t key) {
    struct xpu_entry entry;
    bool marked = false;
    if (xpu_table_change(space, key, unmark, &marked, &entry) && marked)
        xpu_exported(entry.device, -(int64_t)entry.bytes);
}

static bool hold(struct xpu_entry *entry, void *unused) {
    (void)unused;
    entry->count++;
    return true;
}

struct dropping {
    uint64_t serial;
    bool last;
};

static bool drop(struct xpu_entry *entry, void *data) {
    struct dropping *dropping = data;
    dropping->last = entry->serial == dropping->serial && --entry->count == 0;
    return !dropping->last;
}

bool xpu_share_hold(enum xpu_space space, uint64_t key, uint64_t *serial) {
    struct xpu_entry entry = {0};
    bool known = xpu_table_change(space, key, hold, NULL, &entry);
    *serial = entry.serial;
    return known;
}

void xpu_share_drop(enum xpu_space space, uint64_t key, uint64_t serial) {
    struct xpu_entry entry;
    struct dropping dropping = {.serial = serial};
    if (xpu_table_change(space, key, drop, &dropping, &entry) && dropping.last)
        xpu_entry_release(&entry);
}

/* Called before the call: from now on the end of the memory's maker does not free it. */
void xpu_share_open_begin(void) { xpu_imported(1); }

void xpu_share_open_end(CUresult result, struct xpu_entry *entry) {
    struct xpu_entry replaced;
    uint64_t serial;
    bool again = false;
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&opening);
        again = xpu_share_hold((enum xpu_space)entry->space, entry->key, &serial);
        entry->flags |= XPU_IMPORTED;
        entry->count = 1;
        if (!again)
            (void)xpu_table_put(entry, &replaced);
        pthread_mutex_unlock(&opening);
    }
    if (result != CUDA_SUCCESS || again)
        xpu_imported(-1);
}
