/*
 * libcuda: values that a stream writes to memory once the work before is done.
 *
 * Before CUDA 11.7 these were for whom the driver's administrator has allowed it (NVreg_EnableStreamMemOPs),
 * which CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 tells. Waiting for a value is as on a node where he has
 * not (the generated "not supported"): libcublasLt looks for the functions, and does without. The later ones,
 * which are for all (_v2), are not here: nothing in the simulated device computes a value to wait for.
 */
#define _GNU_SOURCE
#include "../core/work.h"
#include "copy.h"

#include <string.h>

static CUresult write_value(CUstream stream, CUdeviceptr pointer, const void *value, size_t size) {
    CUresult result;
    if (cuda_capture_forbids(stream, &result))
        return result;
    result = cuda_stream_wait(stream);
    if (result == CUDA_SUCCESS)
        result = cuda_copy_begin(false, stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer % size || !cuda_accessible(pointer, size))
        result = CUDA_ERROR_INVALID_VALUE;
    else
        memcpy((void *)(uintptr_t)pointer, value, size);
    cuda_copy_end();
    return result;
}

#define WRITE(name, type)                                                                                    \
    CUDA_API CUresult name(CUstream stream, CUdeviceptr pointer, type value, unsigned int flags) {           \
        (void)flags;                                                                                         \
        return write_value(stream, pointer, &value, sizeof value);                                           \
    }                                                                                                        \
    CUDA_API CUresult name##_ptsz(CUstream stream, CUdeviceptr pointer, type value, unsigned int flags) {    \
        return name(PER_THREAD(stream), pointer, value, flags);                                              \
    }

WRITE(cuStreamWriteValue32, uint32_t)
WRITE(cuStreamWriteValue64, cuuint64_t)
WRITE(cuStreamWriteValue32_v2, uint32_t)
WRITE(cuStreamWriteValue64_v2, cuuint64_t)
