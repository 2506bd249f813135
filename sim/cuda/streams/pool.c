/*
 * libcuda: stream-ordered memory. Freed memory stays with its pool, and goes back to the device at the next
 * synchronisation, except for the pool's release threshold.
 *
 * A free happens when the work before it on its stream is done. Until then nothing of it goes back, while
 * other streams may have it at once, because kernels touch nothing.
 */
#define _GNU_SOURCE
#include "pool.h"
#include "../core/work.h"

#include <stdlib.h>

static CUmemoryPool pools;
static CUmemoryPool current[SIM_MAX_DEVICES], host_current; /* NULL: the default one */
static CUmemoryPool defaults[SIM_MAX_DEVICES], host_default;

bool cuda_is_pool(CUmemoryPool pool) {
    for (CUmemoryPool each = pools; each; each = each->next)
        if (each == pool)
            return !each->destroyed;
    return false;
}

CUmemoryPool cuda_pool_new(const CUmemPoolProps *properties, CUdevice device, bool host) {
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->heap = (struct heap){.device = device, .host = host, .step = POOL_STEP};
    pool->heap.limit = properties->maxSize ? round_up(properties->maxSize, PAGE) : 0;
    pool->properties = *properties;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->next = pools;
    pools = pool;
    return pool;
}

void cuda_pool_delete(CUmemoryPool pool) {
    CUmemoryPool *link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    cuda_heap_clear(&pool->heap);
    cuda_drop(pool->token);
    free(pool);
}

void cuda_pool_freed(const struct range *old) {
    CUmemoryPool pool = old->pool;
    if (--pool->live == 0 && pool->destroyed)
        cuda_pool_delete(pool);
}

void cuda_forget_pools(void) {
    while (pools)
        cuda_pool_delete(pools);
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        current[i] = defaults[i] = NULL;
    host_current = host_default = NULL;
}

/* The default pool of a device, or of the host; NULL: no memory. */
static CUmemoryPool default_pool(CUdevice device, bool host) {
    CUmemoryPool *place = host ? &host_default : &defaults[device];
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, device}};
    if (!*place)
        *place = cuda_pool_new(&properties, device, host);
    if (*place)
        (*place)->permanent = true;
    return *place;
}

void cuda_pools_forget_work(CUcontext context) {
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        cuda_heap_forget_work(&pool->heap, context);
}

/* Some work is done: pools give back memory above their threshold that waits for no work. */
static void settle(void) {
    pthread_mutex_lock(&cuda_memory);
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        cuda_heap_trim(&pool->heap, pool->threshold, false);
    pthread_mutex_unlock(&cuda_memory);
}

/* The pools of a device give back their unused memory. True: there was some. With the lock held. */
static bool yield(CUdevice device) {
    bool any = false;
    for (CUmemoryPool pool = pools; pool; pool = pool->next) {
        size_t before = pool->heap.reserved;
        if (pool->heap.host || pool->heap.device != device)
            continue;
        cuda_heap_refresh(&pool->heap);
        cuda_heap_trim(&pool->heap, 0, false);
        any = any || pool->heap.reserved < before;
    }
    return any;
}

__attribute__((constructor)) static void prepare(void) {
    cuda_when_short(yield);
    cuda_after_waits(settle);
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUcontext context) {
    struct range made = {
        .size = bytes, .kind = RANGE_POOL, .device = context->device, .pool = pool, .freed = cuda_pool_freed};
    if (pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(cuda_heap_take(&pool->heap, bytes, &made.span));
    made.start = span_address(made.span);
    made.device = pool->heap.host ? -1 : pool->heap.device;
    if (!cuda_range_add(&cuda_ranges, &made)) {
        cuda_heap_give(made.span, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->live++;
    *pointer = made.start;
    return CUDA_SUCCESS;
}

/* From a captured stream the allocation is a node of the graph. */
static bool captured(CUdeviceptr *pointer, size_t bytes, CUdevice device, CUstream stream, CUresult *result) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                              .alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
                                        .bytesize = bytes}};
    if (!cuda_captured(stream, &node, result))
        return false;
    if (*result == CUDA_SUCCESS)
        *pointer = node.alloc.dptr;
    return true;
}

/* `pool`: NULL for the device's current one, if `any`. */
static CUresult allocate_on(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, bool any,
                            CUstream stream) {
    CUcontext context;
    CUstream unused;
    TRY(cuda_stream(stream, &unused, &context));
    CUresult result = CUDA_SUCCESS;
    if (!pointer || bytes == 0 || (!pool && !any))
        return CUDA_ERROR_INVALID_VALUE;
    if (captured(pointer, bytes, context->device, stream, &result))
        return result;
    pthread_mutex_lock(&cuda_memory);
    if (!pool)
        pool = current[context->device];
    if (!pool)
        pool = default_pool(context->device, false);
    if (!pool)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!cuda_is_pool(pool))
        result = CUDA_ERROR_INVALID_VALUE;
    else
        result = allocate(pointer, bytes, pool, context);
    return cuda_leave(result);
}

CUDA_API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate_on(pointer, bytes, NULL, true, stream);
}

CUDA_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate_on(pointer, bytes, NULL, true, PER_THREAD(stream));
}

CUDA_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                          CUstream stream) {
    return allocate_on(pointer, bytes, pool, false, stream);
}

CUDA_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                               CUstream stream) {
    return allocate_on(pointer, bytes, pool, false, PER_THREAD(stream));
}

CUDA_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    CUcontext context;
    CUstream unused;
    struct mark mark;
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {pointer}};
    CUresult result = cuda_stream(stream, &unused, &context);
    if (result != CUDA_SUCCESS || !pointer || cuda_captured(stream, &node, &result))
        return result;
    TRY(cuda_mark(stream, &mark));
    pthread_mutex_lock(&cuda_memory);
    struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    bool known = range && range->start == (uintptr_t)pointer &&
                 (range->kind == RANGE_POOL || range->kind == RANGE_POOL_IMPORT);
    if (known)
        cuda_range_free(range, &mark);
    pthread_mutex_unlock(&cuda_memory);
    return known ? CUDA_SUCCESS : cuMemFree_v2(pointer); /* of cuMemAlloc: at once */
}

CUDA_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return cuMemFreeAsync(pointer, PER_THREAD(stream));
}

/* ---- the pool from which a device, or the host, allocates ---- */

static CUresult get(CUmemoryPool *pool, CUdevice device, bool host, bool as_set) {
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    CUmemoryPool chosen = host ? host_current : current[device];
    *pool = as_set && chosen ? chosen : default_pool(device, host);
    pthread_mutex_unlock(&cuda_memory);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set(CUdevice device, bool host, CUmemoryPool pool) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    if (cuda_is_pool(pool) && !pool->imported && pool->heap.host == host &&
        (host || pool->heap.device == device)) {
        *(host ? &host_current : &current[device]) = pool;
        result = CUDA_SUCCESS;
    }
    return cuda_leave(result);
}

CUDA_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    const struct cuda_device *unused;
    TRY(cuda_device(device, &unused));
    return get(pool, device, false, false);
}

CUDA_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    const struct cuda_device *unused;
    TRY(cuda_device(device, &unused));
    return get(pool, device, false, true);
}

CUDA_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    const struct cuda_device *unused;
    TRY(cuda_device(device, &unused));
    return set(device, false, pool);
}

/* A location that has a pool for allocations of a type. */
static CUresult place_of(const CUmemLocation *location, CUmemAllocationType type, CUdevice *device,
                         bool *host) {
    TRY(cuda_location(location, device, host));
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                         CUmemAllocationType type) {
    CUdevice device;
    bool host;
    TRY(place_of(location, type, &device, &host));
    return get(pool, device, host, false);
}

CUDA_API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    CUdevice device;
    bool host;
    TRY(place_of(location, type, &device, &host));
    return get(pool, device, host, true);
}

CUDA_API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    CUdevice device;
    bool host;
    TRY(place_of(location, type, &device, &host));
    return set(device, host, pool);
}

void cuda_pool_replace(CUmemoryPool pool) {
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (current[i] == pool)
            current[i] = NULL;
    if (host_current == pool)
        host_current = NULL;
}
