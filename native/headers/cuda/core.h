/*
 * Start, devices, contexts, kernels, streams and events.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define CUDA_API __attribute__((visibility("default")))

#ifndef __cuda_cuda_h__ /* the real header's own types, if it came first */

typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY = 224,
    CUDA_ERROR_INVALID_SOURCE = 300,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_ASSERT = 710,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
    CUDA_ERROR_MPS_RPC_FAILURE = 806,
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,
    CUDA_ERROR_UNKNOWN = 999,
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;

typedef enum CUdevice_attribute_enum {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
    CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY = 9,
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_MAX_PITCH = 11,
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12,
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
    CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT = 14,
    CU_DEVICE_ATTRIBUTE_GPU_OVERLAP = 15,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31,
    CU_DEVICE_ATTRIBUTE_ECC_ENABLED = 32,
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
    CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED = 90,
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
    CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
    CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED = 112,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
    CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES = 119,
    CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH = 120,
    CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED = 121,
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132,
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
    CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID = 139,
    CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID = 140,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED = 142,
    CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED = 144,
    CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 145,
    CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT = 149,
    CU_DEVICE_ATTRIBUTE_MAX = 1000, /* above every value that a future driver may know */
} CUdevice_attribute;

typedef enum CUlimit_enum {
    CU_LIMIT_STACK_SIZE = 0,
    CU_LIMIT_PRINTF_FIFO_SIZE = 1,
    CU_LIMIT_MALLOC_HEAP_SIZE = 2,
    CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3,
    CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
    CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5,
    CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6,
    CU_LIMIT_CIG_ENABLED = 8,
} CUlimit;

typedef enum CUjit_option_enum { CU_JIT_MAX_REGISTERS = 0 } CUjit_option;

typedef enum CUexecAffinityType_enum { CU_EXEC_AFFINITY_TYPE_SM_COUNT = 0 } CUexecAffinityType;

typedef struct CUexecAffinityParam_st {
    CUexecAffinityType type;
    union {
        struct {
            unsigned int val;
        } smCount;
    } param;
} CUexecAffinityParam;

typedef struct CUctxCreateParams_st {
    CUexecAffinityParam *execAffinityParams;
    int numExecAffinityParams;
    void *cigParams;
} CUctxCreateParams;

typedef enum CUdriverProcAddressQueryResult_enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
} CUdriverProcAddressQueryResult;

#define CU_GET_PROC_ADDRESS_LEGACY_STREAM 1
#define CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM 2
#define CU_EVENT_DISABLE_TIMING 2
#define CU_EVENT_INTERPROCESS 4
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

#endif

CUDA_API CUresult cuInit(unsigned int flags);
CUDA_API CUresult cuDriverGetVersion(int *version);
CUDA_API CUresult cuGetErrorName(CUresult error, const char **text);
CUDA_API CUresult cuGetErrorString(CUresult error, const char **text);
CUDA_API CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, cuuint64_t flags);
CUDA_API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status);
CUDA_API CUresult cuGetExportTable(const void **table, const CUuuid *id);

CUDA_API CUresult cuDeviceGetCount(int *count);
CUDA_API CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUDA_API CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUDA_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUDA_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUDA_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device);
CUDA_API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device);

CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUDA_API CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUDA_API CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUDA_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUDA_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags);
CUDA_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags);
CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active);
CUDA_API CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device);
CUDA_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUDA_API CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinities, int count,
                                 unsigned int flags, CUdevice device);
CUDA_API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                                 CUdevice device);
CUDA_API CUresult cuCtxAttach(CUcontext *context, unsigned int flags);
CUDA_API CUresult cuCtxDestroy(CUcontext context);
CUDA_API CUresult cuCtxDestroy_v2(CUcontext context);
CUDA_API CUresult cuCtxDetach(CUcontext context);
CUDA_API CUresult cuCtxPushCurrent(CUcontext context);
CUDA_API CUresult cuCtxPushCurrent_v2(CUcontext context);
CUDA_API CUresult cuCtxPopCurrent(CUcontext *context);
CUDA_API CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUDA_API CUresult cuCtxSetCurrent(CUcontext context);
CUDA_API CUresult cuCtxGetCurrent(CUcontext *context);
CUDA_API CUresult cuCtxGetDevice(CUdevice *device);
CUDA_API CUresult cuCtxGetFlags(unsigned int *flags);
CUDA_API CUresult cuCtxSetFlags(unsigned int flags);
CUDA_API CUresult cuCtxGetId(CUcontext context, unsigned long long *id);
CUDA_API CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version);
CUDA_API CUresult cuCtxSetLimit(CUlimit limit, size_t value);
CUDA_API CUresult cuCtxGetLimit(size_t *value, CUlimit limit);
CUDA_API CUresult cuCtxSynchronize(void);

CUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUDA_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                     CUjit_option *options, void **values);
CUDA_API CUresult cuModuleUnload(CUmodule module);
CUDA_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                 unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                 void **arguments, void **extra);

CUDA_API CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUDA_API CUresult cuStreamDestroy(CUstream stream);
CUDA_API CUresult cuStreamDestroy_v2(CUstream stream);
CUDA_API CUresult cuStreamSynchronize(CUstream stream);
CUDA_API CUresult cuStreamQuery(CUstream stream);
CUDA_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUDA_API CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUDA_API CUresult cuEventDestroy(CUevent event);
CUDA_API CUresult cuEventDestroy_v2(CUevent event);
CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream);
CUDA_API CUresult cuEventSynchronize(CUevent event);
CUDA_API CUresult cuEventQuery(CUevent event);
CUDA_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUDA_API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);
