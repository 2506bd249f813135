/*
 * Launches where nothing can be measured: the driver tells no times, or the process may start no thread.
 */
#ifndef XPU_INTERPOSER_UNMEASURED_H
#define XPU_INTERPOSER_UNMEASURED_H

#include "lane.h"

/* Waits until a launch may go; lane NULL: on the current context's device. */
void xpu_unmeasured_pass(const struct xpu_lane *lane, CUstream stream);
/* A launch goes that was let go as one that is measured, and is not. */
void xpu_unmeasured_launched(const struct xpu_lane *lane, CUstream stream);
/* The program has waited until nothing was left to do in a stream, or, in the current context, in any. */
void xpu_unmeasured_waited(CUstream stream);
void xpu_unmeasured_waited_for_all(void);

#endif
