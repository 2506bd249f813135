/*
 * libcuda: errors' names, and functions by name and version as cudart asks for them.
 */
#define _GNU_SOURCE
#include "library.h"

#include <string.h>

static const struct {
    CUresult error;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
     "the provided execution affinity is not supported"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
     "cannot set while device is active in this process"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(CUresult error, const char **text, bool name) {
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors && !*text; i++)
        if (errors[i].error == error)
            *text = name ? errors[i].name : errors[i].text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGetErrorName(CUresult error, const char **text) { return describe(error, text, true); }
CUDA_API CUresult cuGetErrorString(CUresult error, const char **text) { return describe(error, text, false); }

/* Each function under its name without version, with the CUDA version that it came with; of those
 * not newer than what is asked for, the newest is taken. */
static const struct {
    const char *name;
    int version;
    void *function;
} functions[] = {
    {"cuInit", 2000, cuInit},
    {"cuDriverGetVersion", 2020, cuDriverGetVersion},
    {"cuGetErrorName", 6000, cuGetErrorName},
    {"cuGetErrorString", 6000, cuGetErrorString},
    {"cuGetProcAddress", 11030, cuGetProcAddress},
    {"cuGetProcAddress", 12000, cuGetProcAddress_v2},
    {"cuDeviceGetCount", 2000, cuDeviceGetCount},
    {"cuDeviceGet", 2000, cuDeviceGet},
    {"cuDeviceGetName", 2000, cuDeviceGetName},
    {"cuDeviceGetUuid", 9020, cuDeviceGetUuid},
    {"cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2},
    {"cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2},
    {"cuDeviceGetAttribute", 2000, cuDeviceGetAttribute},
    {"cuDeviceComputeCapability", 2000, cuDeviceComputeCapability},
    {"cuDeviceGetPCIBusId", 4010, cuDeviceGetPCIBusId},
    {"cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain},
    {"cuDevicePrimaryCtxRelease", 7000, cuDevicePrimaryCtxRelease},
    {"cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2},
    {"cuDevicePrimaryCtxReset", 7000, cuDevicePrimaryCtxReset},
    {"cuDevicePrimaryCtxReset", 11000, cuDevicePrimaryCtxReset_v2},
    {"cuDevicePrimaryCtxSetFlags", 7000, cuDevicePrimaryCtxSetFlags},
    {"cuDevicePrimaryCtxSetFlags", 11000, cuDevicePrimaryCtxSetFlags_v2},
    {"cuDevicePrimaryCtxGetState", 7000, cuDevicePrimaryCtxGetState},
    {"cuCtxCreate", 2000, cuCtxCreate},
    {"cuCtxCreate", 3020, cuCtxCreate_v2},
    {"cuCtxCreate", 12050, cuCtxCreate_v4},
    {"cuCtxDestroy", 2000, cuCtxDestroy},
    {"cuCtxDestroy", 4000, cuCtxDestroy_v2},
    {"cuCtxPushCurrent", 2000, cuCtxPushCurrent},
    {"cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2},
    {"cuCtxPopCurrent", 2000, cuCtxPopCurrent},
    {"cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2},
    {"cuCtxSetCurrent", 4000, cuCtxSetCurrent},
    {"cuCtxGetCurrent", 4000, cuCtxGetCurrent},
    {"cuCtxGetDevice", 2000, cuCtxGetDevice},
    {"cuCtxSynchronize", 2000, cuCtxSynchronize},
    {"cuMemGetInfo", 3020, cuMemGetInfo_v2},
    {"cuMemAlloc", 3020, cuMemAlloc_v2},
    {"cuMemAllocPitch", 3020, cuMemAllocPitch_v2},
    {"cuMemAllocManaged", 6000, cuMemAllocManaged},
    {"cuMemFree", 3020, cuMemFree_v2},
    {"cuMemcpyHtoD", 3020, cuMemcpyHtoD_v2},
    {"cuMemcpyDtoH", 3020, cuMemcpyDtoH_v2},
    {"cuMemcpyDtoD", 3020, cuMemcpyDtoD_v2},
    {"cuMemsetD8", 3020, cuMemsetD8_v2},
    {"cuModuleLoadData", 2000, cuModuleLoadData},
    {"cuModuleLoadDataEx", 2010, cuModuleLoadDataEx},
    {"cuModuleUnload", 2000, cuModuleUnload},
    {"cuModuleGetFunction", 2000, cuModuleGetFunction},
    {"cuLaunchKernel", 4000, cuLaunchKernel},
    {"cuStreamCreate", 2000, cuStreamCreate},
    {"cuStreamDestroy", 2000, cuStreamDestroy},
    {"cuStreamDestroy", 4000, cuStreamDestroy_v2},
    {"cuStreamSynchronize", 2000, cuStreamSynchronize},
    {"cuStreamQuery", 2000, cuStreamQuery},
    {"cuStreamWaitEvent", 3020, cuStreamWaitEvent},
    {"cuEventCreate", 2000, cuEventCreate},
    {"cuEventDestroy", 2000, cuEventDestroy},
    {"cuEventDestroy", 4000, cuEventDestroy_v2},
    {"cuEventRecord", 2000, cuEventRecord},
    {"cuEventSynchronize", 2000, cuEventSynchronize},
    {"cuEventQuery", 2000, cuEventQuery},
    {"cuEventElapsedTime", 2000, cuEventElapsedTime},
    {"cuEventElapsedTime", 12080, cuEventElapsedTime_v2},
};

CUDA_API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status) {
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int best = 0, driver = cuda_driver_version();
    if (!symbol || !function ||
        flags > (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
        return CUDA_ERROR_INVALID_VALUE;
    *function = NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        int version = functions[i].version;
        if (strcmp(functions[i].name, symbol) != 0 || (driver && version > driver))
            continue;
        if (version > cuda_version) {
            if (!*function)
                found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        } else if (version > best) {
            best = version;
            *function = functions[i].function;
            found = CU_GET_PROC_ADDRESS_SUCCESS;
        }
    }
    if (status)
        *status = found;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUDA_API CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, cuda_version, flags, NULL);
}
