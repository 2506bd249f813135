/*
 * The container's two pages: opened and checked once, then read in place. If they are missing or invalid,
 * callers get a sentence for people and refuse the device. It knows nothing of slots and totals.
 */
#pragma once

#include "abi/page.h"

#include <stdbool.h>
#include <stddef.h>

/* The container's pages, once they are open and found valid. */
struct xpu_pages {
    const struct xpu_quota *quota;
    struct xpu_usage *usage;
};

/* Maps and checks the pages at the first call in this process. NULL, with `*why` (a sentence for people: the
 * fault and its remedy), if the container has no valid ones. The answer does not change, unless this process
 * lacks descriptors or memory: then the next call tries again. */
const struct xpu_pages *xpu_pages_find(const char **why);
/* quota: NULL until they are open; atomic */
extern struct xpu_pages xpu_pages_opened __attribute__((visibility("hidden")));

static inline const struct xpu_pages *xpu_pages_open(const char **why) {
    return __builtin_expect(__atomic_load_n(&xpu_pages_opened.quota, __ATOMIC_ACQUIRE) != NULL, 1)
               ? &xpu_pages_opened
               : xpu_pages_find(why);
}
/* The same, only after xpu_pages_open has succeeded in this process. */
static inline const struct xpu_pages *xpu_pages(void) { return &xpu_pages_opened; }

/* Index of a device in the pages by its 16-byte UUID; -1: not granted to this container. */
int xpu_device_index(const uint8_t uuid[16]);
/* Whether this is such an index. */
bool xpu_is_device(int device);

/* Bytes, read now. XPU_NO_LIMIT: no limit; 0: the device is not granted, or the pages are not valid. */
static inline uint64_t xpu_limit(int device) {
    const struct xpu_quota *quota = __atomic_load_n(&xpu_pages_opened.quota, __ATOMIC_ACQUIRE);
    return quota && device >= 0 && (unsigned)device < quota->device_count
               ? __atomic_load_n(&quota->limits[device].memory, __ATOMIC_RELAXED)
               : 0;
}

/* Whether this process can open no file at the moment. */
bool xpu_lacks_descriptors(void);
/* An open description of the usage page, which the caller closes with xpu_close. -1: the path no longer leads
 * to the page. */
int xpu_usage_descriptor(void);
void xpu_close(int fd);
