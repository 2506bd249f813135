/*
 * libcuda: memory of another process, by an IPC handle or as external memory. Both stay counted at their
 * allocator.
 */
#define _GNU_SOURCE
#include "array.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The contents of CUipcMemHandle. */
struct told {
    uint64_t key[2], offset, size;
};

CUDA_API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    CUcontext context;
    TRY(handle ? cuda_current(&context) : CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&cuda_memory);
    const struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    if (!range || range->kind != RANGE_LINEAR)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    struct backing *backing = range->span ? range->span->segment->backing : range->backing;
    CUresult result = cuda_share(backing);
    if (result != CUDA_SUCCESS)
        return cuda_leave(result);
    struct told told = {
        {backing->key[0], backing->key[1]}, range->span ? range->span->offset : 0, range->size};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &told, sizeof told);
    return cuda_leave(CUDA_SUCCESS);
}

/* A memory that is open already; NULL: it is not. */
static struct range *opened(const struct told *told, CUcontext context) {
    for (struct range *range = cuda_ranges.first; range; range = range->next)
        if (range->kind == RANGE_IPC && range->context == context && range->offset == told->offset &&
            memcmp(range->backing->key, told->key, sizeof told->key) == 0)
            return range;
    return NULL;
}

static CUresult open_range(struct range *range, const struct told *told) {
    bool own = false;
    TRY(cuda_open(told->key, -1, &range->backing, &own));
    CUresult result = CUDA_SUCCESS;
    range->device = range->backing->device;
    if (own)
        result = CUDA_ERROR_INVALID_CONTEXT; /* the exporter cannot import */
    else if (!told->size || told->size > range->backing->size ||
             told->offset > range->backing->size - told->size)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        result = cuda_map_part(range, told->offset);
    if (result == CUDA_SUCCESS && !cuda_range_add(&cuda_ranges, range)) {
        cuda_unmap(range->mapping, range->mapped);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        cuda_drop(range->backing);
    return result;
}

CUDA_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    CUcontext context;
    struct told told;
    TRY(cuda_current(&context));
    if (!pointer || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&told, &handle, sizeof told);
    pthread_mutex_lock(&cuda_memory);
    struct range *range = opened(&told, context);
    if (range) {
        range->opens++;
        *pointer = range->start;
        return cuda_leave(CUDA_SUCCESS);
    }
    struct range made = {
        .size = told.size, .kind = RANGE_IPC, .context = context, .offset = told.offset, .opens = 1};
    CUresult result = open_range(&made, &told);
    if (result == CUDA_SUCCESS)
        *pointer = made.start;
    return cuda_leave(result);
}

CUDA_API CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

CUDA_API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    TRY(cuda_ready());
    pthread_mutex_lock(&cuda_memory);
    struct range *range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    if (!range || range->kind != RANGE_IPC || range->start != (uintptr_t)pointer)
        return cuda_leave(CUDA_ERROR_INVALID_VALUE);
    if (--range->opens == 0)
        cuda_range_free(range, NULL);
    return cuda_leave(CUDA_SUCCESS);
}

/* ---- external memory, by the one supported kind: the descriptor of cuMemExportToShareableHandle ---- */

enum { EXTERNAL_MAGIC = 0x45584d31 };

struct CUextMemory_st {
    uint32_t magic;
    struct backing *backing;
    unsigned long long size;
};

CUDA_API CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                         const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    TRY(cuda_ready());
    if (!memory || !description || description->flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct CUextMemory_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&cuda_memory);
    CUresult result = cuda_open(NULL, description->handle.fd, &made->backing, NULL);
    if (result == CUDA_SUCCESS && (description->size > made->backing->size || made->backing->size % PAGE)) {
        cuda_drop(made->backing);
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&cuda_memory);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    close(description->handle.fd); /* the import owns it now */
    made->magic = EXTERNAL_MAGIC;
    made->size = description->size;
    *memory = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                                  const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!memory || memory->magic != EXTERNAL_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pointer || !description || description->flags || !description->size ||
        description->size > memory->size || description->offset > memory->size - description->size)
        return CUDA_ERROR_INVALID_VALUE;
    struct range made = {.size = description->size,
                         .kind = RANGE_EXTERNAL,
                         .context = context,
                         .device = memory->backing->device,
                         .backing = memory->backing};
    pthread_mutex_lock(&cuda_memory);
    CUresult result = cuda_map_part(&made, description->offset);
    if (result == CUDA_SUCCESS && !cuda_range_add(&cuda_ranges, &made)) {
        cuda_unmap(made.mapping, made.mapped);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        cuda_hold(memory->backing);
        *pointer = made.start;
    }
    return cuda_leave(result);
}

/* A mapping of it stays until it is freed. */
CUDA_API CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    TRY(cuda_ready());
    if (!memory || memory->magic != EXTERNAL_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&cuda_memory);
    cuda_drop(memory->backing);
    pthread_mutex_unlock(&cuda_memory);
    memory->magic = 0;
    free(memory);
    return CUDA_SUCCESS;
}

CUDA_API CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory memory,
                                        const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *description) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!memory || memory->magic != EXTERNAL_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!mipmap || !description)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cuda_memory);
    return cuda_leave(cuda_mipmap_make(context, &description->arrayDesc, description->numLevels,
                                       memory->backing, description->offset, mipmap));
}
