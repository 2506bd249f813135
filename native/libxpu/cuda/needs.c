/*
 * What a graph needs: the addresses of its allocations, which are fixed once its nodes are made. Allocations
 * that never live at the same time share theirs, and so share the memory behind them.
 */
#define _GNU_SOURCE
#include "needs.h"
#include "real.h"

#include <stdlib.h>

XPU_NEED(cuGraphChildGraphNodeGetGraph)
XPU_NEED(cuGraphGetNodes)
XPU_NEED(cuGraphMemAllocNodeGetParams)
XPU_NEED(cuGraphNodeGetType)

enum { GRANULE = 2 << 20 }; /* in which the driver takes memory */

struct range {
    CUdevice device;
    uint64_t start, end; /* addresses */
};

struct ranges {
    struct range *each;
    size_t count, room;
};

static bool add_range(struct ranges *ranges, CUgraphNode node) {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    if (REAL(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS ||
        params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !params.bytesize)
        return true; /* of the host */
    if (ranges->count == ranges->room) {
        size_t room = ranges->room ? 2 * ranges->room : 16;
        struct range *larger = realloc(ranges->each, room * sizeof *larger);
        if (!larger)
            return false;
        ranges->each = larger;
        ranges->room = room;
    }
    ranges->each[ranges->count++] =
        (struct range){params.poolProps.location.id, params.dptr, params.dptr + params.bytesize};
    return true;
}

static bool add_graph(struct ranges *ranges, CUgraph graph);

static bool add_node(struct ranges *ranges, CUgraphNode node) {
    CUgraphNodeType type;
    CUgraph child;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return true;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return add_range(ranges, node);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
        return add_graph(ranges, child);
    return true;
}

/* False: no memory to find out. */
static bool add_graph(struct ranges *ranges, CUgraph graph) {
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return true;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    bool known = nodes != NULL;
    if (known && REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count && known; i++)
            known = add_node(ranges, nodes[i]);
    free(nodes);
    return known;
}

static int compare(const void *one, const void *other) {
    const struct range *a = one, *b = other;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return a->start < b->start ? -1 : a->start > b->start;
}

static uint64_t granules(uint64_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }

/* Ranges that overlap or touch are one. */
static bool fill(struct xpu_needs *needs, const struct ranges *ranges) {
    for (size_t i = 0; i < ranges->count;) {
        struct range whole = ranges->each[i++];
        while (i < ranges->count && ranges->each[i].device == whole.device &&
               ranges->each[i].start <= whole.end) {
            if (ranges->each[i].end > whole.end)
                whole.end = ranges->each[i].end;
            i++;
        }
        struct xpu_reserve *reserve = xpu_reserve_of(NULL, whole.device, true);
        struct xpu_need *last = needs->count ? &needs->each[needs->count - 1] : NULL;
        if (!reserve || (needs->count == XPU_DEVICES && last->reserve != reserve))
            return false;
        if (!last || last->reserve != reserve) {
            last = &needs->each[needs->count++];
            *last = (struct xpu_need){.reserve = reserve};
        }
        last->bytes += granules(whole.end - whole.start);
    }
    return true;
}

bool xpu_needs_of(CUgraph graph, struct xpu_needs **needs) {
    struct ranges ranges = {0};
    *needs = NULL;
    bool known = add_graph(&ranges, graph);
    if (known && ranges.count) {
        qsort(ranges.each, ranges.count, sizeof *ranges.each, compare);
        *needs = calloc(1, sizeof **needs + ranges.count * sizeof *(*needs)->each);
        known = *needs && fill(*needs, &ranges);
    }
    free(ranges.each);
    if (!known) {
        free(*needs);
        *needs = NULL;
    }
    return known;
}
