/*
 * libcuda: an array's properties.
 */
#define _GNU_SOURCE
#include "array.h"

static CUresult describe(CUarray array, CUDA_ARRAY3D_DESCRIPTOR *description) {
    TRY(cuda_ready());
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    if (cuda_is_array(array))
        *description = array->description;
    else
        result = CUDA_ERROR_INVALID_HANDLE;
    return cuda_leave(result);
}

CUDA_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *description, CUarray array) {
    return description ? describe(array, description) : CUDA_ERROR_INVALID_VALUE;
}

/* Only for arrays that others map memory to. */
static CUresult requirements_of(const struct array_storage *storage,
                                CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements) {
    if (!(storage->description.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)))
        return CUDA_ERROR_INVALID_VALUE;
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){round_up(storage->size, 65536), 65536, {0}};
    return CUDA_SUCCESS;
}

/* A tile is 64 KiB: 256 bytes by 256 rows, or in a volume 64 by 32 by 32. */
static CUresult sparse_properties_of(const struct array_storage *storage,
                                     CUDA_ARRAY_SPARSE_PROPERTIES *properties) {
    const CUDA_ARRAY3D_DESCRIPTOR *of = &storage->description;
    bool volume = of->Depth && !(of->Flags & CUDA_ARRAY3D_LAYERED);
    if (!(of->Flags & CUDA_ARRAY3D_SPARSE))
        return CUDA_ERROR_INVALID_VALUE;
    *properties =
        (CUDA_ARRAY_SPARSE_PROPERTIES){.tileExtent = {volume ? 32 : 128, volume ? 32 : 128, volume ? 16 : 1},
                                       .miptailFirstLevel = MAX_LEVELS};
    return CUDA_SUCCESS;
}

#define OF(kind, handle, storage, call)                                                                      \
    CUresult result = cuda_ready();                                                                          \
    if (result != CUDA_SUCCESS)                                                                              \
        return result;                                                                                       \
    pthread_mutex_lock(&cuda_memory);                                                                        \
    result = !kind(handle) ? CUDA_ERROR_INVALID_HANDLE : call(storage, out);                                 \
    pthread_mutex_unlock(&cuda_memory);                                                                      \
    return result

CUDA_API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array,
                                               CUdevice device) {
    (void)device;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    OF(cuda_is_array, array, array->storage, requirements_of);
}

CUDA_API CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray array) {
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    OF(cuda_is_array, array, array->storage, sparse_properties_of);
}
