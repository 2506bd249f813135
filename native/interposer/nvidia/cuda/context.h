/*
 * The contexts of this process, and what ends with them.
 */
#ifndef XPU_INTERPOSER_CONTEXT_H
#define XPU_INTERPOSER_CONTEXT_H

#include "table.h"

/* Keeps in the table what something new took as overhead, until the thing itself or its context ends. What is
 * there under its key has ended, and is uncharged; then, and without memory, false. */
bool xpu_overhead_keep(enum xpu_space space, uint64_t key, CUcontext context, int device, uint64_t taken);
/* Adds to that, or takes off, if it is there; false: it is not. */
bool xpu_overhead_change(enum xpu_space space, uint64_t key, int64_t change);
/* After its end, whatever context is current: it is taken off the device that it was on. */
void xpu_overhead_end(enum xpu_space space, uint64_t key);

#endif
