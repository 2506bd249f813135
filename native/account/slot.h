/*
 * The slots of the usage page: their places, and the locks that show which owners live. It knows nothing of
 * totals, and not which slot is this process's. All of it needs open pages (xpu_pages_open).
 */
#pragma once

#include "pages.h"

uint8_t *xpu_mark(unsigned slot);
struct xpu_slot *xpu_slot_at(unsigned slot);
struct xpu_slot_device *xpu_slot_device_at(unsigned slot, int device);

/* The next marked slot from there on; the number of slots if there is none. */
unsigned xpu_slot_marked(unsigned slot);

/* Locks a free slot, the first from `start` on; -1 if there is none. A marked slot is not free, whether its
 * owner lives or not: xpu_reap frees it. */
int xpu_slot_find(int fd, unsigned start);

/* Locks on bytes of the usage page: a slot's, or the cleaner's (byte slot_count). They are taken without
 * waiting, and held as long as the open file description of `fd`. */
bool xpu_byte_lock(int fd, unsigned byte);
void xpu_byte_unlock(int fd, unsigned byte, unsigned count);
/* Whether another open file description has it; true if that is unknown. */
bool xpu_byte_held(int fd, unsigned byte);
