/*
 * libcuda: what the nodes of an executable graph do, changed one by one: by the node that they were made
 * from.
 */
#define _GNU_SOURCE
#include "work.h"

/* The node of an executable graph's own; NULL: there is none, or it is of another kind. */
static CUgraphNode exec_node(CUgraphExec exec, CUgraphNode node, CUgraphNodeType kind) {
    CUgraph graph = cuda_exec_graph(exec);
    CUgraphNode found;
    if (!graph || !cuda_is_node(node) || node->params.type != kind)
        return NULL;
    return cuGraphNodeFindInClone(&found, node, graph) == CUDA_SUCCESS ? found : NULL;
}

CUDA_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_KERNEL_NODE_PARAMS *params) {
    return cuGraphKernelNodeSetParams_v2(exec_node(exec, node, CU_GRAPH_NODE_TYPE_KERNEL), params);
}

CUDA_API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_KERNEL_NODE_PARAMS_v1 *params) {
    return cuGraphKernelNodeSetParams(exec_node(exec, node, CU_GRAPH_NODE_TYPE_KERNEL), params);
}

CUDA_API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_MEMCPY3D *copy, CUcontext context) {
    (void)context;
    return cuGraphMemcpyNodeSetParams(exec_node(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY), copy);
}

CUDA_API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    (void)context;
    return cuGraphMemsetNodeSetParams(exec_node(exec, node, CU_GRAPH_NODE_TYPE_MEMSET), params);
}

CUDA_API CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_HOST_NODE_PARAMS *params) {
    return cuGraphHostNodeSetParams(exec_node(exec, node, CU_GRAPH_NODE_TYPE_HOST), params);
}
