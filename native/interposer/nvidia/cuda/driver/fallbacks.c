/*
 * Newer variants by older ones: see fallbacks.h. A request beyond these is CUDA_ERROR_NOT_SUPPORTED.
 */
#define _GNU_SOURCE
#include "fallbacks.h"

#include <string.h>

XPU_NEED(cuCtxCreate_v2)
XPU_NEED(cuCtxCreate_v3)
XPU_NEED(cuDeviceGetDefaultMemPool)
XPU_NEED(cuDeviceGetMemPool)
XPU_NEED(cuGetProcAddress)
XPU_NEED(cuGraphAddNode)
XPU_NEED(cuGraphAddNode_v2)
XPU_NEED(cuGraphExecDestroy)
XPU_NEED(cuGraphExecUpdate)
XPU_NEED(cuGraphInstantiateWithFlags)
XPU_NEED(cuGraphUpload)
XPU_NEED(cuGraphUpload_ptsz)
XPU_NEED(cuLaunchCooperativeKernel)
XPU_NEED(cuLaunchCooperativeKernel_ptsz)
XPU_NEED(cuLaunchKernel)
XPU_NEED(cuLaunchKernel_ptsz)
XPU_NEED(cuMemGetAllocationPropertiesFromHandle)
XPU_NEED(cuMulticastBindAddr)
XPU_NEED(cuMulticastBindMem)
XPU_NEED(cuPointerGetAttribute)
XPU_FALLBACK(cuCtxCreate_v4, cuCtxCreate_v3)
XPU_FALLBACK(cuGetProcAddress_v2, cuGetProcAddress)
XPU_FALLBACK(cuGraphAddNode_v2, cuGraphAddNode)
XPU_FALLBACK(cuGraphAddNode_v3, cuGraphAddNode_v2)
XPU_FALLBACK(cuGraphExecUpdate_v2, cuGraphExecUpdate)
XPU_FALLBACK(cuGraphInstantiateWithParams, cuGraphInstantiateWithFlags)
XPU_FALLBACK(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithFlags)
XPU_FALLBACK(cuLaunchKernelEx, cuLaunchKernel)
XPU_FALLBACK(cuLaunchKernelEx_ptsz, cuLaunchKernel_ptsz)
XPU_FALLBACK(cuMemGetDefaultMemPool, cuDeviceGetDefaultMemPool)
XPU_FALLBACK(cuMemGetMemPool, cuDeviceGetMemPool)
XPU_FALLBACK(cuMulticastBindAddr_v2, cuMulticastBindAddr)
XPU_FALLBACK(cuMulticastBindMem_v2, cuMulticastBindMem)

/* cudart looks for this function by dlsym. The older variant returns an error where the newer one sets a
 * status. */
static CUresult fallback_cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version,
                                             cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, cuda_version, flags);
    if (status)
        *status = result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return result;
}

/* ---- contexts ---- */

/* Graphics (cigParams) came with the newer variant. */
static CUresult fallback_cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags,
                                        CUdevice device) {
    if (params && params->cigParams)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (params && params->execAffinityParams)
        return REAL(cuCtxCreate_v3)(context, params->execAffinityParams, params->numExecAffinityParams, flags,
                                    device);
    return REAL(cuCtxCreate_v2)(context, flags, device);
}

/* ---- graphs ---- */

static bool is_plain(const CUgraphEdgeData *edge) {
    static const CUgraphEdgeData plain;
    return memcmp(edge, &plain, sizeof plain) == 0;
}

/* Edges have had kinds since R545. An edge without one carries no data. */
static CUresult fallback_cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                           const CUgraphEdgeData *edges, size_t count,
                                           CUgraphNodeParams *params) {
    for (size_t i = 0; edges && i < count; i++)
        if (!is_plain(&edges[i]))
            return CUDA_ERROR_NOT_SUPPORTED;
    return REAL(cuGraphAddNode)(node, graph, dependencies, count, params);
}

/* The newer variant is stricter about the contexts of kernels; the older one accepts all contexts that the
 * newer one accepts. */
static CUresult fallback_cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                           const CUgraphEdgeData *edges, size_t count,
                                           CUgraphNodeParams *params) {
    return REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, params);
}

static CUresult fallback_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                              CUgraphExecUpdateResultInfo *info) {
    if (!info)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){0};
    return REAL(cuGraphExecUpdate)(exec, graph, &info->errorNode, &info->result);
}

/* Older drivers upload by a separate call. Other flags are left to the driver. */
static CUresult instantiate(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                            CUresult (*upload)(CUgraphExec, CUstream)) {
    const cuuint64_t upload_flag = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = NULL;
    CUresult result = REAL(cuGraphInstantiateWithFlags)(exec, graph, params->flags & ~upload_flag);
    if (result == CUDA_SUCCESS && (params->flags & upload_flag)) {
        result = upload(*exec, params->hUploadStream);
        if (result != CUDA_SUCCESS)
            (void)REAL(cuGraphExecDestroy)(*exec);
    }
    params->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

static CUresult fallback_cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return instantiate(exec, graph, params, REAL(cuGraphUpload));
}

static CUresult fallback_cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                           CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return instantiate(exec, graph, params, REAL(cuGraphUpload_ptsz));
}

/* ---- launches ---- */

/* Older drivers (before R520) launch without attributes, or cooperatively by a separate call. */
static bool is_older_launch(const CUlaunchConfig *config, bool *cooperative) {
    *cooperative = false;
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            *cooperative = attribute->value.cooperative != 0;
        else if (attribute->id != CU_LAUNCH_ATTRIBUTE_IGNORE)
            return false;
    }
    return true;
}

static CUresult launch_by(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra,
                          __typeof__(cuLaunchKernel) *plain,
                          __typeof__(cuLaunchCooperativeKernel) *cooperative) {
    bool together;
    if (!config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_older_launch(config, &together) || (together && extra))
        return CUDA_ERROR_NOT_SUPPORTED;
    return together ? cooperative(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                                  config->blockDimX, config->blockDimY, config->blockDimZ,
                                  config->sharedMemBytes, config->hStream, arguments)
                    : plain(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                            config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream,
                            arguments, extra);
}

static CUresult fallback_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                          void **extra) {
    return launch_by(config, function, arguments, extra, REAL(cuLaunchKernel),
                     REAL(cuLaunchCooperativeKernel));
}

static CUresult fallback_cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                               void **arguments, void **extra) {
    return launch_by(config, function, arguments, extra, REAL(cuLaunchKernel_ptsz),
                     REAL(cuLaunchCooperativeKernel_ptsz));
}

/* ---- pools ---- */

/* Older drivers have no pools of managed memory, of the host, or of a part of a device. */
static CUresult pool_of(CUresult (*get)(CUmemoryPool *, CUdevice), CUmemoryPool *pool,
                        const CUmemLocation *location, CUmemAllocationType type) {
    if (!pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    return type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE
               ? get(pool, location->id)
               : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult fallback_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                                CUmemAllocationType type) {
    return pool_of(REAL(cuDeviceGetDefaultMemPool), pool, location, type);
}

static CUresult fallback_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                         CUmemAllocationType type) {
    return pool_of(REAL(cuDeviceGetMemPool), pool, location, type);
}

/* ---- multicast ---- */

/* The older variants bind for the memory's own device; the newer ones get the device as an argument. */
static CUresult fallback_cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device,
                                               size_t offset, CUmemGenericAllocationHandle memory,
                                               size_t memory_offset, size_t size, unsigned long long flags) {
    CUmemAllocationProp properties = {0};
    CUresult result = REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, memory);
    if (result != CUDA_SUCCESS)
        return result;
    if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (properties.location.id != device)
        return CUDA_ERROR_INVALID_VALUE;
    return REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, size, flags);
}

static CUresult fallback_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device,
                                                size_t offset, CUdeviceptr pointer, size_t size,
                                                unsigned long long flags) {
    int ordinal = -1;
    CUresult result = REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    if (result != CUDA_SUCCESS)
        return result;
    if (ordinal != device)
        return CUDA_ERROR_INVALID_VALUE;
    return REAL(cuMulticastBindAddr)(object, offset, pointer, size, flags);
}
