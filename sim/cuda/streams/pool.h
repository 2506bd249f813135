/*
 * Inside libcuda: pools of stream-ordered memory.
 */
#pragma once

#include "../core/memory.h"

/* Bytes by which a pool grows, as NVIDIA's do. If the device has less left, it grows by 2 MiB. */
#define POOL_STEP ((size_t)32 << 20)

struct CUmemPoolHandle_st {
    struct heap heap;
    CUmemPoolProps properties;
    uint64_t threshold;    /* bytes kept at a synchronisation */
    int reuse[3];          /* the three policies, by attribute */
    unsigned access;       /* bits of the other devices that may use it */
    unsigned live;         /* allocations, and pointers imported */
    bool permanent;        /* its location's default */
    bool imported;         /* nothing can be allocated from it */
    bool destroyed;        /* ends with the last allocation */
    struct backing *token; /* its name in other processes */
    CUmemoryPool next;
};

/* A range of a pool has been freed. */
void cuda_pool_freed(const struct range *old);
/* With the lock held: whether it is a pool, and not destroyed. */
bool cuda_is_pool(CUmemoryPool pool);
CUmemoryPool cuda_pool_new(const CUmemPoolProps *properties, CUdevice device, bool host);
void cuda_pool_delete(CUmemoryPool pool);
/* Its location returns to the default pool. */
void cuda_pool_replace(CUmemoryPool pool);
