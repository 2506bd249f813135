/*
 * libcuda: the parts of a graph. Each question is asked twice, as in CUDA: without a list for the number,
 * then for as many as the list holds. NULL fills the rest of the list.
 */
#define _GNU_SOURCE
#include "../core/work.h"

static CUresult list(CUgraphNode *to, size_t *count, CUgraphNode *nodes, size_t found) {
    for (size_t i = 0; to && i < *count; i++)
        to[i] = i < found ? nodes[i] : NULL;
    *count = to && *count && found > *count ? *count : found;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return cuda_is_graph(graph) && count ? list(nodes, count, graph->nodes, graph->count)
                                         : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count) {
    return cuda_is_node(node) && count ? list(dependencies, count, node->before, node->before_count)
                                       : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    if (!cuda_is_node(node) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->params.type;
    return CUDA_SUCCESS;
}
