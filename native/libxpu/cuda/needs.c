/*
 * What a graph needs: the addresses of its allocations, which are fixed once its nodes are made. Allocations
 * that never live at the same time share theirs, and so share the memory behind them.
 *
 * The driver keeps memory mapped to a graph from its first launch on, so that a later one takes nothing, as
 * long as (CUDA's programming guide, on the physical memory of graph memory nodes) it is in the same stream,
 * nothing was trimmed, and no other graph that shares the memory may run at the same time or has left an
 * allocation in it. Which graphs share is not known; that one may have begun to is known by a launch that had
 * its memory not already, and did not make the reserve grow by all of it.
 *
 * What remains, and is charged once it is there, as a launch cannot be undone: what a launch needs anew as
 * another thread, at the very same moment, trims its memory or launches in another stream what shares it; and
 * less than a step, where a driver takes graphs' memory in steps larger than XPU_STEP.
 */
#define _GNU_SOURCE
#include "needs.h"
#include "claim.h"
#include "devices.h"
#include "real.h"

#include <pthread.h>
#include <stdlib.h>

XPU_NEED(cuGraphChildGraphNodeGetGraph)
XPU_NEED(cuGraphGetNodes)
XPU_NEED(cuGraphMemAllocNodeGetParams)
XPU_NEED(cuGraphMemFreeNodeGetParams)
XPU_NEED(cuGraphNodeGetType)

enum { FREED = -1 };

struct range {
    CUdevice device;     /* FREED: it stands for a node that frees what begins there */
    uint64_t start, end; /* addresses */
};

struct ranges {
    struct range *each;
    size_t count, room;
};

static bool add_range(struct ranges *ranges, CUdevice device, uint64_t start, uint64_t bytes) {
    if (ranges->count == ranges->room) {
        size_t room = ranges->room ? 2 * ranges->room : 16;
        struct range *larger = realloc(ranges->each, room * sizeof *larger);
        if (!larger)
            return false;
        ranges->each = larger;
        ranges->room = room;
    }
    ranges->each[ranges->count++] = (struct range){device, start, start + bytes};
    return true;
}

static bool add_allocation(struct ranges *ranges, CUgraphNode node) {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUdevice device;
    if (REAL(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS ||
        !xpu_location_device(&params.poolProps.location, &device) || !params.bytesize)
        return true; /* of the host */
    return add_range(ranges, device, params.dptr, params.bytesize);
}

static bool add_graph(struct ranges *ranges, CUgraph graph);

static bool add_node(struct ranges *ranges, CUgraphNode node) {
    CUgraphNodeType type;
    CUdeviceptr pointer;
    CUgraph child;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return true;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return add_allocation(ranges, node);
    if (type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
        REAL(cuGraphMemFreeNodeGetParams)(node, &pointer) == CUDA_SUCCESS)
        return add_range(ranges, FREED, pointer, 0);
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

/* How many there are of the very device and start, from `at` on; sorted, they stand together. */
static size_t alike(const struct ranges *ranges, size_t at) {
    size_t count = 1;
    while (at + count < ranges->count && compare(&ranges->each[at + count], &ranges->each[at]) == 0)
        count++;
    return count;
}

/* How many nodes free what begins there: an address may be allocated again after a free. */
static size_t frees_of(const struct ranges *ranges, size_t frees, uint64_t start) {
    size_t low = 0, high = frees;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges->each[middle].start < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low < frees && ranges->each[low].start == start ? alike(ranges, low) : 0;
}

/* The need of the range's device, which is the last one's or a new one; NULL: no memory, or more devices than
 * a container can have. */
static struct xpu_need *need_of(struct xpu_needs *needs, const struct range *range) {
    struct xpu_reserve *reserve = xpu_reserve_of(NULL, range->device, true);
    struct xpu_need *last = needs->count ? &needs->each[needs->count - 1] : NULL;
    if (!reserve || (needs->count == XPU_DEVICES && last->reserve != reserve))
        return NULL;
    if (!last || last->reserve != reserve) {
        last = &needs->each[needs->count++];
        *last = (struct xpu_need){.reserve = reserve};
    }
    return last;
}

/* Granules are counted once, however many ranges lie in them. The frees come first, being sorted by device.
 */
static bool fill(struct xpu_needs *needs, const struct ranges *ranges, size_t frees) {
    uint64_t counted = 0; /* the end of the last granule */
    for (size_t i = frees, count; i < ranges->count; i += count) {
        const struct range *range = &ranges->each[i];
        struct xpu_need *need = need_of(needs, range);
        if (!need)
            return false;
        count = alike(ranges, i);
        need->leaves |= count > frees_of(ranges, frees, range->start);
        if (!need->bytes)
            counted = 0;
        for (size_t j = i; j < i + count; j++) {
            uint64_t start = range->start / XPU_STEP * XPU_STEP;
            uint64_t end = xpu_whole(ranges->each[j].end, XPU_STEP);
            start = start > counted ? start : counted;
            need->bytes += end > start ? end - start : 0;
            counted = end > counted ? end : counted;
        }
    }
    return true;
}

bool xpu_needs_of(CUgraph graph, struct xpu_needs **needs) {
    struct ranges ranges = {0};
    size_t frees = 0;
    *needs = NULL;
    bool known = add_graph(&ranges, graph);
    if (known && ranges.count)
        qsort(ranges.each, ranges.count, sizeof *ranges.each, compare);
    while (known && frees < ranges.count && ranges.each[frees].device == FREED)
        frees++;
    if (known && ranges.count > frees) {
        *needs = calloc(1, sizeof **needs + (ranges.count - frees) * sizeof *(*needs)->each);
        known = *needs && fill(*needs, &ranges, frees);
    }
    free(ranges.each);
    if (!known) {
        free(*needs);
        *needs = NULL;
    }
    return known;
}

/* ---- what a launch finds there still ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void forget(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }
XPU_AT_FORK(forget)

static uint64_t moved(const struct xpu_need *need) {
    return __atomic_load_n(&need->reserve->moved, __ATOMIC_RELAXED);
}

void xpu_turn_begin(struct xpu_turn *turn, struct xpu_need *need, uint64_t stream) {
    pthread_mutex_lock(&lock);
    bool has = need->had == moved(need) + 1 && need->stream == stream;
    *turn = (struct xpu_turn){.stream = stream, .bytes = has ? 0 : need->bytes};
    pthread_mutex_unlock(&lock);
}

void xpu_turn_let_in(struct xpu_turn *turn, const struct xpu_need *need) { turn->moved = moved(need); }

/* Under the lock: whether others that had memory may have lost it by this launch. */
static bool takes_from_others(const struct xpu_turn *turn, const struct xpu_need *need, bool shares) {
    if (shares && need->reserve->stream && need->reserve->stream != turn->stream)
        return true;
    return need->leaves && (shares || need->shared != need->reserve->shared);
}

void xpu_turn_end(const struct xpu_turn *turn, struct xpu_need *need, uint64_t anew) {
    struct xpu_reserve *reserve = need->reserve;
    bool shares = turn->bytes && anew < need->bytes;
    pthread_mutex_lock(&lock);
    bool undisturbed = moved(need) == turn->moved;
    if (takes_from_others(turn, need, shares))
        __atomic_add_fetch(&reserve->moved, 1, __ATOMIC_RELAXED);
    if (shares || !reserve->stream)
        reserve->stream = turn->stream;
    reserve->shared += shares;
    need->had = undisturbed ? moved(need) + 1 : 0;
    need->stream = turn->stream;
    need->shared = reserve->shared;
    pthread_mutex_unlock(&lock);
}
