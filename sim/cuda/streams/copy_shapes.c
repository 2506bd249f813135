/*
 * libcuda: copies of rectangles and boxes, and to and from arrays: row by row.
 */
#define _GNU_SOURCE
#include "../core/work.h"
#include "../memory/array.h"
#include "copy.h"

#include <string.h>

/* One side of a copy. */
struct side {
    uintptr_t start; /* of the first byte */
    size_t row, slice;
};

static bool array_side(CUarray array, size_t x, size_t y, size_t z, size_t width, size_t height, size_t depth,
                       struct side *side) {
    if (!cuda_is_array(array))
        return false;
    size_t slices = array->description.Depth ? array->description.Depth : 1,
           slice = array->row * array->height;
    uintptr_t place = cuda_array_place(array);
    if (!place || x > array->row || width > array->row - x || y > array->height ||
        height > array->height - y || z > slices || depth > slices - z)
        return false;
    *side = (struct side){place + z * slice + y * array->row + x, array->row, slice};
    return true;
}

/* With the lock held: the source or the target of a copy. False: part of it is missing. */
static bool side_of(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array,
                    const size_t at[3], size_t pitch, size_t rows, const CUDA_MEMCPY3D *copy,
                    struct side *side) {
    if (type == CU_MEMORYTYPE_ARRAY)
        return array_side(array, at[0], at[1], at[2], copy->WidthInBytes, copy->Height, copy->Depth, side);
    uintptr_t base = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device;
    size_t row = pitch ? pitch : copy->WidthInBytes + at[0],
           slice = row * (rows ? rows : copy->Height + at[1]);
    *side = (struct side){base + at[2] * slice + at[1] * row + at[0], row, slice};
    if (!base || (copy->Height > 1 && row < copy->WidthInBytes))
        return false;
    size_t bytes = (copy->Depth - 1) * slice + (copy->Height - 1) * row + copy->WidthInBytes;
    return type != CU_MEMORYTYPE_DEVICE || cuda_accessible(side->start, bytes);
}

static CUresult copy_box(const CUDA_MEMCPY3D *copy, bool waits, CUstream stream) {
    struct side from, to;
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy.copyParams = *copy};
    CUresult result = CUDA_SUCCESS;
    if (!waits && cuda_captured(stream, &node, &result))
        return result;
    TRY(cuda_copy_begin(waits, stream));
    bool empty = !copy->WidthInBytes || !copy->Height || !copy->Depth;
    if (empty) {
        cuda_copy_end();
        return CUDA_SUCCESS;
    }
    if (!side_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
                 (size_t[]){copy->srcXInBytes, copy->srcY, copy->srcZ}, copy->srcPitch, copy->srcHeight, copy,
                 &from) ||
        !side_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
                 (size_t[]){copy->dstXInBytes, copy->dstY, copy->dstZ}, copy->dstPitch, copy->dstHeight, copy,
                 &to))
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t z = 0; result == CUDA_SUCCESS && z < copy->Depth; z++)
        for (size_t y = 0; y < copy->Height; y++)
            memmove((void *)(to.start + z * to.slice + y * to.row),
                    (const void *)(from.start + z * from.slice + y * from.row), copy->WidthInBytes);
    cuda_copy_end();
    return result;
}

static CUresult copy_rectangle(const CUDA_MEMCPY2D *flat, bool waits, CUstream stream) {
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D copy = {.srcXInBytes = flat->srcXInBytes,
                          .srcY = flat->srcY,
                          .srcMemoryType = flat->srcMemoryType,
                          .srcHost = flat->srcHost,
                          .srcDevice = flat->srcDevice,
                          .srcArray = flat->srcArray,
                          .srcPitch = flat->srcPitch,
                          .dstXInBytes = flat->dstXInBytes,
                          .dstY = flat->dstY,
                          .dstMemoryType = flat->dstMemoryType,
                          .dstHost = flat->dstHost,
                          .dstDevice = flat->dstDevice,
                          .dstArray = flat->dstArray,
                          .dstPitch = flat->dstPitch,
                          .WidthInBytes = flat->WidthInBytes,
                          .Height = flat->Height,
                          .Depth = 1};
    return copy_box(&copy, waits, stream);
}

CUDA_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy) { return copy_rectangle(copy, true, NULL); }
CUDA_API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy) {
    return copy_rectangle(copy, true, CU_STREAM_PER_THREAD);
}
CUDA_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy) { return cuMemcpy2D_v2(copy); }
CUDA_API CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy) { return cuMemcpy2D_v2_ptds(copy); }
CUDA_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) {
    return copy_rectangle(copy, false, stream);
}
CUDA_API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *copy, CUstream stream) {
    return cuMemcpy2DAsync_v2(copy, PER_THREAD(stream));
}
CUDA_API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy) {
    return copy ? copy_box(copy, true, NULL) : CUDA_ERROR_INVALID_VALUE;
}
CUDA_API CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy) {
    return copy ? copy_box(copy, true, CU_STREAM_PER_THREAD) : CUDA_ERROR_INVALID_VALUE;
}
CUDA_API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream) {
    return copy ? copy_box(copy, false, stream) : CUDA_ERROR_INVALID_VALUE;
}
CUDA_API CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *copy, CUstream stream) {
    return cuMemcpy3DAsync_v2(copy, PER_THREAD(stream));
}

/* Copies one row of an array, from or to anywhere. */
static CUresult copy_row(CUDA_MEMCPY2D copy, size_t bytes, bool waits, CUstream stream) {
    copy.WidthInBytes = bytes;
    copy.Height = 1;
    return copy_rectangle(&copy, waits, stream);
}

#define FROM_ARRAY(array, offset)                                                                            \
    .srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = (array), .srcXInBytes = (offset)
#define TO_ARRAY(array, offset)                                                                              \
    .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = (array), .dstXInBytes = (offset)
#define FROM_DEVICE(pointer) .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = (pointer)
#define TO_DEVICE(pointer) .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = (pointer)
#define FROM_HOST(pointer) .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = (pointer)
#define TO_HOST(pointer) .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = (pointer)

#define ROW(name, stream, parameters, ...)                                                                   \
    CUDA_API CUresult cuMemcpy##name parameters {                                                            \
        return copy_row((CUDA_MEMCPY2D){__VA_ARGS__}, bytes, true, stream);                                  \
    }
#define ROWS(name, parameters, ...)                                                                          \
    ROW(name##_v2, NULL, parameters, __VA_ARGS__)                                                            \
    ROW(name##_v2_ptds, CU_STREAM_PER_THREAD, parameters, __VA_ARGS__)

ROWS(DtoA, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes), FROM_DEVICE(from),
     TO_ARRAY(to, offset))
ROWS(AtoD, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes), FROM_ARRAY(from, offset),
     TO_DEVICE(to))
ROWS(HtoA, (CUarray to, size_t offset, const void *from, size_t bytes), FROM_HOST(from), TO_ARRAY(to, offset))
ROWS(AtoH, (void *to, CUarray from, size_t offset, size_t bytes), FROM_ARRAY(from, offset), TO_HOST(to))
ROWS(AtoA, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
     FROM_ARRAY(from, from_offset), TO_ARRAY(to, to_offset))

CUDA_API CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t bytes,
                                       CUstream stream) {
    return copy_row((CUDA_MEMCPY2D){FROM_HOST(from), TO_ARRAY(to, offset)}, bytes, false, stream);
}

CUDA_API CUresult cuMemcpyHtoAAsync_v2_ptsz(CUarray to, size_t offset, const void *from, size_t bytes,
                                            CUstream stream) {
    return cuMemcpyHtoAAsync_v2(to, offset, from, bytes, PER_THREAD(stream));
}

CUDA_API CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes, CUstream stream) {
    return copy_row((CUDA_MEMCPY2D){FROM_ARRAY(from, offset), TO_HOST(to)}, bytes, false, stream);
}

CUDA_API CUresult cuMemcpyAtoHAsync_v2_ptsz(void *to, CUarray from, size_t offset, size_t bytes,
                                            CUstream stream) {
    return cuMemcpyAtoHAsync_v2(to, from, offset, bytes, PER_THREAD(stream));
}
