/*
 * libcuda: what an array says of itself.
 */
#define _GNU_SOURCE
#include "array.h"

static CUresult describe(CUarray array, CUDA_ARRAY3D_DESCRIPTOR *description) {
    CUresult result = cuda_ready();
    if (result != CUDA_SUCCESS)
        return result;
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

/* Only of those that others map memory to. */
static CUresult requirements_of(const struct array_storage *storage,
                                CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements) {
    if (!(storage->description.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)))
        return CUDA_ERROR_INVALID_VALUE;
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){round_up(storage->size, 65536), 65536, {0}};
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
