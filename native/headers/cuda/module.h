/*
 * Code on the device: modules, libraries, their kernels and variables, launches, and a kernel's occupancy.
 */
#pragma once

#include "vmm.h"

#ifndef __cuda_cuda_h__

typedef struct CUlib_st *CUlibrary;
typedef struct CUlinkState_st *CUlinkState;
typedef struct CUkern_st *CUkernel;
typedef void (*CUhostFn)(void *user_data);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *user_data);
typedef size_t (*CUoccupancyB2DSize)(int block_size);

typedef enum CUjitInputType_enum {
    CU_JIT_NUM_INPUT_TYPES = 6,
} CUjitInputType;

typedef enum CUtensorMapDataType_enum { CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0 } CUtensorMapDataType;
typedef enum CUtensorMapInterleave_enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 } CUtensorMapInterleave;
typedef enum CUtensorMapSwizzle_enum { CU_TENSOR_MAP_SWIZZLE_NONE = 0 } CUtensorMapSwizzle;
typedef enum CUtensorMapL2promotion_enum { CU_TENSOR_MAP_L2_PROMOTION_NONE = 0 } CUtensorMapL2promotion;
typedef enum CUtensorMapFloatOOBfill_enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 } CUtensorMapFloatOOBfill;

typedef struct CUtensorMap_st {
    _Alignas(64) cuuint64_t opaque[16];
} CUtensorMap;

typedef enum CUmoduleLoadingMode_enum {
    CU_MODULE_EAGER_LOADING = 1,
    CU_MODULE_LAZY_LOADING = 2,
} CUmoduleLoadingMode;

typedef enum CUfunctionLoadingState_enum {
    CU_FUNCTION_LOADING_STATE_UNLOADED = 0,
} CUfunctionLoadingState;

typedef enum CUlibraryOption_enum {
    CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE = 0,
} CUlibraryOption;

typedef enum CUfunction_attribute_enum {
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH = 11,
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
    CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15,
    CU_FUNC_ATTRIBUTE_MAX = 18,
} CUfunction_attribute;

typedef enum CUfunc_cache_enum {
    CU_FUNC_CACHE_PREFER_NONE = 0,
} CUfunc_cache;

typedef enum CUsharedconfig_enum {
    CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE = 0,
} CUsharedconfig;

typedef enum CUlaunchAttributeID_enum {
    CU_LAUNCH_ATTRIBUTE_IGNORE = 0,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
} CUlaunchAttributeID;

typedef union CUlaunchAttributeValue_union {
    char pad[64];
    int cooperative, priority, programmaticStreamSerializationAllowed;
    struct {
        unsigned int x, y, z;
    } clusterDim;
} CUlaunchAttributeValue;

typedef struct CUlaunchAttribute_st {
    CUlaunchAttributeID id;
    char pad[4];
    CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig_st {
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

typedef struct CUDA_LAUNCH_PARAMS_st {
    CUfunction function;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

#endif

CUDA_API CUresult cuModuleLoad(CUmodule *module, const char *path);
CUDA_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image);
CUDA_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode);
CUDA_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                                       const char *name);
CUDA_API CUresult cuFuncGetModule(CUmodule *module, CUfunction function);
CUDA_API CUresult cuFuncGetName(const char **name, CUfunction function);
CUDA_API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function);
CUDA_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value);
CUDA_API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache preference);
CUDA_API CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function);
CUDA_API CUresult cuFuncLoad(CUfunction function);

CUDA_API CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values,
                                  CUlinkState *state);
CUDA_API CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                                   const char *name, unsigned int count, CUjit_option *options,
                                   void **values);
CUDA_API CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                                   unsigned int count, CUjit_option *options, void **values);
CUDA_API CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size);
CUDA_API CUresult cuLinkDestroy(CUlinkState state);

CUDA_API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank,
                                         void *address, const cuuint64_t *dimensions,
                                         const cuuint64_t *strides, const uint32_t *box,
                                         const uint32_t *element_strides, CUtensorMapInterleave interleave,
                                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                         CUtensorMapFloatOOBfill fill);

CUDA_API CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit_options,
                                    void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                    void **values, unsigned int count);
CUDA_API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                                        void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                                        void **values, unsigned int count);
CUDA_API CUresult cuLibraryUnload(CUlibrary library);
CUDA_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
CUDA_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library);
CUDA_API CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                                     const char *name);
CUDA_API CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                                      const char *name);
CUDA_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUDA_API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel);
CUDA_API CUresult cuKernelGetName(const char **name, CUkernel kernel);
CUDA_API CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                                       CUdevice device);
CUDA_API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                       CUdevice device);
CUDA_API CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache preference, CUdevice device);

CUDA_API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                      unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                      unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                      void **arguments, void **extra);
CUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                   void **extra);
CUDA_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                        void **extra);
CUDA_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                            unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                            unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                            void **arguments);
CUDA_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x,
                                                 unsigned int grid_y, unsigned int grid_z,
                                                 unsigned int block_x, unsigned int block_y,
                                                 unsigned int block_z, unsigned int shared_bytes,
                                                 CUstream stream, void **arguments);
CUDA_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
                                                       unsigned int flags);
/* From CUDA 1 to 3, which set shape and arguments apart. */
CUDA_API CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z);
CUDA_API CUresult cuLaunch(CUfunction function);
CUDA_API CUresult cuLaunchGrid(CUfunction function, int width, int height);
CUDA_API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream);
CUDA_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *user_data);
CUDA_API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *user_data);
CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                              int block_size, size_t dynamic_bytes);
CUDA_API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                               const CUlaunchConfig *config);
CUDA_API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function,
                                                     const CUlaunchConfig *config);
CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                                       int block_size, size_t dynamic_bytes,
                                                                       unsigned int flags);
CUDA_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid_size, int *block_size, CUfunction function,
                                                   CUoccupancyB2DSize dynamic_of, size_t dynamic_bytes,
                                                   int limit);
CUDA_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid_size, int *block_size,
                                                            CUfunction function,
                                                            CUoccupancyB2DSize dynamic_of,
                                                            size_t dynamic_bytes, int limit,
                                                            unsigned int flags);
CUDA_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks,
                                                          int block_size);
