/*
 * The overhead of a process on a device: what the driver counts to it beyond what the table knows, thus its
 * contexts, modules and fragmentation.
 */
#ifndef XPU_CUDA_RECONCILE_H
#define XPU_CUDA_RECONCILE_H

#include "../../cuda-api/cuda_api.h"
#include "../account.h"
#include "figure.h"

/* Asks the driver now and charges or gives back the difference, whatever the limit says. */
void xpu_reconcile(int device);
/* The same by who has one operation under way, which changes nothing meanwhile. */
void xpu_reconcile_within(int device);
/* The same if a second has passed since the last time. */
void xpu_reconcile_sometimes(int device);
/* After a free: the same, and also if nothing is left but an overhead that was read while there was more. */
void xpu_reconcile_freed(int device);
/* After small allocations have become more or less by `change` bytes: the same if that adds up. */
void xpu_reconcile_small(int device, int64_t change);

/* For what takes memory that only the driver knows (contexts, modules): begin, the real call, end. */
struct xpu_growth {
    int device;
    uint64_t reserved, free_before;
    uint64_t others_before; /* bytes that the container's other processes had */
    struct xpu_ids ids;     /* of the processes that the driver listed before */
    bool free_known, exact; /* exact: what was taken is by the driver's figure */
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
 * what it did. With another result it gives the reservation back and returns that result. */
CUresult xpu_growth_end(struct xpu_growth *growth, CUresult result, uint64_t *taken);
/* After the end of something that took `taken`: the overhead becomes what the driver says, or falls by that
 * much where it says nothing; `last`: nothing of this process is left on the device. */
void xpu_shrunk(int device, uint64_t taken, bool last);

#endif
