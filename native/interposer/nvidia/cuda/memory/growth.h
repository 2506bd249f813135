/*
 * Calls that take memory which only the driver knows (cuCtxCreate, cuModuleLoad): begin, the real call, end;
 * and the record of their memory.
 */
#pragma once

#include "account/account.h"
#include "headers/cuda/cuda_api.h"
#include "reported.h"
#include "table.h"

struct xpu_growth {
    int device;
    uint64_t reserved;      /* bytes charged before the call */
    uint64_t free_before;   /* free bytes of the card */
    uint64_t others_before; /* bytes that the container's other processes had */
    struct xpu_ids ids;     /* of the processes that the driver listed before */
    bool free_known, exact; /* exact: the driver reported the taken bytes */
    bool alike;             /* two contexts in a row took the same */
    bool context;           /* the call makes a context, whose memory has known bounds */
    bool shared;            /* another thread makes the same context, and counts it */
    bool assumed;           /* the expected size counts: the driver is not asked */
};

/* Reserves the call's expected memory. CUDA_ERROR_OUT_OF_MEMORY if that does not fit: there is nothing to end
 * then. */
CUresult xpu_growth_begin(struct xpu_growth *growth, int device, uint64_t expected);
/* The same for a call of known size: the driver is not asked now, but at the next reading. */
CUresult xpu_growth_begin_assumed(struct xpu_growth *growth, int device, uint64_t taken);
/* After the real call. With CUDA_SUCCESS it asks the driver for the taken bytes (*taken), and charges them;
 * if they do not fit, nothing of the growth is charged and CUDA_ERROR_OUT_OF_MEMORY returned, and the caller
 * undoes its call. With another result it takes the reservation back and returns that result. */
CUresult xpu_growth_end(struct xpu_growth *growth, CUresult result, uint64_t *taken);

/* Keeps an object's overhead in the table, until the object itself or its context ends. An entry with the
 * same key has ended, and is uncharged. False in this case, and without memory. */
bool xpu_overhead_keep(enum xpu_space space, uint64_t key, CUcontext context, int device, uint64_t taken);
/* Changes that by `change`, if it exists. False: it does not. */
bool xpu_overhead_change(enum xpu_space space, uint64_t key, int64_t change);
/* Called after its end, with any context current: subtracts it from its own device. */
void xpu_overhead_end(enum xpu_space space, uint64_t key);
