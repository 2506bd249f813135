/*
 * Memory that the driver has reserved for a CUmemoryPool, or for the graphs of a device, used or not
 * (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT).
 *
 * The driver reports one sum for each, at no certain moment of a call. So the account holds the last report,
 * plus the admitted bytes of calls under way that may not be in the report yet: never both. Readings are
 * numbered at their begin, and an older one never replaces a newer one: so the current report has every call
 * that is complete. No lock is held over a call of the driver.
 */
#pragma once

#include "reservation.h"

struct xpu_pool_memory {
    struct xpu_pool_memory *next; /* never freed; those of destroyed pools are reused */
    CUmemoryPool handle;          /* NULL: of graphs */
    CUdevice device;
    bool counted;       /* false: it is of the host, or another process's */
    int index;          /* of the device in the pages; -1: it is not the container's */
    enum xpu_kind kind; /* XPU_POOL, XPU_GRAPH */
    uint64_t read;      /* number of the reading that was begun last; atomic */
    uint64_t
        moved; /* number of times that memory was, or may have been, taken from graphs that had it; atomic */
    uint64_t shared, stream; /* footprint.c's own */

    /* Under the lock: */
    uint64_t settled, applied; /* bytes, and the number of their reading */
    uint64_t seen;             /* all reports, or'ed: the lowest bit shows the steps of its growth; atomic */
    uint64_t held;             /* bytes of it in the account */
    uint64_t pending;          /* bytes charged for calls under way */
    uint64_t promised;         /* unused bytes that calls under way were admitted for */
    uint64_t admissions;       /* calls ever admitted, or tried */
    uint32_t calls;            /* under way */
    uint32_t readers;          /* that may be asking the driver about it */
    uint32_t pointers;         /* handed out and not freed */
    bool closed, destroyed;    /* closed: being destroyed, or destroyed */
    bool exported;
};

/* The entry of a pool (NULL: of the device's graphs); NULL: unknown. */
struct xpu_pool_memory *xpu_pool_memory_find(CUmemoryPool pool, CUdevice device);
/* The same, made if it is unknown; NULL: no memory. */
struct xpu_pool_memory *xpu_pool_memory_of(CUmemoryPool pool, CUdevice device, bool counted);

/* A call that allocates from a pool, and may make it grow. */
struct xpu_pool_growth {
    struct xpu_pool_memory *pool;
    uint64_t charged, promised;
    uint64_t before; /* bytes reserved before the call */
    uint64_t number; /* of the call; 0: others were under way */
};

/* Called before the call: admits it if the pool has `bytes` unused, or may grow by them; otherwise
 * CUDA_ERROR_OUT_OF_MEMORY, after trimming. An admitted call must end with xpu_pool_growth_end. A launch of a
 * graph cannot be undone. It is never admitted for memory that looks unused while the account has more. */
CUresult xpu_pool_growth_begin(struct xpu_pool_growth *growth, struct xpu_pool_memory *pool, uint64_t bytes);
/* Called after it: sets the account to the driver's report. False: it took more than it was admitted for, and
 * that is beyond the limit. */
bool xpu_pool_growth_end(struct xpu_pool_growth *growth);
/* Called after that: bytes by which the pool has grown for this call alone; 0 if there were others. */
uint64_t xpu_pool_growth_alone(const struct xpu_pool_growth *growth);

/* Sets the account to the driver's report of one pool. */
void xpu_pool_memory_refresh(struct xpu_pool_memory *pool);
/* The same for each pool of one device of the pages, or of all: -1. */
void xpu_pool_memories_refresh(int device);
bool xpu_pool_memories_trim(int device);
/* A pool has more than its use and its release threshold: a later synchronisation may give that back. */
bool xpu_pool_memories_have_spare(void);

/* A pointer of the pool is handed out, or freed. */
void xpu_pool_memory_pointer(struct xpu_pool_memory *pool, int change);
/* Other processes may have the pool's memory open. */
void xpu_pool_memory_exported(struct xpu_pool_memory *pool);
/* After the return no thread asks the driver about the pool any more. */
void xpu_pool_memory_close(struct xpu_pool_memory *pool);
/* The end: destroyed at the driver, or (not destroyed) open again. */
void xpu_pool_memory_closed(struct xpu_pool_memory *pool, bool destroyed);
