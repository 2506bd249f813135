/*
 * Tiles of sparse arrays: mappings of memory without an address. The memory of a tile stays referenced until
 * the same region is unmapped or mapped to other memory, or its array is destroyed. Few programs have sparse
 * arrays, so a list is enough.
 */
#define _GNU_SOURCE
#include "cuda/driver/fork.h"
#include "cuda/driver/real.h"
#include "cuda/memory/release.h"
#include "cuda/memory/share.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

XPU_INTERPOSE(cuMemMapArrayAsync)
XPU_INTERPOSE(cuMemMapArrayAsync_ptsz)

struct region {
    const void *array;
    uint64_t kind, place[8]; /* in the words of CUarrayMapInfo; the rest 0 */
};

struct tile {
    struct region region;
    CUmemGenericAllocationHandle handle;
    uint64_t serial;
    struct tile *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tile *tiles; /* atomic, as it is looked at without the lock */

static struct tile *left; /* by parents */

static void forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    XPU_LEAVE_BEHIND(tiles, left);
}
XPU_AT_FORK(forget)

static struct region region_of(const CUarrayMapInfo *info) {
    struct region region = {.kind = info->subresourceType};
    region.array = info->resourceType == CU_RESOURCE_TYPE_ARRAY ? (const void *)info->resource.array
                                                                : (const void *)info->resource.mipmap;
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL) {
        const __typeof__(info->subresource.sparseLevel) *level = &info->subresource.sparseLevel;
        const uint64_t place[] = {level->level,        level->layer,      level->offsetX,
                                  level->offsetY,      level->offsetZ,    level->extentWidth,
                                  level->extentHeight, level->extentDepth};
        memcpy(region.place, place, sizeof place);
    } else {
        region.place[0] = info->subresource.miptail.layer;
        region.place[1] = info->subresource.miptail.offset;
        region.place[2] = info->subresource.miptail.size;
    }
    return region;
}

static bool same(const struct region *one, const struct region *other) {
    return one->array == other->array && one->kind == other->kind &&
           memcmp(one->place, other->place, sizeof one->place) == 0;
}

/* Drops the tiles of a region, or (region NULL) of an array. */
static void drop(const struct region *region, const void *array) {
    struct tile *dropped = NULL;
    pthread_mutex_lock(&lock);
    for (struct tile **link = &tiles; *link;) {
        struct tile *tile = *link;
        if (region ? same(&tile->region, region) : tile->region.array == array) {
            __atomic_store_n(link, tile->next, __ATOMIC_RELAXED);
            tile->next = dropped;
            dropped = tile;
        } else {
            link = &tile->next;
        }
    }
    pthread_mutex_unlock(&lock);
    while (dropped) {
        struct tile *tile = dropped;
        dropped = tile->next;
        xpu_share_drop(XPU_ALLOCATIONS, tile->handle, tile->serial);
        free(tile);
    }
}

static void array_ended(const struct xpu_entry *entry) {
    if (__atomic_load_n(&tiles, __ATOMIC_RELAXED))
        drop(NULL, (const void *)(uintptr_t)entry->key);
}
XPU_BEFORE_RELEASE(XPU_ARRAYS, array_ended)
XPU_BEFORE_RELEASE(XPU_MIPMAPS, array_ended)

/* Takes references before the call, because another thread may release the memory: a tile for each mapping
 * whose memory is counted. NULL: no memory. */
static struct tile *hold(const CUarrayMapInfo *list, unsigned int count) {
    struct tile *held = calloc(count ? count : 1, sizeof *held);
    for (unsigned int i = 0; held && i < count; i++)
        if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
            held[i].handle = list[i].memHandle.memHandle;
            (void)xpu_share_hold(XPU_ALLOCATIONS, held[i].handle, &held[i].serial);
        }
    return held;
}

static void keep(const struct tile *held, const struct region *region) {
    struct tile *tile = malloc(sizeof *tile);
    if (!tile)
        return; /* the reference stays: memory may be counted too long, never too short */
    pthread_mutex_lock(&lock);
    *tile = (struct tile){*region, held->handle, held->serial, tiles};
    __atomic_store_n(&tiles, tile, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

static CUresult map(CUresult (*call)(CUarrayMapInfo *, unsigned int, CUstream), CUarrayMapInfo *list,
                    unsigned int count, CUstream stream) {
    if (!list)
        return call(list, count, stream);
    struct tile *held = hold(list, count);
    CUresult result = held ? call(list, count, stream) : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned int i = 0; held && i < count; i++) {
        struct region region = region_of(&list[i]);
        if (result == CUDA_SUCCESS)
            drop(&region, NULL); /* the previous mapping */
        if (!held[i].serial)
            continue;
        if (result == CUDA_SUCCESS)
            keep(&held[i], &region);
        else
            xpu_share_drop(XPU_ALLOCATIONS, held[i].handle, held[i].serial);
    }
    free(held);
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return map(REAL(cuMemMapArrayAsync), list, count, stream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return map(REAL(cuMemMapArrayAsync_ptsz), list, count, stream);
}
