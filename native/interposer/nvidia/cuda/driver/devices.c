/*
 * CUDA numbers the devices that CUDA_VISIBLE_DEVICES and MIG leave, in their order; the pages have UUIDs. The
 * result is kept: the numbering never changes in a process.
 */
#define _GNU_SOURCE
#include "devices.h"
#include "mps.h"
#include "real.h"

#include <string.h>

XPU_NEED(cuCtxGetCurrent)
XPU_NEED(cuCtxGetDevice)
XPU_NEED(cuCtxPopCurrent_v2)
XPU_NEED(cuCtxPushCurrent_v2)
XPU_NEED(cuDeviceGetUuid)
XPU_NEED(cuDeviceGetUuid_v2)
XPU_NEED(cuStreamGetCtx)

enum { UNKNOWN = 0, ABSENT = 1, FIRST = XPU_FIRST_INDEX };

uint8_t xpu_indexes[XPU_NUMBERS]; /* by CUDA's number: UNKNOWN, ABSENT, or the index + FIRST; atomic */

static void forget(void) { memset(xpu_indexes, UNKNOWN, sizeof xpu_indexes); }
XPU_AT_FORK(forget)

/* Drivers without _v2 (before R470) return for a MIG device the UUID of its card. This is not in the pages,
 * so there the device is not granted. */
static CUresult get_uuid(CUuuid *uuid, CUdevice device) {
    return XPU_HAS(cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(uuid, device)
                                       : REAL(cuDeviceGetUuid)(uuid, device);
}

static CUresult look_up(CUdevice device, uint8_t *known) {
    CUuuid uuid;
    CUresult result = get_uuid(&uuid, device);
    if (result != CUDA_SUCCESS)
        return result;
    int index = xpu_device_index((const uint8_t *)uuid.bytes);
    const char *why;
    *known = (uint8_t)(index < 0 ? ABSENT : index + FIRST);
    /* The pages may be opened later: without them nothing is remembered. */
    if (xpu_pages_open(&why) && device >= 0 && device < XPU_NUMBERS)
        __atomic_store_n(&xpu_indexes[device], *known, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult xpu_find_index(CUdevice device, int *index) {
    uint8_t known = device >= 0 && device < XPU_NUMBERS
                        ? __atomic_load_n(&xpu_indexes[device], __ATOMIC_RELAXED)
                        : UNKNOWN;
    CUresult result = known == UNKNOWN ? look_up(device, &known) : CUDA_SUCCESS;
    *index = known >= FIRST ? known - FIRST : -1;
    return result;
}

int xpu_index_of(CUdevice device) {
    int index;
    (void)xpu_find_index(device, &index);
    return index;
}

CUresult xpu_permitted(void) {
    const char *why = NULL;
    if (__builtin_expect(xpu_pages_open(&why) != NULL, 1))
        return xpu_mps_permitted();
    xpu_device_refused(why);
    return CUDA_ERROR_NOT_PERMITTED;
}

static CUresult find_granted(CUdevice device, int *index) {
    CUresult result = xpu_permitted();
    if (result == CUDA_SUCCESS)
        result = xpu_find_index(device, index);
    if (result == CUDA_SUCCESS && *index < 0) {
        xpu_device_refused(
            "the driver shows a device that this container's slice does not name: start the container "
            "anew with the XPU runtime");
        result = CUDA_ERROR_NOT_PERMITTED;
    }
    return result;
}

CUresult xpu_granted(CUdevice device, int *index) {
    *index = xpu_index_known(device);
    return __builtin_expect(*index >= 0, 1) ? CUDA_SUCCESS : find_granted(device, index);
}

CUresult xpu_granted_here(int *index) {
    CUdevice device;
    CUresult result = xpu_permitted();
    if (result == CUDA_SUCCESS)
        result = REAL(cuCtxGetDevice)(&device);
    return result == CUDA_SUCCESS ? xpu_granted(device, index) : result;
}

CUresult xpu_location_known(const CUmemLocation *location) {
    CUdevice device;
    if (xpu_location_device(location, &device) ||
        (unsigned)location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CUDA_SUCCESS;
    xpu_device_refused(
        "the program asks for memory at a kind of location that these interposer libraries do not know, "
        "and cannot count: use a newer XPU runtime, or ask for memory of a device");
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult xpu_context_device(CUcontext context, CUdevice *device) {
    CUcontext current, popped;
    CUresult result = REAL(cuCtxGetCurrent)(&current);
    if (result != CUDA_SUCCESS || current == context)
        return result == CUDA_SUCCESS ? REAL(cuCtxGetDevice)(device) : result;
    result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxGetDevice)(device);
    (void)REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

CUresult xpu_stream_context(CUstream stream, CUcontext *context) {
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return REAL(cuCtxGetCurrent)(context);
    return REAL(cuStreamGetCtx)(stream, context);
}
