/*
 * Inside libcuda: device memory, from the driver's memory to a program's addresses.
 *
 * A backing is memory that the driver counts for this process. Its bytes are in a file, so that they can be
 * mapped in several places and by several processes. A heap cuts backings into spans: small allocations share
 * 2 MiB of a context's, stream-ordered ones their pool's reservation. A range is memory with a program's
 * address. One lock, `cuda_memory`, protects all of it. It is never held during a wait for work.
 */
#pragma once

#include "library.h"

#include <pthread.h>

enum { GRAIN = 512 };
#define PAGE ((size_t)2 << 20) /* the driver allocates memory in these */

extern pthread_mutex_t cuda_memory;
/* Ends a call that holds the lock, with its result. */
static inline CUresult cuda_leave(CUresult result) {
    pthread_mutex_unlock(&cuda_memory);
    return result;
}

/* Up to the next multiple of a power of two; 0 if there is none. */
static inline size_t round_up(size_t size, size_t to) {
    return size > SIZE_MAX - (to - 1) ? 0 : (size + to - 1) & ~(to - 1);
}

/* ---- backing.c ---- */

struct backing {
    uint64_t id;     /* the driver's */
    size_t size;     /* bytes */
    int data;        /* file of the bytes; -1: this process's own */
    uint64_t offset; /* in it */
    uint64_t key[2]; /* of a shared backing */
    CUdevice device;
    bool host, shared;
    unsigned references;
};

/* Takes `size` bytes with one reference, for a context, or (NULL) for a device, outliving contexts. */
CUresult cuda_take(CUcontext context, CUdevice device, size_t size, bool host, struct backing **backing);
/* The function that gives back unused memory of a device when the driver has no more. True: it gave some
 * back. Called with the lock held. */
void cuda_when_short(bool (*give)(CUdevice device));
void cuda_hold(struct backing *backing);
void cuda_drop(struct backing *backing);
/* Maps the bytes at an address: `at`, which must be free or reserved, or (0) wherever there is space, aligned
 * to 2 MiB. 0 if that is impossible. */
uintptr_t cuda_map(const struct backing *backing, size_t offset, size_t size, uintptr_t at);
/* Addresses without bytes, aligned, and near `hint` if that is free. 0: none. */
uintptr_t cuda_reserve(size_t size, size_t alignment, uintptr_t hint);
void cuda_unmap(uintptr_t start, size_t size);
/* The addresses stay reserved. */
void cuda_unmap_only(uintptr_t start, size_t size);
/* Tells the driver the place of the bytes, so that others can open them. Sets `key`. */
CUresult cuda_share(struct backing *backing);
/* Shared memory, by its key or by a descriptor; *flags as in struct sim_opened's `own`. */
CUresult cuda_open(const uint64_t *key, int handle, struct backing **backing, bool *own);
CUresult cuda_export(struct backing *backing, int *handle);

/* ---- heap.c ---- */

struct segment;

/* A part of a segment. */
struct span {
    struct segment *segment;
    size_t offset, size;
    bool used;
    struct span *previous, *next;           /* by offset */
    struct span *free_previous, *free_next; /* of the segment's free ones */
};

/* A backing that is cut into spans. */
struct segment {
    struct heap *heap;
    struct backing *backing;
    uintptr_t place;
    size_t used;             /* bytes */
    struct pending *pending; /* the work before the frees */
    struct span *first, *free;
    struct segment *previous, *next;
};

struct heap {
    CUcontext context; /* NULL: of the device */
    CUdevice device;
    bool host;
    size_t step;  /* bytes of each growth */
    size_t limit; /* the most bytes; 0: all there are */
    size_t reserved, used, reserved_high, used_high;
    struct segment *segments;
};

CUresult cuda_heap_take(struct heap *heap, size_t size, struct span **span);
/* `after`: the work that may still use the memory; NULL: none. */
void cuda_heap_give(struct span *span, const struct mark *after);
/* Finds the empty segments that wait for no work any more. */
void cuda_heap_refresh(struct heap *heap);
/* Gives empty segments back, except for `keep` bytes; `all`: also those that wait for work. */
void cuda_heap_trim(struct heap *heap, size_t keep, bool all);
/* No part of it waits for a context's work any more. */
void cuda_heap_forget_work(struct heap *heap, CUcontext context);
/* Frees all of it, used or not. */
void cuda_heap_clear(struct heap *heap);
static inline uintptr_t span_address(const struct span *span) { return span->segment->place + span->offset; }

/* ---- ranges.c ---- */

enum range_kind {
    RANGE_LINEAR, /* cuMemAlloc */
    RANGE_ARRAY,  /* bytes of an array: freed with it */
    RANGE_MANAGED,
    RANGE_POOL,
    RANGE_POOL_IMPORT,
    RANGE_IPC,
    RANGE_EXTERNAL,
    RANGE_MAPPED, /* cuMemMap: freed by cuMemUnmap only */
    RANGE_HOST,
    RANGE_REGISTERED, /* the program's own memory */
    RANGE_GRAPH,      /* of an alloc node that has run: freed by graph_memory_free */
    RANGE_RESERVED,   /* in the tree of reservations */
};

struct range {
    uintptr_t start;
    size_t size;
    enum range_kind kind;
    CUcontext context; /* it ends with this; NULL: with none */
    CUdevice device;   /* of the bytes; -1: host */
    struct backing *backing;
    uint64_t offset;   /* in it, of IPC memory */
    struct span *span; /* in place of a mapping of its own */
    uintptr_t mapping; /* the begin of that */
    size_t mapped;     /* its bytes; 0: none */
    CUmemoryPool pool;
    struct allocation *allocation; /* cuMemCreate's */
    uint64_t number;               /* of the allocation, unique in this process */
    unsigned flags;                /* of host memory; of access (CUmemAccess_flags) if mapped */
    unsigned opens;                /* of IPC memory */
    int preferred,
        prefetched; /* of managed memory: the preferred place and the last prefetch: a device, -1, -2 */
    void (*freed)(const struct range *old);   /* called afterwards; NULL: none */
    CUresult (*release)(CUdeviceptr pointer); /* in place of cuMemFree; NULL: not needed */
    struct range *previous, *next;
};

struct ranges {
    void *root;
    struct range *first;
};

extern struct ranges cuda_ranges, cuda_reservations;

/* The range with [address, address + size) in it; NULL: none. */
struct range *cuda_range_of(const struct ranges *ranges, uintptr_t address, size_t size);
/* Maps a part of the range's backing at an address of its own. Sets start and the mapping. */
CUresult cuda_map_part(struct range *range, uint64_t offset);
/* A copy of `made` in the tree. NULL: no memory, or it overlaps another one. */
struct range *cuda_range_add(struct ranges *ranges, const struct range *made);
/* Takes it out and frees it. */
void cuda_range_remove(struct ranges *ranges, struct range *range);
/* The same, with its bytes: unmaps, drops the backing or gives the span back. */
void cuda_range_free(struct range *range, const struct mark *after);

/* ---- memory.c ---- */

/* Linear memory of the context; `below`: the limit of its addresses, or 0. */
CUresult cuda_linear(CUcontext context, enum range_kind kind, size_t bytes, uintptr_t below,
                     CUdeviceptr *pointer);
/* With the lock held: frees memory of cuda_linear. */
void cuda_linear_free(struct range *range);
void cuda_forget_small(CUcontext context); /* NULL: of all */

/* ---- the others ---- */

/* With the lock held; NULL: all, after a fork. */
void cuda_forget_arrays(CUcontext context);
void cuda_forget_limits(CUcontext context);
void cuda_forget_backings(void);    /* backing.c: after a fork */
void cuda_forget_pools(void);       /* pool.c: after a fork */
void cuda_forget_allocations(void); /* vmm.c: after a fork */
void cuda_forget_endpoints(void);   /* endpoint.c: after a fork */
/* A context's work ends with the context. With the lock held. */
void cuda_pools_forget_work(CUcontext context);
/* Kinds of handles (CUmemAllocationHandleType) that can be had for a range. */
unsigned cuda_handle_types(const struct range *range); /* vmm.c: the kinds of handles
                                                          (CUmemAllocationHandleType) that a range can have */
/* location.c: CUDA_ERROR_INVALID_VALUE for none; a device is also 0 for host memory. */
CUresult cuda_location(const CUmemLocation *location, CUdevice *device, bool *host);
