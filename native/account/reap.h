/*
 * What dead processes held goes back to the container. It knows which slot is this process's only to leave it
 * alone.
 */
#ifndef XPU_ACCOUNT_REAP_H
#define XPU_ACCOUNT_REAP_H

#include "abi/page.h"

#include <stdbool.h>

/* Frees what dead processes held. If another process is at it, waits for it, as long as xpu_cleaner_lock. */
void xpu_reap(void);
/* The cleaner's byte; false if it was not to be had in some 20 ms: who holds it may be stopped. */
bool xpu_cleaner_lock(int fd);
/* Brings a slot that the caller owns back to nothing, but for what it exported where that is to be kept. */
void xpu_slot_clean(unsigned slot, bool keep_exported);
/* Whether any process of the container has memory of another one open. */
bool xpu_any_imports(void);
/* The next slot from `slot` on, other than this process's own, that is marked; the number of slots if there
 * is none. */
unsigned xpu_next_marked(unsigned slot);

#endif
