/*
 * A reservation: memory is charged before the driver is asked, then kept in the table or uncharged. Most
 * functions are XPU_ALLOCATES or XPU_FREES as a whole.
 *
 * From a successful reservation to its end an operation is under way, and the driver's reports cannot be
 * compared with the account: each reservation must end. Freed memory is uncharged after the driver has freed
 * it: xpu_free_begin, the real call, xpu_free_end. Any thread may make all calls. They hold no lock over a
 * call of the driver.
 */
#pragma once

#include "sizes.h"
#include "table.h"

enum { XPU_STEP = 2 << 20 }; /* bytes in which the driver takes memory */

/* The driver's memory for one allocation of that size: from 2 MiB on whole steps of 2 MiB. A smaller one
 * shares such a step with others, and is reserved with its own size. */
static inline uint64_t xpu_round_up_to_step(uint64_t bytes) {
    return bytes < XPU_STEP ? bytes : xpu_round_up(bytes, XPU_STEP);
}

struct xpu_reservation {
    uint64_t bytes;
    CUcontext context;
    int device; /* index in the pages */
    enum xpu_kind kind;
};

/* Charges on the device of the thread's current context, to which the memory will belong. Errors:
 * CUDA_ERROR_OUT_OF_MEMORY beyond the limit; CUDA_ERROR_NOT_PERMITTED; the driver's own without a context. */
CUresult xpu_reserve_here(struct xpu_reservation *reservation, enum xpu_kind kind, uint64_t bytes);
/* Charges on a device, for memory that belongs to no context. */
CUresult xpu_reserve_on(struct xpu_reservation *reservation, CUdevice device, enum xpu_kind kind,
                        uint64_t bytes);
/* The same by the pages' index. */
CUresult xpu_reserve_at(struct xpu_reservation *reservation, int device, enum xpu_kind kind, uint64_t bytes);
/* Sets it to the memory that the driver has really taken. CUDA_ERROR_OUT_OF_MEMORY, with the reservation
 * unchanged, if more does not fit. */
CUresult xpu_reservation_resize(struct xpu_reservation *reservation, uint64_t bytes);

/* Ends it. With CUDA_SUCCESS the bytes are kept in the table under `key`; otherwise they are uncharged.
 * Returns `result`, or CUDA_ERROR_OUT_OF_MEMORY if there is no memory for the table: the caller then frees at
 * the driver. */
CUresult xpu_reservation_end(struct xpu_reservation *reservation, CUresult result, enum xpu_space space,
                             uint64_t key);
/* The same with the caller's flags, count and extra: only these are taken from `own`. */
CUresult xpu_reservation_end_with(struct xpu_reservation *reservation, CUresult result, enum xpu_space space,
                                  uint64_t key, const struct xpu_entry *own);

/* A whole interposed function that allocates in the current context: the charge, the call, and their results.
 * `key_` is the call's new object; `undo_` frees it at the driver if it cannot be kept. */
#define XPU_ALLOCATES(kind_, bytes_, call_, space_, key_, undo_)                                             \
    do {                                                                                                     \
        struct xpu_reservation reservation_;                                                                 \
        CUresult result_ = xpu_reserve_here(&reservation_, kind_, bytes_);                                   \
        if (result_ != CUDA_SUCCESS)                                                                         \
            return result_;                                                                                  \
        CUresult made_ = call_;                                                                              \
        result_ = xpu_reservation_end(&reservation_, made_, space_,                                          \
                                      made_ == CUDA_SUCCESS ? (uintptr_t)(key_) : 0);                        \
        if (made_ == CUDA_SUCCESS && result_ != CUDA_SUCCESS)                                                \
            (void)undo_;                                                                                     \
        return result_;                                                                                      \
    } while (0)

/* Called before the driver frees `key`. An unknown key has entry->serial == 0, and changes nothing. */
void xpu_free_begin(struct xpu_entry *entry, enum xpu_space space, uint64_t key);
/* Called after it: releases the entry if the driver has freed it and no other thread has released it. */
void xpu_free_end(struct xpu_entry *entry, CUresult result);
/* A whole interposed function that frees. */
#define XPU_FREES(space_, key_, call_)                                                                       \
    do {                                                                                                     \
        struct xpu_entry entry_;                                                                             \
        xpu_free_begin(&entry_, space_, (uintptr_t)(key_));                                                  \
        CUresult result_ = call_;                                                                            \
        xpu_free_end(&entry_, result_);                                                                      \
        return result_;                                                                                      \
    } while (0)
