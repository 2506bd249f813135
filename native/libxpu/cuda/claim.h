/*
 * A claim on memory: charged before the driver is asked, then kept in the table or given back.
 *
 *     struct xpu_claim claim;
 *     CUresult result = xpu_claim_here(&claim, XPU_LINEAR, bytes);
 *     if (result == CUDA_SUCCESS) {
 *         result = REAL(cuMemAlloc_v2)(pointer, bytes);
 *         result = xpu_claim_end(&claim, result, XPU_POINTERS, result == CUDA_SUCCESS ? *pointer : 0);
 *     }
 *
 * From a claim that succeeded to its end an operation is under way, which reconciling waits out: each claim
 * must end. What is freed is given back after the driver has freed it: xpu_free_begin, the real call,
 * xpu_free_end. All calls may be made by any thread and hold no lock over a call of the driver.
 */
#ifndef XPU_CUDA_CLAIM_H
#define XPU_CUDA_CLAIM_H

#include "sizes.h"
#include "table.h"

enum { XPU_STEP = 2 << 20 }; /* bytes in which the driver takes memory */

/* What the driver will take for one allocation of that size: from 2 MiB on whole steps of 2 MiB. What is
 * smaller shares such a step with others, and is claimed as it is. */
static inline uint64_t xpu_whole_steps(uint64_t bytes) {
    return bytes < XPU_STEP ? bytes : xpu_whole(bytes, XPU_STEP);
}

struct xpu_claim {
    uint64_t bytes;
    CUcontext context;
    int device; /* index in the pages */
    enum xpu_kind kind;
};

/* Charges on the device of the thread's current context, to which the memory will belong. Errors:
 * CUDA_ERROR_OUT_OF_MEMORY beyond the limit; CUDA_ERROR_NOT_PERMITTED; the driver's own without a context. */
CUresult xpu_claim_here(struct xpu_claim *claim, enum xpu_kind kind, uint64_t bytes);
/* Charges on a device, for memory that belongs to no context. */
CUresult xpu_claim_on(struct xpu_claim *claim, CUdevice device, enum xpu_kind kind, uint64_t bytes);
/* The same by the pages' index. */
CUresult xpu_claim_at(struct xpu_claim *claim, int device, enum xpu_kind kind, uint64_t bytes);
/* Brings the claim to what the driver has really taken; CUDA_ERROR_OUT_OF_MEMORY, with the claim unchanged,
 * where more does not fit. */
CUresult xpu_claim_resize(struct xpu_claim *claim, uint64_t bytes);

/* Ends it. With CUDA_SUCCESS the claim is kept in the table under `key`; else it is given back. Returns
 * `result`, or CUDA_ERROR_OUT_OF_MEMORY where the table has no room: the caller then frees at the driver. */
CUresult xpu_claim_end(struct xpu_claim *claim, CUresult result, enum xpu_space space, uint64_t key);
/* The same with flags, count and extra of one's own: only these are taken from `own`. */
CUresult xpu_claim_end_with(struct xpu_claim *claim, CUresult result, enum xpu_space space, uint64_t key,
                            const struct xpu_entry *own);

/* Before the driver frees `key`. What is unknown is known by entry->serial == 0, and changes nothing. */
void xpu_free_begin(struct xpu_entry *entry, enum xpu_space space, uint64_t key);
/* After it: gives back if the driver has freed it and no one else has given it back. */
void xpu_free_end(struct xpu_entry *entry, CUresult result);

/* Gives back what an entry that was taken out of the table stands for. */
void xpu_entry_give_back(const struct xpu_entry *entry);

/* For changes of memory that are neither: between begin and end reconciling leaves the overhead alone. */
void xpu_operation_begin(void);
void xpu_operation_end(void);

#endif
