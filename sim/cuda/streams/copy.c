/*
 * libcuda: copies and fills. Those with a stream are done at once, because kernels compute nothing to wait
 * for. The others wait for the work before them, as on the default stream.
 */
#define _GNU_SOURCE
#include "copy.h"
#include "../core/work.h"

#include <string.h>
#include <sys/mman.h>

bool cuda_accessible(CUdeviceptr pointer, size_t bytes) {
    uintptr_t at = (uintptr_t)pointer;
    for (;;) {
        const struct range *range = cuda_range_of(&cuda_ranges, at, 1);
        if (!range || (range->kind == RANGE_MAPPED && !range->flags))
            return false;
        size_t here = range->size - (at - range->start);
        if (bytes <= here)
            return true;
        if (range->kind != RANGE_MAPPED) /* only mapped memory continues in another range */
            return false;
        at += here;
        bytes -= here;
    }
}

CUresult cuda_copy_begin(bool waits, CUstream handle) {
    CUcontext context;
    CUstream stream;
    TRY(cuda_stream(handle, &stream, &context));
    if (waits)
        TRY(cuda_stream_wait(handle));
    pthread_mutex_lock(&cuda_memory);
    return CUDA_SUCCESS;
}

void cuda_copy_end(void) { pthread_mutex_unlock(&cuda_memory); }

/* The copies whose named side is always the device's. The other side may be any memory. */
enum sides { TO_DEVICE = 1, FROM_DEVICE = 2 };

static CUresult copy(void *to, const void *from, size_t bytes, int sides, bool waits, CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    if (!waits && cuda_captured_copy(stream, (uintptr_t)to, (uintptr_t)from, bytes, &result))
        return result;
    TRY(cuda_copy_begin(waits, stream));
    if (bytes && (!to || !from || ((sides & TO_DEVICE) && !cuda_accessible((uintptr_t)to, bytes)) ||
                  ((sides & FROM_DEVICE) && !cuda_accessible((uintptr_t)from, bytes))))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (bytes)
        memmove(to, from, bytes);
    cuda_copy_end();
    return result;
}

#define AT(pointer) ((void *)(uintptr_t)(pointer))

/* One function of each kind, and its second symbol, whose default stream is the calling thread's. */
#define COPY(name, parameters, call_to, call_from, sides)                                                    \
    CUDA_API CUresult cuMemcpy##name parameters {                                                            \
        return copy(call_to, call_from, bytes, sides, true, NULL);                                           \
    }                                                                                                        \
    CUDA_API CUresult cuMemcpy##name##_ptds parameters {                                                     \
        return copy(call_to, call_from, bytes, sides, true, CU_STREAM_PER_THREAD);                           \
    }
#define COPY_ASYNC(name, parameters, call_to, call_from, sides)                                              \
    CUDA_API CUresult cuMemcpy##name parameters {                                                            \
        return copy(call_to, call_from, bytes, sides, false, stream);                                        \
    }                                                                                                        \
    CUDA_API CUresult cuMemcpy##name##_ptsz parameters {                                                     \
        return copy(call_to, call_from, bytes, sides, false, PER_THREAD(stream));                            \
    }

#define TO_FROM CUdeviceptr to, CUdeviceptr from, size_t bytes
#define TO_FROM_HOST CUdeviceptr to, const void *from, size_t bytes
#define TO_HOST_FROM void *to, CUdeviceptr from, size_t bytes
#define PEERS CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes
#define BOTH (TO_DEVICE | FROM_DEVICE)

COPY(, (TO_FROM), AT(to), AT(from), 0)
COPY(HtoD_v2, (TO_FROM_HOST), AT(to), from, TO_DEVICE)
COPY(DtoH_v2, (TO_HOST_FROM), to, AT(from), FROM_DEVICE)
COPY(DtoD_v2, (TO_FROM), AT(to), AT(from), BOTH)
COPY_ASYNC(Async, (TO_FROM, CUstream stream), AT(to), AT(from), 0)
COPY_ASYNC(HtoDAsync_v2, (TO_FROM_HOST, CUstream stream), AT(to), from, TO_DEVICE)
COPY_ASYNC(DtoHAsync_v2, (TO_HOST_FROM, CUstream stream), to, AT(from), FROM_DEVICE)
COPY_ASYNC(DtoDAsync_v2, (TO_FROM, CUstream stream), AT(to), AT(from), BOTH)
/* The addresses show their devices. */
#define ANY_CONTEXT (void)to_context, (void)from_context
COPY(Peer, (PEERS), (ANY_CONTEXT, AT(to)), AT(from), BOTH)
COPY_ASYNC(PeerAsync, (PEERS, CUstream stream), (ANY_CONTEXT, AT(to)), AT(from), BOTH)

/* Zeros need no memory: whole pages are given back to the file, and read as zeros. */
static void clear(uintptr_t start, size_t bytes) {
    const uintptr_t page = 4096;
    uintptr_t first = (start + page - 1) & ~(page - 1), end = start + bytes, last = end & ~(page - 1);
    if (first < last && madvise((void *)first, last - first, MADV_REMOVE) == 0) {
        memset((void *)start, 0, first - start);
        memset((void *)last, 0, end - last);
    } else {
        memset((void *)start, 0, bytes);
    }
}

/* `count` elements of `width` bytes, all of them `value`. */
static CUresult fill(CUdeviceptr to, unsigned value, size_t width, size_t count, bool waits,
                     CUstream stream) {
    size_t bytes;
    if (to % width || __builtin_mul_overflow(width, count, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEMSET,
                              .memset = {to, 0, value, (unsigned)width, count, 1, NULL}};
    CUresult result = CUDA_SUCCESS;
    if (!waits && cuda_captured(stream, &node, &result))
        return result;
    TRY(cuda_copy_begin(waits, stream));
    if (bytes && !cuda_accessible(to, bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (value == 0)
        clear((uintptr_t)to, bytes);
    else if (width == 1)
        memset(AT(to), (int)value, bytes);
    else
        for (size_t at = 0; at < bytes; at += width) /* little-endian: the value's first bytes */
            memcpy((char *)AT(to) + at, &value, width);
    cuda_copy_end();
    return result;
}

#define FILL(name, type, width)                                                                              \
    CUDA_API CUresult cuMemset##name##_v2(CUdeviceptr to, type value, size_t count) {                        \
        return fill(to, value, width, count, true, NULL);                                                    \
    }                                                                                                        \
    CUDA_API CUresult cuMemset##name##_v2_ptds(CUdeviceptr to, type value, size_t count) {                   \
        return fill(to, value, width, count, true, CU_STREAM_PER_THREAD);                                    \
    }                                                                                                        \
    CUDA_API CUresult cuMemset##name##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {     \
        return fill(to, value, width, count, false, stream);                                                 \
    }                                                                                                        \
    CUDA_API CUresult cuMemset##name##Async_ptsz(CUdeviceptr to, type value, size_t count,                   \
                                                 CUstream stream) {                                          \
        return fill(to, value, width, count, false, PER_THREAD(stream));                                     \
    }

FILL(D8, unsigned char, 1)
FILL(D16, unsigned short, 2)
FILL(D32, unsigned int, 4)
