/*
 * libcuda: graphs and their nodes. As in CUDA, only one thread at a time may use a graph.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <stdlib.h>
#include <string.h>

bool cuda_is_graph(CUgraph graph) { return graph && graph->magic == GRAPH_MAGIC; }
bool cuda_is_node(CUgraphNode node) { return node && node->magic == NODE_MAGIC; }

bool cuda_tail_set(struct tail *tail, const CUgraphNode *nodes, size_t count) {
    CUgraphNode *copy = malloc((count ? count : 1) * sizeof *copy);
    if (!copy)
        return false;
    if (count)
        memcpy(copy, nodes, count * sizeof *copy);
    free(tail->nodes);
    *tail = (struct tail){copy, count};
    return true;
}

bool cuda_tail_add(struct tail *tail, const CUgraphNode *nodes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < tail->count && tail->nodes[at] != nodes[i])
            at++;
        if (at < tail->count)
            continue;
        CUgraphNode *larger = realloc(tail->nodes, (tail->count + 1) * sizeof *larger);
        if (!larger)
            return false;
        larger[tail->count] = nodes[i];
        *tail = (struct tail){larger, tail->count + 1};
    }
    return true;
}

CUDA_API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    TRY(cuda_ready());
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = calloc(1, sizeof **graph);
    if (!*graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*graph)->magic = GRAPH_MAGIC;
    return CUDA_SUCCESS;
}

static void node_free(CUgraphNode node) {
    if (node->memory)
        graph_memory_release(node->memory);
    if (node->params.type == CU_GRAPH_NODE_TYPE_GRAPH)
        (void)cuGraphDestroy(node->params.graph.graph);
    node->magic = 0;
    free(node->before);
    free(node);
}

CUDA_API CUresult cuGraphDestroy(CUgraph graph) {
    if (!cuda_is_graph(graph))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++)
        node_free(graph->nodes[i]);
    graph->magic = 0;
    free(graph->nodes);
    free(graph);
    return CUDA_SUCCESS;
}

bool cuda_graph_has_memory(CUgraph graph) {
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            graph->nodes[i]->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return true;
    return false;
}

/* Checks the node itself. A child graph is copied into it. */
static CUresult prepare(CUgraphNode node) {
    CUgraph child;
    switch (node->params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuda_kernel_check(&node->params.kernel);
    case CU_GRAPH_NODE_TYPE_HOST:
        return node->params.host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        child = node->params.graph.graph;
        node->params.graph.graph = NULL;
        if (!cuda_is_graph(child) || child == node->graph)
            return CUDA_ERROR_INVALID_VALUE;
        if (cuda_graph_has_memory(child))
            return CUDA_ERROR_NOT_SUPPORTED;
        return cuda_graph_copy(child, &node->params.graph.graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuda_event_check(node->params.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return graph_memory_add(node);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return graph_memory_is_start(node->params.free.dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

static bool append(CUgraph graph, CUgraphNode node) {
    if (graph->count == graph->capacity) {
        size_t capacity = graph->capacity ? graph->capacity * 2 : 16;
        CUgraphNode *larger = realloc(graph->nodes, capacity * sizeof *larger);
        if (!larger)
            return false;
        graph->nodes = larger;
        graph->capacity = capacity;
    }
    graph->nodes[graph->count++] = node;
    node->graph = graph;
    return true;
}

static CUgraphNode node_make(const CUgraphNode *before, size_t count) {
    CUgraphNode node = calloc(1, sizeof *node);
    CUgraphNode *edges = malloc((count ? count : 1) * sizeof *edges);
    if (!node || !edges) {
        free(node);
        free(edges);
        return NULL;
    }
    if (count)
        memcpy(edges, before, count * sizeof *edges);
    node->magic = NODE_MAGIC;
    node->before = edges;
    node->before_count = count;
    return node;
}

CUresult cuda_graph_add(CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeParams *params,
                        CUgraphNode *made) {
    if (!cuda_is_graph(graph) || !made || (count && !before))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!cuda_is_node(before[i]) || before[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode node = node_make(before, count);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->params = *params;
    node->graph = graph;
    CUresult result = prepare(node);
    if (result == CUDA_SUCCESS && !append(graph, node))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        if (node->params.type == CU_GRAPH_NODE_TYPE_GRAPH && !node->params.graph.graph)
            node->params.type = CU_GRAPH_NODE_TYPE_EMPTY;
        node_free(node);
        return result;
    }
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        params->alloc.dptr = node->params.alloc.dptr;
    *made = node;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                         size_t count) {
    if (!cuda_is_graph(graph) || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!cuda_is_node(from[i]) || !cuda_is_node(to[i]) || from[i]->graph != graph ||
            to[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
        for (size_t j = 0; j < to[i]->before_count; j++)
            if (to[i]->before[j] == from[i])
                return CUDA_ERROR_INVALID_VALUE; /* there already */
        struct tail edges = {to[i]->before, to[i]->before_count};
        if (!cuda_tail_add(&edges, &from[i], 1))
            return CUDA_ERROR_OUT_OF_MEMORY;
        to[i]->before = edges.nodes;
        to[i]->before_count = edges.count;
    }
    return CUDA_SUCCESS;
}

/* The copy of a node whose dependencies have all been copied; mark: 1 + its place in the copy, 0: not yet. */
static CUresult copy_node(CUgraphNode node, CUgraph copy) {
    CUgraphNode made = node_make(NULL, 0);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->params = node->params;
    made->original = node;
    made->memory = node->memory;
    if (made->memory)
        graph_memory_hold(made->memory);
    CUresult result = CUDA_SUCCESS;
    if (node->params.type == CU_GRAPH_NODE_TYPE_GRAPH)
        result = cuda_graph_copy(node->params.graph.graph, &made->params.graph.graph);
    if (result != CUDA_SUCCESS)
        made->params.type = CU_GRAPH_NODE_TYPE_EMPTY;
    struct tail edges = {made->before, 0};
    for (size_t i = 0; i < node->before_count && result == CUDA_SUCCESS; i++)
        if (!cuda_tail_add(&edges, &copy->nodes[node->before[i]->mark - 1], 1))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    made->before = edges.nodes;
    made->before_count = edges.count;
    if (result == CUDA_SUCCESS && !append(copy, made))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS)
        node_free(made);
    else
        node->mark = copy->count;
    return result;
}

static bool ready(CUgraphNode node) {
    for (size_t i = 0; i < node->before_count; i++)
        if (!node->before[i]->mark)
            return false;
    return !node->mark;
}

CUresult cuda_graph_copy(CUgraph graph, CUgraph *copy) {
    CUresult result = cuGraphCreate(copy, 0);
    for (size_t i = 0; i < graph->count; i++)
        graph->nodes[i]->mark = 0;
    bool moved = true;
    while (result == CUDA_SUCCESS && (*copy)->count < graph->count) {
        if (!moved)
            result = CUDA_ERROR_INVALID_VALUE; /* a circle */
        moved = false;
        for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
            if (ready(graph->nodes[i])) {
                result = copy_node(graph->nodes[i], *copy);
                moved = true;
            }
    }
    if (result != CUDA_SUCCESS && *copy) {
        (void)cuGraphDestroy(*copy);
        *copy = NULL;
    }
    return result;
}
