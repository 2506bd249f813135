/*
 * Calls that take memory which only the driver knows (cuCtxCreate, cuModuleLoad): begin, the real call, end;
 * and how what they took is kept.
 */
#ifndef XPU_INTERPOSER_GROWTH_H
#define XPU_INTERPOSER_GROWTH_H

#include "account/account.h"
#include "headers/cuda/cuda_api.h"
#include "reported.h"
#include "table.h"

struct xpu_growth {
    int device;
    uint64_t reserved;      /* bytes charged before the call */
    uint64_t free_before;   /* bytes of the card that nobody had */
    uint64_t others_before; /* bytes that the container's other processes had */
    struct xpu_ids ids;     /* of the processes that the driver listed before */
    bool free_known, exact; /* exact: the driver reported what was taken */
    bool alike;             /* two contexts, one after the other, were seen to take as much */
    bool context;           /* it is one that is made: what that takes lies within known bounds */
    bool shared;            /* another thread is making the very same, and counts it */
    bool assumed;           /* it takes what was expected: the driver is not asked */
};

/* Reserves what the call is expected to take; CUDA_ERROR_OUT_OF_MEMORY if that does not fit, and then there
 * is nothing to end. */
CUresult xpu_growth_begin(struct xpu_growth *growth, int device, uint64_t expected);
/* The same for what is known to take that much: the driver is not asked now, but at the next reading. */
CUresult xpu_growth_begin_assumed(struct xpu_growth *growth, int device, uint64_t taken);
/* After the real call. With CUDA_SUCCESS it asks the driver what was taken (*taken), and charges that; if it
 * does not fit, nothing of the growth is charged and CUDA_ERROR_OUT_OF_MEMORY returned, and the caller undoes
 * what it did. With another result it takes the reservation back and returns that result. */
CUresult xpu_growth_end(struct xpu_growth *growth, CUresult result, uint64_t *taken);

/* Keeps in the table what something new took as overhead, until the thing itself or its context ends. What is
 * there under its key has ended, and is uncharged; then, and without memory, false. */
bool xpu_overhead_keep(enum xpu_space space, uint64_t key, CUcontext context, int device, uint64_t taken);
/* Adds to that, or takes off, if it is there; false: it is not. */
bool xpu_overhead_change(enum xpu_space space, uint64_t key, int64_t change);
/* After its end, whatever context is current: it is taken off the device that it was on. */
void xpu_overhead_end(enum xpu_space space, uint64_t key);

#endif
