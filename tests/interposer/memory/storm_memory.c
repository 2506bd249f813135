/*
 * The storm's memory: linear, arrays, pools, mappable.
 */
#include "storm.h"

#include <stdlib.h>

static const uint64_t STEP = 2 * MIB, POOL_STEP = 32 * MIB;

static uint64_t steps(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

static struct thing *if_got(bool got, struct thing *made) {
    if (got)
        return made;
    free(made);
    return NULL;
}

/* ---- linear ---- */

static void end_linear(struct thing *old, struct worker *worker) { MUST(cuMemFree_v2(old->pointer)); }

struct thing *way_linear(struct worker *worker) {
    struct thing *made = thing(end_linear);
    size_t pitch, size = some(worker, 24);
    uint64_t most = steps(size, STEP);
    bool got;
    switch (below(worker, 4)) {
    case 0:
        got = MAY(cuMemAllocManaged(&made->pointer, size, CU_MEM_ATTACH_GLOBAL), most);
        break;
    case 1:
        got = MAY(cuMemAllocPitch_v2(&made->pointer, &pitch, 500, size / 512 + 1, 4), most + STEP);
        break;
    default:
        got = MAY(cuMemAlloc_v2(&made->pointer, size), most);
    }
    return if_got(got, made);
}

/* ---- arrays ---- */

static void end_array(struct thing *old, struct worker *worker) { MUST(cuArrayDestroy(old->array)); }

static void end_mipmap(struct thing *old, struct worker *worker) {
    MUST(cuMipmappedArrayDestroy(old->mipmap));
}

struct thing *way_array(struct worker *worker) {
    size_t width = 64 + below(worker, 1000), height = 1 + below(worker, 1000), bytes = 1024 * 1024 * 16;
    CUDA_ARRAY_DESCRIPTOR flat = {
        .Width = width, .Height = height, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUDA_ARRAY3D_DESCRIPTOR layers = {.Width = width / 2,
                                      .Height = height / 2 + 1,
                                      .Depth = 1 + below(worker, 4),
                                      .Format = CU_AD_FORMAT_FLOAT,
                                      .NumChannels = 4,
                                      .Flags = CUDA_ARRAY3D_LAYERED};
    struct thing *made = thing(end_array);
    switch (below(worker, 3)) {
    case 0:
        return if_got(MAY(cuArrayCreate_v2(&made->array, &flat), bytes), made);
    case 1:
        return if_got(MAY(cuArray3DCreate_v2(&made->array, &layers), bytes), made);
    default:
        made->end = end_mipmap;
        return if_got(MAY(cuMipmappedArrayCreate(&made->mipmap, &layers, 3), 2 * bytes), made);
    }
}

static const CUmemAllocationProp tiles = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                          .allocFlags = {.usage = CU_MEM_CREATE_USAGE_TILE_POOL}};

static CUarrayMapInfo tile_of(const struct thing *sparse, CUmemOperationType operation) {
    return (CUarrayMapInfo){
        .resourceType = CU_RESOURCE_TYPE_ARRAY,
        .resource = {.array = sparse->array},
        .subresource = {.sparseLevel = {.extentWidth = 128, .extentHeight = 128, .extentDepth = 1}},
        .memOperationType = operation,
        .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
        .memHandle = {.memHandle = sparse->handle},
        .deviceBitMask = 1};
}

static void end_sparse(struct thing *old, struct worker *worker) {
    CUarrayMapInfo tile = tile_of(old, CU_MEM_OPERATION_TYPE_UNMAP);
    if (below(worker, 2))
        MUST(cuMemMapArrayAsync(&tile, 1, stream_of(worker)));
    MUST(cuArrayDestroy(old->array));
}

/* One tile has memory, which only the mapping keeps alive. */
struct thing *way_sparse(struct worker *worker) {
    CUDA_ARRAY3D_DESCRIPTOR description = {.Width = 1024,
                                           .Height = 1024,
                                           .Format = CU_AD_FORMAT_FLOAT,
                                           .NumChannels = 1,
                                           .Flags = CUDA_ARRAY3D_SPARSE};
    struct thing *made = thing(end_sparse);
    made->size = (size_t)(1 + below(worker, 4)) * STEP;
    if (!MAY(cuMemCreate(&made->handle, made->size, &tiles, 0), made->size))
        return if_got(false, made);
    MUST(cuArray3DCreate_v2(&made->array, &description));
    CUarrayMapInfo tile = tile_of(made, CU_MEM_OPERATION_TYPE_MAP);
    MUST(cuMemMapArrayAsync(&tile, 1, stream_of(worker)));
    if (below(worker, 2)) /* again, at its own place */
        MUST(cuMemMapArrayAsync(&tile, 1, stream_of(worker)));
    MUST(cuMemRelease(made->handle));
    return made;
}

/* ---- pools ---- */

static void free_pooled(CUdeviceptr pointer, struct worker *worker) {
    CUstream stream = stream_of(worker);
    switch (below(worker, 3)) {
    case 0:
        MUST(cuMemFree_v2(pointer));
        break;
    case 1:
        MUST(cuMemFreeAsync_ptsz(pointer, stream));
        break;
    default:
        MUST(cuMemFreeAsync(pointer, stream));
    }
}

static void end_default_pool(struct thing *old, struct worker *worker) { free_pooled(old->pointer, worker); }

static void set_threshold(struct worker *worker, CUmemoryPool pool) {
    static const uint64_t most[] = {0, 40 * MIB, UINT64_MAX};
    cuuint64_t threshold = most[below(worker, 3)];
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

struct thing *way_default_pool(struct worker *worker) {
    struct thing *made = thing(end_default_pool);
    size_t size = some(worker, 40);
    CUmemoryPool pool;
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    if (below(worker, 16) == 0)
        set_threshold(worker, pool);
    if (below(worker, 16) == 0)
        MUST(cuMemPoolTrimTo(pool, (size_t)below(worker, 64) * MIB));
    return if_got(MAY(below(worker, 2) ? cuMemAllocAsync(&made->pointer, size, stream_of(worker))
                                       : cuMemAllocAsync_ptsz(&made->pointer, size, stream_of(worker)),
                      steps(size, POOL_STEP)),
                  made);
}

/* The pool ends before or after its pointers. */
static void end_own_pool(struct thing *old, struct worker *worker) {
    bool first = below(worker, 2) != 0;
    if (first)
        MUST(cuMemPoolDestroy(old->pool));
    while (old->count)
        free_pooled(old->pointers[--old->count], worker);
    if (!first)
        MUST(cuMemPoolDestroy(old->pool));
}

struct thing *way_own_pool(struct worker *worker) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    struct thing *made = thing(end_own_pool);
    MUST(cuMemPoolCreate(&made->pool, &properties));
    set_threshold(worker, made->pool);
    for (int i = 0; i < PIECES; i++) {
        size_t size = some(worker, 40);
        made->count +=
            MAY(cuMemAllocFromPoolAsync(&made->pointers[made->count], size, made->pool, stream_of(worker)),
                steps(size, POOL_STEP));
        if (made->count && below(worker, 4) == 0)
            free_pooled(made->pointers[--made->count], worker);
    }
    if (below(worker, 2))
        MUST(cuMemPoolTrimTo(made->pool, 0));
    return made;
}

/* ---- mappable ---- */

static void unmap(struct thing *old) {
    MUST(cuMemUnmap(old->address, old->size));
    MUST(cuMemAddressFree(old->address, old->size));
    old->mapped = false;
}

static void end_vmm(struct thing *old, struct worker *worker) {
    while (old->count || old->mapped) {
        if (old->mapped && (!old->count || below(worker, 2))) {
            unmap(old);
        } else {
            MUST(cuMemRelease(old->handle));
            old->count--;
        }
    }
}

struct thing *way_vmm(struct worker *worker) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle again;
    struct thing *made = thing(end_vmm);
    made->size = (size_t)(1 + below(worker, 12)) * STEP;
    if (!MAY(cuMemCreate(&made->handle, made->size, &properties, 0), made->size))
        return if_got(false, made);
    made->count = 1;
    if (below(worker, 4) == 0)
        return made;
    MUST(cuMemAddressReserve(&made->address, made->size, 0, 0, 0));
    MUST(cuMemMap(made->address, made->size, 0, made->handle, 0));
    made->mapped = true;
    if (below(worker, 2)) {
        MUST(cuMemRetainAllocationHandle(&again, (void *)made->address));
        NEED(again == made->handle);
        made->count++;
    }
    if (below(worker, 2)) {
        MUST(cuMemRelease(made->handle));
        made->count--;
    }
    return made;
}
