/*
 * libcuda: fills of several rows, each a separate fill.
 */
#define _GNU_SOURCE
#include "../core/work.h"

CUresult cuda_fill_rows(const CUDA_MEMSET_NODE_PARAMS_v2 *fill, CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    for (size_t row = 0; row < fill->height && result == CUDA_SUCCESS; row++) {
        CUdeviceptr to = fill->dst + row * fill->pitch;
        if (fill->elementSize == 1)
            result = cuMemsetD8Async(to, (unsigned char)fill->value, fill->width, stream);
        else if (fill->elementSize == 2)
            result = cuMemsetD16Async(to, (unsigned short)fill->value, fill->width, stream);
        else
            result = cuMemsetD32Async(to, fill->value, fill->width, stream);
    }
    return result;
}

static CUresult rows(CUdeviceptr to, size_t pitch, unsigned int value, unsigned int element, size_t width,
                     size_t height, bool waits, CUstream stream) {
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMSET,
                              .memset = {to, pitch, value, element, width, height, NULL}};
    CUresult result;
    if (height > 1 && pitch < width * element)
        return CUDA_ERROR_INVALID_VALUE;
    if (!width || !height)
        return CUDA_SUCCESS;
    if (!waits && cuda_captured(stream, &node, &result))
        return result;
    TRY(waits ? cuda_stream_wait(stream) : CUDA_SUCCESS);
    return cuda_fill_rows(&node.memset, stream);
}

#define FILL_ROWS(name, type, element)                                                                       \
    CUDA_API CUresult cuMemset##name##_v2(CUdeviceptr to, size_t pitch, type value, size_t width,            \
                                          size_t height) {                                                   \
        return rows(to, pitch, value, element, width, height, true, NULL);                                   \
    }                                                                                                        \
    CUDA_API CUresult cuMemset##name##_v2_ptds(CUdeviceptr to, size_t pitch, type value, size_t width,       \
                                               size_t height) {                                              \
        return rows(to, pitch, value, element, width, height, true, CU_STREAM_PER_THREAD);                   \
    }                                                                                                        \
    CUDA_API CUresult cuMemset##name##Async(CUdeviceptr to, size_t pitch, type value, size_t width,          \
                                            size_t height, CUstream stream) {                                \
        return rows(to, pitch, value, element, width, height, false, stream);                                \
    }                                                                                                        \
    CUDA_API CUresult cuMemset##name##Async_ptsz(CUdeviceptr to, size_t pitch, type value, size_t width,     \
                                                 size_t height, CUstream stream) {                           \
        return rows(to, pitch, value, element, width, height, false, PER_THREAD(stream));                    \
    }

FILL_ROWS(D2D8, unsigned char, 1)
FILL_ROWS(D2D16, unsigned short, 2)
FILL_ROWS(D2D32, unsigned int, 4)
