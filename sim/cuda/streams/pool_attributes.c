/*
 * libcuda: pools as objects: made, queried, trimmed, passed to other processes.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <stdlib.h>
#include <string.h>

CUDA_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUdevice device;
    bool host;
    TRY(cuda_location(properties ? &properties->location : NULL, &device, &host));
    if (!pool || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&cuda_memory);
    *pool = cuda_pool_new(properties, device, host);
    pthread_mutex_unlock(&cuda_memory);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Takes the lock if it is a pool; otherwise CUDA_ERROR_INVALID_VALUE. */
static CUresult enter(CUmemoryPool pool) {
    TRY(cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    if (cuda_is_pool(pool))
        return CUDA_SUCCESS;
    return cuda_leave(CUDA_ERROR_INVALID_VALUE);
}

CUDA_API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    TRY(enter(pool));
    if (pool->permanent)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    cuda_pool_replace(pool);
    pool->destroyed = true;
    if (pool->live == 0)
        cuda_pool_delete(pool);
    return cuda_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    TRY(enter(pool));
    cuda_heap_refresh(&pool->heap);
    cuda_heap_trim(&pool->heap, keep, false);
    return cuda_leave(CUDA_SUCCESS);
}

/* The value of a 64-bit attribute. */
static uint64_t attribute_value(const struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute,
                                bool *known) {
    *known = true;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return pool->heap.reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return pool->heap.reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return pool->heap.used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return pool->heap.used_high;
    default:
        *known = false;
        return 0;
    }
}

static bool is_reuse(CUmemPool_attribute attribute) {
    return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
           attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUDA_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    bool known;
    TRY(value ? enter(pool) : CUDA_ERROR_INVALID_VALUE);
    CUresult result = CUDA_SUCCESS;
    uint64_t found = attribute_value(pool, attribute, &known);
    if (known)
        *(uint64_t *)value = found;
    else if (is_reuse(attribute))
        *(int *)value = pool->reuse[attribute - 1];
    else
        result = CUDA_ERROR_INVALID_VALUE;
    return cuda_leave(result);
}

CUDA_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    TRY(value ? enter(pool) : CUDA_ERROR_INVALID_VALUE);
    CUresult result = CUDA_SUCCESS;
    bool high = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    if (is_reuse(attribute))
        pool->reuse[attribute - 1] = *(int *)value;
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    else if (!high || *(uint64_t *)value != 0) /* a mark can only be reset to the present use */
        result = CUDA_ERROR_INVALID_VALUE;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->heap.reserved_high = pool->heap.reserved;
    else
        pool->heap.used_high = pool->heap.used;
    return cuda_leave(result);
}

CUDA_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
    CUdevice device;
    bool host;
    unsigned access = 0, denied = 0;
    for (size_t i = 0; i < count; i++) {
        TRY(cuda_location(map ? &map[i].location : NULL, &device, &host));
        if (host)
            return CUDA_ERROR_INVALID_VALUE;
        *(map[i].flags ? &access : &denied) |= 1u << device;
    }
    TRY(enter(pool));
    if (!pool->heap.host && (denied >> pool->heap.device & 1)) /* its own device's access cannot be removed */
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    pool->access = (pool->access & ~denied) | access;
    return cuda_leave(CUDA_SUCCESS);
}

/* ---- across processes ---- */

enum { TOKEN_SIZE = 1 }; /* no allocation is that small: it marks a pool's descriptor */

CUDA_API CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool,
                                                   CUmemAllocationHandleType type, unsigned long long flags) {
    TRY(handle && !flags ? enter(pool) : CUDA_ERROR_INVALID_VALUE);
    CUresult result = CUDA_SUCCESS;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pool->imported ||
        !(pool->properties.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    if (!pool->token)
        result = cuda_take(NULL, pool->heap.device, TOKEN_SIZE, true, &pool->token);
    if (result == CUDA_SUCCESS)
        result = cuda_export(pool->token, handle);
    return cuda_leave(result);
}

CUDA_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
                                                     CUmemAllocationHandleType type,
                                                     unsigned long long flags) {
    struct backing *token = NULL;
    TRY(cuda_ready());
    if (!pool || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    CUresult result = cuda_open(NULL, (int)(intptr_t)handle, &token, NULL);
    if (result == CUDA_SUCCESS && token->size != TOKEN_SIZE)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {CU_MEM_LOCATION_TYPE_DEVICE, token->device}};
        *pool = cuda_pool_new(&properties, token->device, false);
        result = *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        (*pool)->imported = true;
        (*pool)->token = token;
    } else {
        cuda_drop(token);
    }
    return cuda_leave(result);
}

/* The contents of CUmemPoolPtrExportData. */
struct pointer {
    uint64_t key[2], offset, size;
};

CUDA_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer) {
    CUresult result = cuda_ready();
    if (result != CUDA_SUCCESS || !data)
        return data ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    const struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    if (!range || range->kind != RANGE_POOL || !range->pool->token)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    struct backing *backing = range->span->segment->backing;
    result = cuda_share(backing);
    if (result != CUDA_SUCCESS)
        return cuda_leave(result);
    struct pointer told = {{backing->key[0], backing->key[1]}, range->span->offset, range->size};
    memset(data, 0, sizeof *data);
    memcpy(data, &told, sizeof told);
    return cuda_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
                                         CUmemPoolPtrExportData *data) {
    struct pointer told;
    struct range made = {.kind = RANGE_POOL_IMPORT, .pool = pool, .freed = cuda_pool_freed};
    TRY(pointer && data ? enter(pool) : CUDA_ERROR_INVALID_VALUE);
    memcpy(&told, data, sizeof told);
    if (!pool->imported)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult result = cuda_open(told.key, -1, &made.backing, NULL);
    if (result != CUDA_SUCCESS)
        return cuda_leave(result);
    made.device = made.backing->device;
    made.size = told.size;
    result = told.size && told.size <= made.backing->size && told.offset <= made.backing->size - told.size
                 ? cuda_map_part(&made, told.offset)
                 : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && !cuda_range_add(&cuda_ranges, &made)) {
        cuda_unmap(made.mapping, made.mapped);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        pool->live++;
        *pointer = made.start;
    } else {
        cuda_drop(made.backing);
    }
    return cuda_leave(result);
}
