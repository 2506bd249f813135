/*
 * libcuda: places of memory: a device, a part of one, the host.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

/* A part of a device's memory, which drivers know from CUDA 13.4 on. */
static CUresult locality_domain(int id, CUdevice *device, bool *host) {
    int count = 0;
    *device = id & 0xff;
    *host = false;
    if (cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT, *device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    return (id >> 8 & 0xff) < count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_location(const CUmemLocation *location, CUdevice *device, bool *host) {
    const struct cuda_device *found;
    CUresult result = cuda_ready();
    *device = 0;
    *host = true;
    if (result != CUDA_SUCCESS)
        return result;
    if (!location)
        return CUDA_ERROR_INVALID_VALUE;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        *device = location->id;
        *host = false;
        return cuda_device(location->id, &found) == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return location->id >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return locality_domain(location->id, device, host);
    case CU_MEM_LOCATION_TYPE_INVALID:
    case CU_MEM_LOCATION_TYPE_INVISIBLE:
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
