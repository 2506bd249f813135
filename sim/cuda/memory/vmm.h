/*
 * Inside libcuda: the allocations of cuMemCreate.
 */
#pragma once

#include "../core/memory.h"

/* It lives while it has handles or mappings; its address is the handle's value. */
struct allocation {
    struct backing *backing;
    CUmemAllocationProp properties;
    unsigned handles, maps;
    struct multicast *multicast; /* NULL: it is memory */
};

struct multicast {
    uint32_t devices, added; /* their number, and the added ones by bit */
    struct bound *bound;
};

/* allocations.c */
/* With the lock held. NULL: there is no such allocation, or no handle to it any more. */
struct allocation *cuda_allocation(CUmemGenericAllocationHandle handle);
/* Takes over the backing; NULL: no memory. */
struct allocation *cuda_allocation_new(struct backing *backing, const CUmemAllocationProp *properties);
void cuda_allocation_mapped(struct allocation *allocation);
/* Removes one mapping or one handle. */
void cuda_allocation_unmapped(struct allocation *allocation);
void cuda_allocation_released(struct allocation *allocation);
/* The memory of a range that is mapped to it. */
void cuda_range_unmapped(const struct range *old);
/* Lists the memory bound to an object of `whole` bytes. */
struct bound;
CUresult cuda_bind(struct bound **list, size_t whole, size_t offset, struct allocation *memory,
                   size_t memory_offset, size_t size);
CUresult cuda_unbind(struct bound **list, CUdevice device, size_t offset, size_t size);
void cuda_bound_end(struct bound **list);
