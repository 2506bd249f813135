/*
 * This process's slot: taken at its first change, and changed under its lock. Independent of the reasons for
 * changes.
 */
#pragma once

#include "process_state.h"
#include "slot.h"

/* This process's slot, taken at the first call; false with `*why` if there is none. A program that gives up
 * its rights to open files (chroot, seccomp) keeps its earlier slot. A forked child has none until it takes
 * its own. */
bool xpu_slot_take(const char **why);
/* The inode number of this process's PID namespace; 0: unknown. */
uint32_t xpu_pid_namespace(void);

/* A change of this process's slot. The begin takes the slot, if it has none yet, and the lock; false if one
 * of them is not available. The end unlocks, and does the deferred frees. */
bool xpu_change_begin(void);
void xpu_change_end(void);
/* This process's place for the device; only between begin and end. */
static inline struct xpu_slot_device *xpu_process_device(int device) {
    return xpu_slot_device_at((unsigned)xpu_process_slot(), device);
}
/* Takes bytes off one kind and off the total, between begin and end; at most as many as there are. */
void xpu_uncharge_locked(int device, enum xpu_kind kind, uint64_t bytes);

/* Rounded up to whole grains; no size overflows. */
static inline uint64_t xpu_grains(uint64_t bytes) { return bytes / XPU_GRAIN + (bytes % XPU_GRAIN != 0); }
