/*
 * libcuda: arrays and mipmapped arrays.
 *
 * Rows take a multiple of 64 bytes and slices one of 8 rows, as a device lays them out in blocks. An array
 * below 2 MiB is in the context's shared pieces, as linear memory is. Sparse arrays and those of deferred
 * mapping take nothing by themselves.
 */
#define _GNU_SOURCE
#include "array.h"

#include <stdlib.h>

static CUarray arrays;
static CUmipmappedArray mipmaps;

bool cuda_is_array(CUarray array) {
    for (CUarray each = arrays; each; each = each->next)
        if (each == array)
            return true;
    for (CUmipmappedArray each = mipmaps; each; each = each->next)
        if (array >= each->level && array < each->level + each->levels)
            return true;
    return false;
}

bool cuda_is_mipmap(CUmipmappedArray mipmap) {
    CUmipmappedArray each = mipmaps;
    while (each && each != mipmap)
        each = each->next;
    return each != NULL;
}

static void unbind_all(struct array_storage *storage) {
    while (storage->bindings) {
        struct binding *binding = storage->bindings;
        storage->bindings = binding->next;
        cuda_allocation_unmapped(binding->allocation);
        free(binding);
    }
}

uintptr_t cuda_array_place(CUarray array) {
    const struct array_storage *storage = array->storage;
    if (storage->external)
        return storage->external_place + array->offset;
    return storage->range ? storage->range->start + array->offset : 0;
}

/* Bytes of one channel's element, and the side of the square that is stored as one; 0: unknown. */
static size_t element_of(CUarray_format format, size_t *side) {
    *side = 1;
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    case CU_AD_FORMAT_BC1_UNORM:
        *side = 4;
        return 8;
    case CU_AD_FORMAT_BC2_UNORM:
    case CU_AD_FORMAT_BC3_UNORM:
    case CU_AD_FORMAT_BC7_UNORM:
        *side = 4;
        return 16;
    case CU_AD_FORMAT_NV12:
        break;
    }
    return 0;
}

static bool is_valid(const CUDA_ARRAY3D_DESCRIPTOR *description) {
    size_t side, channels = description->NumChannels;
    const size_t most = 131072;
    return element_of(description->Format, &side) && (channels == 1 || channels == 2 || channels == 4) &&
           description->Width && description->Width <= most && description->Height <= most &&
           description->Depth <= most && (!description->Depth || description->Flags || description->Height) &&
           description->Flags < 0x200;
}

/* Fills in the layout of one level. Returns its size in bytes. */
static size_t lay_out(CUarray array) {
    const CUDA_ARRAY3D_DESCRIPTOR *of = &array->description;
    size_t side, element = element_of(of->Format, &side);
    if (side == 1)
        element *= of->NumChannels;
    array->row = round_up((of->Width + side - 1) / side * element, 64);
    array->height = round_up(((of->Height ? of->Height : 1) + side - 1) / side, of->Height ? 8 : 1);
    return array->row * array->height * (of->Depth ? of->Depth : 1);
}

static CUresult take(struct array_storage *storage) {
    CUdeviceptr pointer;
    if (storage->description.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return CUDA_SUCCESS;
    TRY(cuda_linear(storage->context, RANGE_ARRAY, storage->size, 0, &pointer));
    pthread_mutex_lock(&cuda_memory);
    storage->range = cuda_range_of(&cuda_ranges, (uintptr_t)pointer, 1);
    return cuda_leave(CUDA_SUCCESS);
}

/* With the lock held. */
static void give(struct array_storage *storage) {
    if (storage->range)
        cuda_linear_free(storage->range);
    if (storage->external)
        cuda_unmap(storage->external_place & ~(PAGE - 1),
                   round_up(storage->external_place % PAGE + storage->size, 4096));
    cuda_drop(storage->external);
    unbind_all(storage);
}

CUDA_API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *description) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!array || !description || !is_valid(description))
        return CUDA_ERROR_INVALID_VALUE;
    struct CUarray_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->magic = ARRAY_MAGIC;
    made->description = *description;
    made->own =
        (struct array_storage){.context = context, .description = *description, .size = lay_out(made)};
    made->storage = &made->own;
    CUresult result = take(&made->own);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    pthread_mutex_lock(&cuda_memory);
    made->next = arrays;
    arrays = made;
    pthread_mutex_unlock(&cuda_memory);
    *array = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *description) {
    if (!description)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR wide = {.Width = description->Width,
                                    .Height = description->Height,
                                    .Format = description->Format,
                                    .NumChannels = description->NumChannels};
    return cuArray3DCreate_v2(array, &wide);
}

CUDA_API CUresult cuArrayDestroy(CUarray array) {
    TRY(cuda_ready());
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    CUarray *link = &arrays;
    while (*link && *link != array)
        link = &(*link)->next;
    if (*link) {
        *link = array->next;
        give(&array->own);
        free(array);
    } else {
        result = CUDA_ERROR_INVALID_HANDLE; /* a level of a mipmapped array, too: it ends with that */
    }
    return cuda_leave(result);
}

static size_t half(size_t size, unsigned level) { return size >> level ? size >> level : size != 0; }

CUresult cuda_mipmap_make(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned levels,
                          struct backing *external, uint64_t offset, CUmipmappedArray *mipmap) {
    bool layered = description->Flags & CUDA_ARRAY3D_LAYERED;
    if (!is_valid(description) || levels == 0 || levels > MAX_LEVELS)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUmipmappedArray_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->magic = MIPMAP_MAGIC;
    made->levels = levels;
    made->storage = (struct array_storage){.context = context, .description = *description};
    for (unsigned i = 0; i < levels; i++) {
        CUarray level = &made->level[i];
        level->magic = ARRAY_MAGIC;
        level->storage = &made->storage;
        level->description = *description;
        level->description.Width = half(description->Width, i);
        level->description.Height = half(description->Height, i);
        level->description.Depth = layered ? description->Depth : half(description->Depth, i);
        level->offset = made->storage.size;
        made->storage.size += round_up(lay_out(level), GRAIN);
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (!external) {
        result = take(&made->storage);
    } else if (made->storage.size <= external->size && offset <= external->size - made->storage.size) {
        struct range place = {.backing = external, .size = made->storage.size};
        result = cuda_map_part(&place, offset);
        made->storage.external = external;
        made->storage.external_place = place.start;
    }
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    if (!external)
        pthread_mutex_lock(&cuda_memory);
    else
        cuda_hold(external);
    made->next = mipmaps;
    mipmaps = made;
    if (!external)
        pthread_mutex_unlock(&cuda_memory);
    *mipmap = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *description,
                                         unsigned int levels) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!mipmap || !description)
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_mipmap_make(context, description, levels, NULL, 0, mipmap);
}

CUDA_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    TRY(cuda_ready());
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    CUmipmappedArray *link = &mipmaps;
    while (*link && *link != mipmap)
        link = &(*link)->next;
    if (*link) {
        *link = mipmap->next;
        give(&mipmap->storage);
        free(mipmap);
    } else {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    return cuda_leave(result);
}

CUDA_API CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned int level) {
    TRY(cuda_ready());
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    if (!cuda_is_mipmap(mipmap))
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!array || level >= mipmap->levels)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        *array = &mipmap->level[level];
    return cuda_leave(result);
}

void cuda_forget_arrays(CUcontext context) {
    for (CUarray *link = &arrays; *link;) {
        CUarray array = *link;
        if (context && array->own.context != context) {
            link = &array->next;
            continue;
        }
        *link = array->next;
        give(&array->own);
        free(array);
    }
    for (CUmipmappedArray *link = &mipmaps; *link;) {
        CUmipmappedArray mipmap = *link;
        if (context && mipmap->storage.context != context) {
            link = &mipmap->next;
            continue;
        }
        *link = mipmap->next;
        give(&mipmap->storage);
        free(mipmap);
    }
}
