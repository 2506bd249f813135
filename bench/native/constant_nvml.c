/*
 * The libnvidia-ml beside constant_cuda.c. It has one device, and lists the calling process once that has a
 * context.
 */
#include "../../native/headers/nvml/nvml.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const unsigned long long TOTAL = 64ull << 30, CONTEXT = 64ull << 20;
static const char UUID[] = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";
static int device; /* its address is the handle */

nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle) {
    if (strcmp(uuid, UUID) != 0)
        return NVML_ERROR_NOT_FOUND;
    *handle = (nvmlDevice_t)(void *)&device;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *handle) {
    *handle = (nvmlDevice_t)(void *)&device;
    return index == 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned int length) {
    (void)handle;
    if (length < sizeof UUID)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(uuid, UUID, sizeof UUID);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    (void)handle;
    *memory = (nvmlMemory_t){.total = TOTAL, .free = TOTAL - CONTEXT, .used = CONTEXT};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
    (void)handle;
    if (*count < 1)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = getenv("CONSTANT_CUDA_CONTEXT") ? 1 : 0;
    infos[0] = (nvmlProcessInfo_t){.pid = (unsigned int)getpid(), .usedGpuMemory = CONTEXT};
    return NVML_SUCCESS;
}
