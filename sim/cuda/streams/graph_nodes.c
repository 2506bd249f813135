/*
 * libcuda: nodes added to a graph, each kind by its own function or all by cuGraphAddNode, and their work,
 * read and changed.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <string.h>

CUDA_API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, CUgraphNodeParams *params) {
    return params ? cuda_graph_add(graph, dependencies, count, params, node) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                    const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    (void)edges; /* a plain edge is as strict as any */
    return cuGraphAddNode(node, graph, dependencies, count, params);
}

CUDA_API CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                    const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    return cuGraphAddNode_v2(node, graph, dependencies, edges, count, params);
}

CUDA_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                          size_t count, const CUDA_KERNEL_NODE_PARAMS *params) {
    CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    all.kernel = *params;
    return cuda_graph_add(graph, dependencies, count, &all, node);
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

/* Changes the work of an executable graph's node, which is named by its original. NULL: there is none, or it
 * is of another kind. */
static CUgraphNode exec_node(CUgraphExec exec, CUgraphNode node, CUgraphNodeType kind) {
    CUgraph graph = cuda_exec_graph(exec);
    for (size_t i = 0; graph && i < graph->count; i++)
        if (graph->nodes[i]->original == node && graph->nodes[i]->params.type == kind)
            return graph->nodes[i];
    return NULL;
}

CUDA_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_KERNEL_NODE_PARAMS *params) {
    CUgraphNode found = exec_node(exec, node, CU_GRAPH_NODE_TYPE_KERNEL);
    TRY(found && params ? cuda_kernel_check(params) : CUDA_ERROR_INVALID_VALUE);
    found->params.kernel = *params;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_MEMCPY3D *copy, CUcontext context) {
    CUgraphNode found = exec_node(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY);
    (void)context;
    if (!found || !copy)
        return CUDA_ERROR_INVALID_VALUE;
    found->params.memcpy.copyParams = *copy;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    CUgraphNode found = exec_node(exec, node, CU_GRAPH_NODE_TYPE_MEMSET);
    if (!found || !memset_makes_sense(params))
        return CUDA_ERROR_INVALID_VALUE;
    memset_in(&found->params, params, context);
    return CUDA_SUCCESS;
}
