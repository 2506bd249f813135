/*
 * libcuda: maps of tensors, for kernels from compute capability 9.0 on. A map is opaque: here it holds the
 * arguments of its creation.
 */
#define _GNU_SOURCE
#include "../core/library.h"

#include <string.h>

enum { MOST_DIMENSIONS = 5, MOST_OF_A_BOX = 256, MOST_STRIDE = 8 };

/* One dimension, as the CUDA driver API describes it for cuTensorMapEncodeTiled. */
static bool fits(cuuint64_t size, uint32_t box, uint32_t stride) {
    return size && size <= 1ull << 32 && box && box <= MOST_OF_A_BOX && stride && stride <= MOST_STRIDE;
}

CUDA_API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank,
                                         void *address, const cuuint64_t *dimensions,
                                         const cuuint64_t *strides, const uint32_t *box,
                                         const uint32_t *element_strides, CUtensorMapInterleave interleave,
                                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                         CUtensorMapFloatOOBfill fill) {
    TRY(cuda_ready());
    if (!map || (uintptr_t)map % _Alignof(CUtensorMap) || !address || (uintptr_t)address % 16 || !rank ||
        rank > MOST_DIMENSIONS || !dimensions || !box || !element_strides || (rank > 1 && !strides))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < rank; i++)
        if (!fits(dimensions[i], box[i], element_strides[i]) ||
            (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)))
            return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    map->opaque[0] = (cuuint64_t)(uintptr_t)address;
    map->opaque[1] = (cuuint64_t)type | (cuuint64_t)rank << 8 | (cuuint64_t)interleave << 16 |
                     (cuuint64_t)swizzle << 24 | (cuuint64_t)promotion << 32 | (cuuint64_t)fill << 40;
    memcpy(&map->opaque[2], dimensions, rank * sizeof *dimensions);
    if (rank > 1)
        memcpy(&map->opaque[7], strides, (rank - 1) * sizeof *strides);
    memcpy(&map->opaque[11], box, rank * sizeof *box);
    return CUDA_SUCCESS;
}
