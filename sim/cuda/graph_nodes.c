/*
 * libcuda: nodes added to a graph, each kind by its own function or all by
 * cuGraphAddNode, and what they do, read and changed.
 */
#define _GNU_SOURCE
#include "work.h"

#include <string.h>

CUDA_API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, CUgraphNodeParams *params) {
    return params ? cuda_graph_add(graph, dependencies, count, params, node) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                    const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    (void)edges; /* a plain edge is as strong as any */
    return cuGraphAddNode(node, graph, dependencies, count, params);
}

CUDA_API CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                    const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    return cuGraphAddNode_v2(node, graph, dependencies, edges, count, params);
}

static CUDA_KERNEL_NODE_PARAMS from_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *params) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = params->func,
                                     .gridDimX = params->gridDimX,
                                     .gridDimY = params->gridDimY,
                                     .gridDimZ = params->gridDimZ,
                                     .blockDimX = params->blockDimX,
                                     .blockDimY = params->blockDimY,
                                     .blockDimZ = params->blockDimZ,
                                     .sharedMemBytes = params->sharedMemBytes,
                                     .kernelParams = params->kernelParams,
                                     .extra = params->extra};
}

CUDA_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                          size_t count, const CUDA_KERNEL_NODE_PARAMS *params) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    all.kernel = *params;
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

CUDA_API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                       size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS newer = from_v1(params);
    return cuGraphAddKernelNode_v2(node, graph, dependencies, count, &newer);
}

CUDA_API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                       size_t count, const CUDA_MEMCPY3D *copy, CUcontext context) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    all.memcpy.copyParams = *copy;
    all.memcpy.copyCtx = context;
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

static bool memset_makes_sense(const CUDA_MEMSET_NODE_PARAMS *params) {
    return params && (params->elementSize == 1 || params->elementSize == 2 || params->elementSize == 4) &&
           params->width && params->height;
}

static void memset_in(CUgraphNodeParams *all, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    all->memset =
        (CUDA_MEMSET_NODE_PARAMS_v2){params->dst,   params->pitch,  params->value, params->elementSize,
                                     params->width, params->height, context};
}

CUDA_API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                       size_t count, const CUDA_MEMSET_NODE_PARAMS *params,
                                       CUcontext context) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    if (!memset_makes_sense(params))
        return CUDA_ERROR_INVALID_VALUE;
    memset_in(&all, params, context);
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

CUDA_API CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                     size_t count, const CUDA_HOST_NODE_PARAMS *params) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_HOST};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    all.host = (CUDA_HOST_NODE_PARAMS_v2){.fn = params->fn, .userData = params->userData};
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

CUDA_API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                      size_t count) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

CUDA_API CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                           size_t count, CUgraph child) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = {child, 0}};
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

CUDA_API CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                            size_t count, CUevent event) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord = {.event = event}};
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

CUDA_API CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                          size_t count, CUevent event) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait = {.event = event}};
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

CUDA_API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                         size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    all.alloc = *params;
    CUresult result = cuda_graph_add(graph, dependencies, count, &all, node);
    params->dptr = result == CUDA_SUCCESS ? all.alloc.dptr : 0;
    return result;
}

CUDA_API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                        size_t count, CUdeviceptr pointer) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {pointer}};
    return cuda_graph_add(graph, dependencies, count, &all, node);
}

/* Opens a function on one kind of node. */
#define NODE(node, kind, argument)                                                                           \
    do {                                                                                                     \
        if (!cuda_is_node(node) || (node)->params.type != (kind) || !(argument))                             \
            return CUDA_ERROR_INVALID_VALUE;                                                                 \
    } while (0)

CUDA_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    NODE(node, CU_GRAPH_NODE_TYPE_KERNEL, params);
    *params = node->params.kernel;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params) {
    NODE(node, CU_GRAPH_NODE_TYPE_KERNEL, params);
    memcpy(params, &node->params.kernel, sizeof *params); /* the newer one only goes on behind it */
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    NODE(node, CU_GRAPH_NODE_TYPE_KERNEL, params);
    CUresult result = cuda_kernel_check(params);
    if (result == CUDA_SUCCESS)
        node->params.kernel = *params;
    return result;
}

CUDA_API CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS newer = from_v1(params);
    return cuGraphKernelNodeSetParams_v2(node, &newer);
}

CUDA_API CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *copy) {
    NODE(node, CU_GRAPH_NODE_TYPE_MEMCPY, copy);
    *copy = node->params.memcpy.copyParams;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *copy) {
    NODE(node, CU_GRAPH_NODE_TYPE_MEMCPY, copy);
    node->params.memcpy.copyParams = *copy;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params) {
    NODE(node, CU_GRAPH_NODE_TYPE_MEMSET, params);
    memcpy(params, &node->params.memset, sizeof *params);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params) {
    NODE(node, CU_GRAPH_NODE_TYPE_MEMSET, memset_makes_sense(params));
    memset_in(&node->params, params, node->params.memset.ctx);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *params) {
    NODE(node, CU_GRAPH_NODE_TYPE_HOST, params);
    *params = (CUDA_HOST_NODE_PARAMS){node->params.host.fn, node->params.host.userData};
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params) {
    NODE(node, CU_GRAPH_NODE_TYPE_HOST, params && params->fn);
    node->params.host = (CUDA_HOST_NODE_PARAMS_v2){.fn = params->fn, .userData = params->userData};
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *child) {
    NODE(node, CU_GRAPH_NODE_TYPE_GRAPH, child);
    *child = node->params.graph.graph;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    NODE(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params);
    *params = node->params.alloc;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer) {
    NODE(node, CU_GRAPH_NODE_TYPE_MEM_FREE, pointer);
    *pointer = node->params.free.dptr;
    return CUDA_SUCCESS;
}
