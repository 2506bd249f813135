/*
 * libcuda: what a graph consists of. Each question is asked twice, as in CUDA: without a list for the number,
 * then for as many as the list holds, the rest of which is filled with NULL.
 */
#define _GNU_SOURCE
#include "work.h"

/* Where an answer goes, one entry after the other. */
struct answer {
    CUgraphNode *first, *second; /* the second: of an edge */
    size_t capacity, found;
};

static void give(struct answer *answer, CUgraphNode first, CUgraphNode second) {
    if (answer->found < answer->capacity) {
        if (answer->first)
            answer->first[answer->found] = first;
        if (answer->second)
            answer->second[answer->found] = second;
    }
    answer->found++;
}

static CUresult end(struct answer *answer, size_t *count) {
    for (size_t i = answer->found; i < answer->capacity; i++) {
        if (answer->first)
            answer->first[i] = NULL;
        if (answer->second)
            answer->second[i] = NULL;
    }
    *count = answer->capacity && answer->found > answer->capacity ? answer->capacity : answer->found;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    if (!cuda_is_graph(graph) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer answer = {nodes, NULL, nodes ? *count : 0, 0};
    for (size_t i = 0; i < graph->count; i++)
        give(&answer, graph->nodes[i], NULL);
    return end(&answer, count);
}

CUDA_API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    if (!cuda_is_graph(graph) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer answer = {nodes, NULL, nodes ? *count : 0, 0};
    for (size_t i = 0; i < graph->count; i++)
        if (!graph->nodes[i]->before_count)
            give(&answer, graph->nodes[i], NULL);
    return end(&answer, count);
}

CUDA_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    if (!cuda_is_graph(graph) || !count || !from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer answer = {from, to, from ? *count : 0, 0};
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->before_count; j++)
            give(&answer, graph->nodes[i]->before[j], graph->nodes[i]);
    return end(&answer, count);
}

CUDA_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    if (!cuda_is_node(node) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->params.type;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count) {
    if (!cuda_is_node(node) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer answer = {dependencies, NULL, dependencies ? *count : 0, 0};
    for (size_t i = 0; i < node->before_count; i++)
        give(&answer, node->before[i], NULL);
    return end(&answer, count);
}

CUDA_API CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *dependents, size_t *count) {
    if (!cuda_is_node(node) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer answer = {dependents, NULL, dependents ? *count : 0, 0};
    for (size_t i = 0; i < node->graph->count; i++)
        for (size_t j = 0; j < node->graph->nodes[i]->before_count; j++)
            if (node->graph->nodes[i]->before[j] == node)
                give(&answer, node->graph->nodes[i], NULL);
    return end(&answer, count);
}
