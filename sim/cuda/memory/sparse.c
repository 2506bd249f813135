/*
 * libcuda: memory mapped to parts of arrays without their own memory. It lives while it is mapped there, as
 * at an address.
 */
#define _GNU_SOURCE
#include "../core/work.h"
#include "array.h"

#include <stdlib.h>

static struct array_storage *storage_of(const CUarrayMapInfo *info) {
    if (info->resourceType == CU_RESOURCE_TYPE_ARRAY)
        return cuda_is_array(info->resource.array) ? info->resource.array->storage : NULL;
    if (info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        return cuda_is_mipmap(info->resource.mipmap) ? &info->resource.mipmap->storage : NULL;
    return NULL;
}

static struct binding named(const CUarrayMapInfo *info) {
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
        return (struct binding){.layer = info->subresource.miptail.layer, .tail = true};
    return (struct binding){.level = info->subresource.sparseLevel.level,
                            .layer = info->subresource.sparseLevel.layer,
                            .x = info->subresource.sparseLevel.offsetX,
                            .y = info->subresource.sparseLevel.offsetY,
                            .z = info->subresource.sparseLevel.offsetZ};
}

/* The previous memory is no longer mapped there. */
static void unbind(struct array_storage *storage, const struct binding *name) {
    for (struct binding **link = &storage->bindings; *link; link = &(*link)->next) {
        struct binding *each = *link;
        if (each->level != name->level || each->layer != name->layer || each->x != name->x ||
            each->y != name->y || each->z != name->z || each->tail != name->tail)
            continue;
        *link = each->next;
        cuda_allocation_unmapped(each->allocation);
        free(each);
        return;
    }
}

static CUresult map_one(const CUarrayMapInfo *info) {
    struct array_storage *storage = storage_of(info);
    struct binding name = named(info), *made = NULL;
    if (!storage || !(storage->description.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) ||
        info->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC || info->flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
        struct allocation *allocation = cuda_allocation(info->memHandle.memHandle);
        if (!allocation || info->offset >= allocation->backing->size)
            return CUDA_ERROR_INVALID_VALUE;
        made = malloc(sizeof *made);
        if (!made)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *made = name;
        made->allocation = allocation;
        cuda_allocation_mapped(allocation);
    } else if (info->memOperationType != CU_MEM_OPERATION_TYPE_UNMAP) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unbind(storage, &name);
    if (made) {
        made->next = storage->bindings;
        storage->bindings = made;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    CUcontext context;
    CUstream unused;
    TRY(cuda_stream(stream, &unused, &context));
    CUresult result = CUDA_SUCCESS;
    if (count && !list)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = map_one(&list[i]);
    return cuda_leave(result);
}

CUDA_API CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return cuMemMapArrayAsync(list, count, stream ? stream : CU_STREAM_PER_THREAD);
}
