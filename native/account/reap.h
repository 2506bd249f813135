/*
 * Gives dead processes' memory back to the container. It knows this process's slot only to leave it alone.
 */
#pragma once

#include "abi/page.h"

#include <stdbool.h>

/* Frees the memory of dead processes. If another process is doing so, waits for it, as long as
 * xpu_cleaner_lock. */
void xpu_reap(void);
/* The cleaner's byte; false if it was not free in some 20 ms: its holder may be stopped. */
bool xpu_cleaner_lock(int fd);
/* Empties a slot that the caller owns, except for exported memory that must be kept. */
void xpu_slot_clean(unsigned slot, bool keep_exported);
/* Whether any process of the container has memory of another one open. */
bool xpu_any_imports(void);
/* The next slot from `slot` on, other than this process's own, that is marked; the number of slots if there
 * is none. */
unsigned xpu_next_marked(unsigned slot);
