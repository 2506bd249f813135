/*
 * This process's charged device memory, by pointer or handle.
 *
 * Its locks are held for a few memory accesses, never over a call of the driver or of the account.
 */
#pragma once

#include "account/account.h"
#include "headers/cuda/cuda_api.h"

/* The kind of a key. The same number may be a pointer and a handle. */
enum xpu_space {
    XPU_POINTERS,    /* CUdeviceptr */
    XPU_ARRAYS,      /* CUarray */
    XPU_MIPMAPS,     /* CUmipmappedArray */
    XPU_ALLOCATIONS, /* CUmemGenericAllocationHandle */
    XPU_GRAPHS,      /* CUgraph, CUgraphExec */
    XPU_EXTERNALS,   /* CUexternalMemory; extra: its entry of XPU_IMPORTS */
    XPU_IMPORTS,     /* external memory, by a number of its own */
    XPU_CONTEXTS,    /* CUcontext; extra: its overhead; count: uses beyond the first */
    XPU_MODULES,     /* CUmodule, CUlibrary; extra: the same */
    XPU_MAPPINGS,    /* CUdeviceptr to which cuMemCreate's memory is mapped */
    XPU_ENDPOINTS,   /* CUlogicalEndpointId, of imported ones */
};

/* The part of an entry that every way to free it needs. */
enum xpu_entry_flag {
    XPU_EXPORTED = 0x8000, /* another process may have it open: xpu_uncharge_exported frees it */
    XPU_IMPORTED = 0x4000, /* another process's, without a charge here: xpu_imported(-1) ends it */
};

struct xpu_entry {
    uint64_t key;
    uint64_t serial;   /* of this entry; never used again for another */
    CUcontext context; /* the memory ends with it; NULL: it outlives contexts */
    uint64_t bytes;    /* charged */
    uint64_t extra;    /* the owner's own */
    uint32_t count;    /* the owner's own */
    uint16_t flags;    /* enum xpu_entry_flag, and the owner's own from 1 on */
    int8_t device;     /* index in the pages */
    uint8_t kind;      /* enum xpu_kind */
    uint8_t space;     /* enum xpu_space */
};

/* Puts it in and sets its serial. An entry under the same key is stale (the driver has reused the address):
 * it goes to *replaced, whose serial is 0 if there was none. False: no memory. */
bool xpu_table_put(struct xpu_entry *entry, struct xpu_entry *replaced);
/* A copy of the entry; false: unknown. */
bool xpu_table_find(enum xpu_space space, uint64_t key, struct xpu_entry *entry);
/* Takes the entry out if it still has this serial (0: any). Only one of several callers gets it. */
bool xpu_table_take(enum xpu_space space, uint64_t key, uint64_t serial, struct xpu_entry *entry);
/* Calls `change` with the entry under its lock. If that returns false, the entry is taken out, and *entry has
 * it as `change` left it. Returns false if the key is unknown. */
bool xpu_table_change(enum xpu_space space, uint64_t key, bool (*change)(struct xpu_entry *, void *),
                      void *data, struct xpu_entry *entry);
/* Takes out, one after another, the entries that `which` chooses (under a lock), and hands each to `each`. */
void xpu_table_remove_if(bool (*which)(const struct xpu_entry *, void *), void *data,
                         void (*each)(const struct xpu_entry *, void *));
/* The last serial given: entries made from now on have greater ones. */
uint64_t xpu_table_serial(void);
