/*
 * Stream-ordered memory: allocations from pools, and the pools.
 *
 * A pool's pointer is in the table with no bytes of its own: the pool's reservation is charged. Memory in
 * host pools and in imported ones is not counted. Under stream capture an allocation becomes a node of a
 * graph, and takes nothing before the graph is launched.
 */
#define _GNU_SOURCE
#include "pool.h"
#include "cuda/driver/devices.h"
#include "cuda/driver/real.h"
#include "cuda/memory/pool_memory.h"
#include "cuda/memory/reconcile.h"
#include "cuda/memory/release.h"
#include "cuda/memory/shrinker.h"
#include "graph.h"

XPU_INTERPOSE(cuMemAllocAsync)
XPU_INTERPOSE(cuMemAllocAsync_ptsz)
XPU_INTERPOSE(cuMemAllocFromPoolAsync)
XPU_INTERPOSE(cuMemAllocFromPoolAsync_ptsz)
XPU_INTERPOSE(cuMemFreeAsync)
XPU_INTERPOSE(cuMemFreeAsync_ptsz)
XPU_INTERPOSE(cuMemPoolCreate)
XPU_INTERPOSE(cuMemPoolDestroy)
XPU_INTERPOSE(cuMemPoolExportToShareableHandle)
XPU_INTERPOSE(cuMemPoolImportFromShareableHandle)
XPU_INTERPOSE(cuMemPoolImportPointer)
XPU_INTERPOSE(cuMemPoolSetAttribute)
XPU_INTERPOSE(cuMemPoolTrimTo)
XPU_INTERPOSE(cuMemGetDefaultMemPool)
XPU_INTERPOSE(cuMemGetMemPool)
XPU_NEED(cuDeviceGetCount)
XPU_NEED(cuDeviceGetDefaultMemPool)
XPU_NEED(cuDeviceGetMemPool)

bool xpu_pools_stale;

static void forget(void) { xpu_pools_stale = false; }
XPU_AT_FORK(forget)

static void gone_back(void) { __atomic_store_n(&xpu_pools_stale, true, __ATOMIC_RELEASE); }

void xpu_pools_synchronized(void) {
    __atomic_store_n(&xpu_pools_stale, false, __ATOMIC_SEQ_CST);
    xpu_pool_memories_refresh(-1);
    if (xpu_pool_memories_have_spare()) /* memory freed behind unfinished work */
        gone_back();
}

static void pointer_freed(const struct xpu_entry *entry) {
    struct xpu_pool_memory *memory = (struct xpu_pool_memory *)(uintptr_t)entry->extra;
    xpu_pool_memory_pointer(memory, -1);
    xpu_pool_memory_refresh(memory);
    gone_back();
}

static void unknown_freed(void) {
    if (xpu_graphs_with_memory()) {
        xpu_pool_memories_refresh(-1);
        gone_back();
    }
}

XPU_RELEASE(XPU_POINTERS, XPU_POOL, pointer_freed)
XPU_SHRINKER(xpu_pool_memories_refresh, xpu_pool_memories_trim, unknown_freed)

/* Memory of the host is not counted. Managed pools are counted, as managed memory is, wherever it is at the
 * moment. */
static void learn(CUmemoryPool pool, const CUmemLocation *location, CUmemAllocationType type) {
    CUcontext context;
    CUdevice device;
    bool of_device = xpu_location_device(location, &device);
    if (!of_device) {
        device = 0;
        if (xpu_stream_context(NULL, &context) == CUDA_SUCCESS && context)
            (void)xpu_context_device(context, &device);
    }
    (void)xpu_pool_memory_of(pool, device, of_device || type == CU_MEM_ALLOCATION_TYPE_MANAGED);
}

static CUresult known(const CUmemLocation *location) {
    return location ? xpu_location_known(location) : CUDA_SUCCESS;
}

/* The pool belongs to the device whose default pool it is. A pool that was made without this library counts
 * for the stream's device. */
static struct xpu_pool_memory *memory_of(CUmemoryPool pool, CUdevice device) {
    struct xpu_pool_memory *memory = xpu_pool_memory_find(pool, 0);
    CUmemoryPool other;
    int count;
    if (memory || REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return memory;
    for (CUdevice at = 0; at < count; at++)
        if (REAL(cuDeviceGetDefaultMemPool)(&other, at) == CUDA_SUCCESS && other == pool)
            device = at;
    return xpu_pool_memory_of(pool, device, true);
}

struct request {
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool; /* if `chosen`; otherwise the current one of the stream's device */
    CUstream stream;
    bool chosen, per_thread;
};

static CUresult really_allocate(const struct request *request) {
    if (!request->chosen)
        return request->per_thread
                   ? REAL(cuMemAllocAsync_ptsz)(request->pointer, request->bytes, request->stream)
                   : REAL(cuMemAllocAsync)(request->pointer, request->bytes, request->stream);
    return request->per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz)(request->pointer, request->bytes,
                                                                    request->pool, request->stream)
                               : REAL(cuMemAllocFromPoolAsync)(request->pointer, request->bytes,
                                                               request->pool, request->stream);
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream, bool per_thread) {
    struct xpu_entry entry;
    xpu_free_begin(&entry, XPU_POINTERS, pointer);
    CUresult result =
        per_thread ? REAL(cuMemFreeAsync_ptsz)(pointer, stream) : REAL(cuMemFreeAsync)(pointer, stream);
    xpu_free_end(&entry, result);
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { return free_async(pointer, stream, false); }

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_async(pointer, stream, true);
}

static CUstream stream_of(const struct request *request) {
    return request->per_thread && !request->stream ? CU_STREAM_PER_THREAD : request->stream;
}

/* NULL: the driver will return the error. */
static struct xpu_pool_memory *memory_for(const struct request *request) {
    CUcontext context;
    CUdevice device;
    CUmemoryPool pool = request->pool;
    if (xpu_stream_context(stream_of(request), &context) != CUDA_SUCCESS || !context ||
        xpu_context_device(context, &device) != CUDA_SUCCESS ||
        (!request->chosen && REAL(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS) || !pool)
        return NULL;
    return memory_of(pool, device);
}

/* Keeps the pointer in the table, so that its end is known. */
static bool keep(CUdeviceptr pointer, struct xpu_pool_memory *memory, uint16_t flags) {
    struct xpu_entry entry = {.key = pointer,
                              .extra = (uintptr_t)memory,
                              .flags = flags,
                              .device = (int8_t)(memory ? memory->index : 0),
                              .kind = XPU_POOL,
                              .space = XPU_POINTERS};
    return xpu_entry_put(&entry);
}

/* The pool took more than the request, or there was no memory for the table. Memory without pending work goes
 * back at once, the rest at the next synchronisation: this call must not wait for the device.
 *
 * So the limit may be passed until the call returns, by at most its size in whole steps. This takes a call
 * that was admitted for unused memory of the pool, a limit with less than a step left, and a pool whose
 * unused memory is in pieces too small or belongs to other streams. Nothing shows that before: the driver
 * reports only sums, a pool's maxSize cannot be changed later, and a refusal would mostly hit calls that fit.
 * Charging the step first, if the limit has one left, is no cure, and takes memory that fits from other
 * processes: beside a process whose eight threads used a pool with unused memory, 20 of 200 allocations were
 * refused, and none without that charge. */
static CUresult undo(const struct request *request, struct xpu_pool_memory *memory) {
    (void)free_async(*request->pointer, request->stream, request->per_thread);
    xpu_pool_memories_trim(memory->index);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* *undone: the driver allocated it, but beyond the limit. */
static CUresult allocate_once(const struct request *request, struct xpu_pool_memory *memory, bool *undone) {
    struct xpu_pool_growth growth;
    CUresult result = xpu_pool_growth_begin(&growth, memory, request->bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = really_allocate(request);
    bool kept = result == CUDA_SUCCESS && keep(*request->pointer, memory, 0);
    if (kept)
        xpu_pool_memory_pointer(memory, 1);
    bool fits = xpu_pool_growth_end(&growth);
    *undone = result == CUDA_SUCCESS && (!kept || !fits);
    return *undone ? undo(request, memory) : result;
}

static CUresult allocate(const struct request *request) {
    bool undone = false;
    if (xpu_is_capturing(stream_of(request))) {
        xpu_graph_gets_memory();
        return really_allocate(request);
    }
    struct xpu_pool_memory *memory = memory_for(request);
    if (!memory || !memory->counted)
        return really_allocate(request);
    CUresult result = allocate_once(request, memory, &undone);
    /* It was admitted for the pool's unused memory, which was in pieces too small. They have been trimmed:
     * now it may fit. */
    if (!undone)
        return result;
    undone = false;
    result = allocate_once(request, memory, &undone);
    if (undone)
        xpu_memory_refused(memory->index, request->bytes);
    return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(&(struct request){.pointer = pointer, .bytes = bytes, .stream = stream});
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(
        &(struct request){.pointer = pointer, .bytes = bytes, .stream = stream, .per_thread = true});
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate(&(struct request){
        .pointer = pointer, .bytes = bytes, .pool = pool, .stream = stream, .chosen = true});
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
    return allocate(&(struct request){.pointer = pointer,
                                      .bytes = bytes,
                                      .pool = pool,
                                      .stream = stream,
                                      .chosen = true,
                                      .per_thread = true});
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUresult result = known(properties ? &properties->location : NULL);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS)
        learn(*pool, &properties->location, properties->allocType);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    struct xpu_pool_memory *memory = xpu_pool_memory_find(pool, 0);
    if (!memory)
        return REAL(cuMemPoolDestroy)(pool);
    xpu_operation_begin();
    xpu_pool_memory_close(memory);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    xpu_pool_memory_closed(memory, result == CUDA_SUCCESS);
    xpu_operation_end();
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
    xpu_operation_begin();
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep_bytes);
    struct xpu_pool_memory *memory = result == CUDA_SUCCESS ? xpu_pool_memory_find(pool, 0) : NULL;
    if (memory)
        xpu_pool_memory_refresh(memory);
    xpu_operation_end();
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *what) {
    CUresult result = REAL(cuMemPoolSetAttribute)(pool, attribute, what);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        gone_back();
    return result;
}

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
    CUresult result = REAL(cuMemPoolExportToShareableHandle)(handle, pool, type, flags);
    struct xpu_pool_memory *memory = result == CUDA_SUCCESS ? xpu_pool_memory_find(pool, 0) : NULL;
    if (memory)
        xpu_pool_memory_exported(memory);
    return result;
}

/* Its memory is charged to its maker, and not here. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
    CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    if (result == CUDA_SUCCESS)
        (void)xpu_pool_memory_of(*pool, 0, false);
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    xpu_imported(1); /* before the call: from now on its maker's end does not give it back */
    CUresult result = REAL(cuMemPoolImportPointer)(pointer, pool, data);
    if (result != CUDA_SUCCESS)
        xpu_imported(-1);
    else
        (void)keep(*pointer, NULL, XPU_IMPORTED);
    return result;
}

static CUresult get(CUresult (*call)(CUmemoryPool *, CUmemLocation *, CUmemAllocationType),
                    CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    CUresult result = known(location);
    if (result == CUDA_SUCCESS)
        result = call(pool, location, type);
    if (result == CUDA_SUCCESS)
        learn(*pool, location, type);
    return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return get(REAL(cuMemGetDefaultMemPool), pool, location, type);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
    return get(REAL(cuMemGetMemPool), pool, location, type);
}
