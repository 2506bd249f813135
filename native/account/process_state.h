/*
 * The state of this process that a forked child must not inherit: its lock, the number of its slot, and the
 * deferred frees of signal handlers. It knows nothing of the shared pages.
 */
#pragma once

#include "abi/page.h"

#include <stdbool.h>

/* The lock on all changes of this process to its slot. False, without waiting, if this very thread holds it:
 * a signal handler has interrupted a call of ours. False too if another thread holds it for half a minute:
 * that thread may have been killed (process_state.c says how). */
bool xpu_lock(void);
void xpu_unlock(void);
#define XPU_NO_LOCK                                                                                          \
    "this program's first call is not over: a signal handler has interrupted it, or it was killed in vfork"

/* This process's slot, or -1. Set it with the lock held. */
int xpu_process_slot(void);
void xpu_process_slot_set(unsigned slot);

/* A deferred free. A signal handler that frees memory while its thread holds the lock cannot change the slot.
 * The free is remembered here, and the holder of the lock carries it out at its end. */
void xpu_defer_free(int device, enum xpu_kind kind, uint64_t bytes);
/* True, once, if there are deferred frees. */
bool xpu_deferred_frees(void);
/* Bytes of them; the caller frees them. */
uint64_t xpu_deferred_take(int device, enum xpu_kind kind);
