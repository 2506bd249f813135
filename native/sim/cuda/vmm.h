/*
 * Inside libcuda: what cuMemCreate makes.
 */
#ifndef XPU_SIM_CUDA_VMM_H
#define XPU_SIM_CUDA_VMM_H

#include "memory.h"

/* It lives while it has handles or mappings; its address is the handle's value. */
struct allocation {
    struct backing *backing;
    CUmemAllocationProp properties;
    unsigned handles, maps;
    struct multicast *multicast; /* NULL: it is memory */
};

/* With the lock held. NULL: there is no such allocation, or no handle to it any more. */
struct allocation *cuda_allocation(CUmemGenericAllocationHandle handle);
/* Takes over the backing; NULL: no memory. */
struct allocation *cuda_allocation_new(struct backing *backing, const CUmemAllocationProp *properties);
void cuda_allocation_mapped(struct allocation *allocation);
/* One mapping or one handle less. */
void cuda_allocation_unmapped(struct allocation *allocation);
void cuda_allocation_released(struct allocation *allocation);
/* multicast.c: the end of an object. */
void cuda_multicast_end(struct multicast *multicast);

#endif
