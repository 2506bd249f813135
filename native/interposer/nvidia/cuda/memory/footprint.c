/*
 * The footprint of a graph: the addresses of its allocations, which are fixed once its nodes are made.
 * Allocations that never live at the same time share addresses, and so the memory behind them.
 *
 * A launch is charged for the memory that it may make the driver take. The driver keeps memory mapped to a
 * graph from its first launch on. A later launch takes nothing (CUDA's programming guide, on the physical
 * memory of graph memory nodes) if it is in the same stream, nothing was trimmed, and no other graph that
 * shares the memory may run at the same time or has left an allocation in it. The driver does not report
 * which graphs share memory. A graph has begun to share if it is launched without its memory and the driver's
 * memory grows by less than all of it.
 *
 * Two kinds of memory are charged only afterwards, because a launch cannot be undone: memory that a launch
 * takes because another thread, at the very same moment, trims its memory or launches a graph that shares it
 * in another stream; and less than a step, if a driver takes graphs' memory in steps larger than XPU_STEP.
 */
#define _GNU_SOURCE
#include "footprint.h"
#include "cuda/driver/devices.h"
#include "cuda/driver/real.h"
#include "reservation.h"

#include <pthread.h>
#include <stdlib.h>

XPU_NEED(cuGraphChildGraphNodeGetGraph)
XPU_NEED(cuGraphGetNodes)
XPU_NEED(cuGraphMemAllocNodeGetParams)
XPU_NEED(cuGraphMemFreeNodeGetParams)
XPU_NEED(cuGraphNodeGetType)

enum { FREED = -1 };

struct range {
    CUdevice device;     /* FREED: a node frees the allocation there */
    uint64_t start, end; /* addresses */
};

struct ranges {
    struct range *each;
    size_t count, capacity;
};

static bool add_range(struct ranges *ranges, CUdevice device, uint64_t start, uint64_t bytes) {
    if (ranges->count == ranges->capacity) {
        size_t capacity = ranges->capacity ? 2 * ranges->capacity : 16;
        struct range *larger = realloc(ranges->each, capacity * sizeof *larger);
        if (!larger)
            return false;
        ranges->each = larger;
        ranges->capacity = capacity;
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

/* The number of ranges from `at` on with the same device and start; sorted, they are neighbours. */
static size_t alike(const struct ranges *ranges, size_t at) {
    size_t count = 1;
    while (at + count < ranges->count && compare(&ranges->each[at + count], &ranges->each[at]) == 0)
        count++;
    return count;
}

/* The number of nodes that free the allocation at `start`: an address may be allocated again after a free. */
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

/* The footprint on the range's device: the last one's, or a new one. NULL: no memory, or more devices than a
 * container can have. */
static struct xpu_device_footprint *add_device(struct xpu_footprint *footprint, const struct range *range) {
    struct xpu_pool_memory *memory = xpu_pool_memory_of(NULL, range->device, true);
    struct xpu_device_footprint *last = footprint->count ? &footprint->each[footprint->count - 1] : NULL;
    if (!memory || (footprint->count == XPU_DEVICES && last->memory != memory))
        return NULL;
    if (!last || last->memory != memory) {
        last = &footprint->each[footprint->count++];
        *last = (struct xpu_device_footprint){.memory = memory};
    }
    return last;
}

/* Counts each granule once, even if many ranges share it. The frees come first, because the ranges are sorted
 * by device. */
static bool fill(struct xpu_footprint *footprint, const struct ranges *ranges, size_t frees) {
    uint64_t counted = 0; /* the end of the last granule */
    for (size_t i = frees, count; i < ranges->count; i += count) {
        const struct range *range = &ranges->each[i];
        struct xpu_device_footprint *on_device = add_device(footprint, range);
        if (!on_device)
            return false;
        count = alike(ranges, i);
        on_device->leaves |= count > frees_of(ranges, frees, range->start);
        if (!on_device->bytes)
            counted = 0;
        for (size_t j = i; j < i + count; j++) {
            uint64_t start = range->start / XPU_STEP * XPU_STEP;
            uint64_t end = xpu_round_up(ranges->each[j].end, XPU_STEP);
            start = start > counted ? start : counted;
            on_device->bytes += end > start ? end - start : 0;
            counted = end > counted ? end : counted;
        }
    }
    return true;
}

bool xpu_footprint_of(CUgraph graph, struct xpu_footprint **footprint) {
    struct ranges ranges = {0};
    size_t frees = 0;
    *footprint = NULL;
    bool known = add_graph(&ranges, graph);
    if (known && ranges.count)
        qsort(ranges.each, ranges.count, sizeof *ranges.each, compare);
    while (known && frees < ranges.count && ranges.each[frees].device == FREED)
        frees++;
    if (known && ranges.count > frees) {
        *footprint = calloc(1, sizeof **footprint + (ranges.count - frees) * sizeof *(*footprint)->each);
        known = *footprint && fill(*footprint, &ranges, frees);
    }
    free(ranges.each);
    if (!known) {
        free(*footprint);
        *footprint = NULL;
    }
    return known;
}

/* ---- memory of an earlier launch ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void forget(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }
XPU_AT_FORK(forget)

static uint64_t moved(const struct xpu_device_footprint *on_device) {
    return __atomic_load_n(&on_device->memory->moved, __ATOMIC_RELAXED);
}

void xpu_launch_begin(struct xpu_launch *launch, struct xpu_device_footprint *on_device, uint64_t stream) {
    pthread_mutex_lock(&lock);
    bool has = on_device->had == moved(on_device) + 1 && on_device->stream == stream;
    *launch = (struct xpu_launch){.stream = stream, .bytes = has ? 0 : on_device->bytes};
    pthread_mutex_unlock(&lock);
}

void xpu_launch_admitted(struct xpu_launch *launch, const struct xpu_device_footprint *on_device) {
    launch->moved = moved(on_device);
}

/* Under the lock: whether this launch may have taken memory from graphs that had it. */
static bool takes_from_others(const struct xpu_launch *launch, const struct xpu_device_footprint *on_device,
                              bool shares) {
    if (shares && on_device->memory->stream && on_device->memory->stream != launch->stream)
        return true;
    return on_device->leaves && (shares || on_device->shared != on_device->memory->shared);
}

void xpu_launch_end(const struct xpu_launch *launch, struct xpu_device_footprint *on_device, uint64_t anew) {
    struct xpu_pool_memory *memory = on_device->memory;
    bool shares = launch->bytes && anew < on_device->bytes;
    pthread_mutex_lock(&lock);
    bool undisturbed = moved(on_device) == launch->moved;
    if (takes_from_others(launch, on_device, shares))
        __atomic_add_fetch(&memory->moved, 1, __ATOMIC_RELAXED);
    if (shares || !memory->stream)
        memory->stream = launch->stream;
    memory->shared += shares;
    on_device->had = undisturbed ? moved(on_device) + 1 : 0;
    on_device->stream = launch->stream;
    on_device->shared = memory->shared;
    pthread_mutex_unlock(&lock);
}
